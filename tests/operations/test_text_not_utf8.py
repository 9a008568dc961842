"""Text that is not UTF-8, which Spark takes from its sources as it is, is shown and edited."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import parquet

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.codec.python_values import to_pylist
from tests.checkpoints import DEFAULT, write_checkpoint

WORDS = (b"caf\xe9", b"\xff", b"caf\xc3\xa9", b"plain", b"", b"n\x80n", b"\xc3", None)
Rows = dict[tuple[Any, int], tuple[int, Any]]


def run(*arguments: Any) -> str:
    result = CliRunner().invoke(cli, [str(one) for one in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def shown(text: bytes | None) -> str | None:
    return None if text is None else text.decode(errors="backslashreplace")


def as_pairs(rows: list[Any]) -> dict[Any, Any]:
    return {tuple(row["key"].values()): tuple(row["value"].values()) for row in rows}


def test_time_that_numpy_takes_for_none_is_shown() -> None:
    """Catches the least of all timestamps, which jobs write for "never", shown as NaT."""
    least = [-(1 << 63), -(1 << 63) + 1, None]

    assert to_pylist(pa.array(least, pa.timestamp("us", "UTC"))) == [
        "-290308-12-21T19:59:05.224192Z", "-290308-12-21T19:59:05.224193Z", None,
    ]  # fmt: skip
    for unit in ("s", "ms"):  # of SQL
        late = 316516377600 * (1000 if unit == "ms" else 1)
        (text,) = to_pylist(pa.array([late], pa.timestamp(unit)))
        assert text.startswith("12000-01-03T00:00:00")


@pytest.mark.parametrize("backend", ["filesystem", "rocksdb"])
@pytest.mark.parametrize("seed", range(2))
def test_rows_are_shown_compared_and_edited(tmp_path: Path, seed: int, backend: str) -> None:
    """Catches a bare UnicodeDecodeError, and bytes of a text that are written as others."""
    rng = Random(seed)
    first: Rows = {(word, n): (n, rng.choice(WORDS)) for n, word in enumerate(WORDS)}
    second: Rows = {(word, 9): (7, rng.choice(WORDS)) for word in rng.sample(WORDS, 3)}
    path = write_checkpoint(
        tmp_path / "query",
        [{"default": first}, {"default": second}],
        families=(DEFAULT,),
        backend=backend,
    )
    rows = first | second
    expected = {
        (shown(word), number): (total, shown(note))
        for (word, number), (total, note) in rows.items()
    }

    assert (
        as_pairs(json.loads(run("read", path, "--output", "json", "--limit", 0))["rows"])
        == expected
    )
    run("read", path, "--to", tmp_path / "rows.json")
    lines = (tmp_path / "rows.json").read_text().splitlines()
    assert as_pairs([json.loads(line) for line in lines]) == expected
    run("read", path, "--flatten", "--to", tmp_path / "rows.csv")
    with (tmp_path / "rows.csv").open(newline="") as file:
        cells = [[*row.values()][:4] for row in csv.DictReader(file)]
    assert sorted(cells) == sorted(
        [word or "", str(number), str(total), note or ""]
        for (word, number), (total, note) in expected.items()
    )
    differences = json.loads(run("diff", path, "--old-version", 1, "--output", "json"))["rows"]
    assert {tuple(row["key"].values()) for row in differences} == {
        (shown(word), number) for word, number in second
    }
    run("inspect", path, "--largest", 5)
    run("inspect", path, "--most-changed", 5)
    run("report", path, "--to", tmp_path / "page.html")
    assert (
        as_pairs(json.loads(run("sql", path, "SELECT * FROM state", "--output", "json"))["rows"])
        == expected
    )
    run("forget", path, "--where", "number = 9")

    # A file of Parquet has the bytes that are there, so it says which rows to edit.
    run("read", path, "--to", tmp_path / "rows.parquet")
    keys = parquet.read_table(tmp_path / "rows.parquet").select(["key"])
    keys = keys.filter(pa.array([key["number"] % 2 == 0 for key in to_pylist(keys["key"])]))
    parquet.write_table(keys, tmp_path / "keys.parquet")
    run("edit", path, "--delete", tmp_path / "keys.parquet", "--yes")
    run("edit", path, "--where", "number = 9", "--yes")
    left = {key: value for key, value in expected.items() if key[1] % 2 and key[1] != 9}
    assert as_pairs(to_pylist(Checkpoint(path).rows().read())) == left
