"""Random damage to every form of file: a named error of ours or the same rows, nothing else.

STATESTORE_DAMAGE_SEED repeats a run, STATESTORE_DAMAGE_TRIALS says how many of each form.
"""

import collections
import logging
import os
import random
import resource
import time
import traceback
import zlib
from contextlib import contextmanager

import pytest

from statestore.core.errors import InternalError, StateStoreError
from tests.damage.damages import damage
from tests.damage.forms import ALL, FORMS, SEED
from tests.damage.reads import Everything
from tests.peak_memory import measured_growth

FEW = int(os.environ.get("STATESTORE_DAMAGE_TRIALS", "25"))
MANY = 5000
GROWTH_BYTES = 96 << 20
"""Files here have some kilobytes: what grows by this much believed a length in a file."""
MAPPED_BYTES = 8 << 30
SLOW_S = 20.0
NOT_OF_A_FILE = {"not-rescalable", "other-provider"}
"""Kinds of errors that name what a log says in place of the log: it may well be so."""
NAMES = [f"{backend}-{form}" for backend, form in ALL]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "form"), ALL, ids=NAMES)
@pytest.mark.few(5)
def test_damage_is_a_named_error_or_changes_no_row_when_it_is_random(
    tmp_path, backend, form, capsys
):
    """Catches a byte that no check covers, a raw exception, a hang, an allocation by a length."""
    _run_trials(tmp_path, backend, form, FEW, capsys)


@pytest.mark.extended
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("backend", "form"), ALL, ids=NAMES)
def test_damage_is_a_named_error_or_changes_no_row_when_there_is_much_of_it(
    tmp_path, backend, form, capsys
):
    """Catches what takes thousands of trials to come up."""
    _run_trials(tmp_path, backend, form, MANY, capsys)


def _run_trials(directory, backend, name, num_trials, capsys):
    rng = random.Random(SEED ^ zlib.crc32(f"{backend}-{name}".encode()))
    form = FORMS[name](directory, backend)
    expected = form.read(Everything(), None)
    outcomes = collections.Counter()
    slowest_s = 0.0
    with _bounded_address_space(), _nothing_logged(), measured_growth() as grown:
        for trial in range(num_trials):
            path = rng.choice(form.files)
            whole = path.read_bytes()
            what, damaged = damage(rng, whole, form.others)
            path.write_bytes(damaged)
            started = time.perf_counter()
            try:
                found = form.read(rng, path)
            except StateStoreError as error:
                outcome = error.kind
                is_ours = not isinstance(error, InternalError) and _names(error, path)
                problem = "" if is_ours else str(error)
            except BaseException:  # noqa: BLE001
                outcome, problem = "raw", traceback.format_exc()
            else:
                outcome = "found" if found is None else "same"
                is_same = found is None or found.items() <= expected.items()
                problem = "" if is_same else f"other rows: {found}"
            finally:
                path.write_bytes(whole)
            slowest_s = max(slowest_s, time.perf_counter() - started)
            if problem:
                kept = directory / "damaged"
                kept.write_bytes(damaged)
                pytest.fail(
                    f"STATESTORE_DAMAGE_SEED={SEED}: trial {trial} of {backend} {name}, {what} of "
                    f"{path}, kept as {kept}: {problem}"
                )
            outcomes[outcome] += 1
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{backend} {name}: seed={SEED}, trials={num_trials}, "
            f"slowest_ms={slowest_s * 1e3:.0f}, "
            f"rss_growth_mib={grown.resident >> 20}, arrow_growth_mib={grown.arrow >> 20}, "
            f"{dict(outcomes)}"
        )
    assert max(grown.resident, grown.arrow) < GROWTH_BYTES
    assert slowest_s < SLOW_S
    assert form.read(Everything(), None) == expected, "the trials left something changed"


def _names(error, path):
    """Whether an error names the damaged file; one of state may be missed by what needs it."""
    is_of_spark = not path.suffix
    return not is_of_spark or error.kind in NOT_OF_A_FILE or f"/{path.name}" in str(error)


@contextmanager
def _bounded_address_space():
    """Let an allocation that is far too large fail, where it would only not be touched."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:  # noqa: PTH123
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MAPPED_BYTES, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


@contextmanager
def _nothing_logged():
    """Let no log record be made: pytest would keep each of a test, with the error it names."""
    logging.disable()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
