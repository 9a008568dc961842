"""What fuzzers start from, and what they found, goes through every target again."""

from pathlib import Path

import pytest

from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).parent / "corpus"
INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_input_is_read_or_refused_by_name_when_it_was_found_by_a_fuzzer(name):
    """Catches a crash coming back that a fuzzer found once."""
    TARGETS[name.parent.name](name.read_bytes())


def test_every_target_has_inputs_to_start_from():
    """Catches a target that is fuzzed from nothing, or inputs that nothing reads."""
    assert {path.parent.name for path in INPUTS} == TARGETS.keys()
    assert sum(path.stat().st_size for path in INPUTS) < 100_000
