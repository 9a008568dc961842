"""Times beyond the years that Python has: state with them is read, exported and edited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.codec.column_family import ColumnFamily
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import Changes, StoreOfQuery, schema_of, unsafe_row

NOW_US, FAR_US = 1_700_000_000_000_000, 1_700_000_000_000_000_000
FAR = "55840-11-08T22:13:20"
FAR_DAY = 2_932_897  # 10000-01-01


@dataclass(frozen=True)
class Seen(StoreOfQuery):
    """When somebody was seen, by time: of some the milliseconds were taken for seconds."""

    name: str = "default"
    columns: tuple[str, ...] = ("at",)

    @property
    def family(self) -> ColumnFamily:
        """Its only column family."""
        return ColumnFamily(0, "default", schema_of(at="timestamp"), schema_of(until="timestamp"))

    def rows(self, changes: Mapping[Any, Any]) -> Changes:
        """Return its rows."""
        return {
            unsafe_row(at): None if until is None else unsafe_row(until)
            for at, until in changes.items()
        }


@pytest.fixture
def made(tmp_path: Path) -> str:
    """A checkpoint with a row of each kind."""
    query = MadeCheckpoint(
        str(tmp_path / "query"), operators=(("stateStoreSave", (Seen(),)),), num_partitions=2
    )
    query.run_batch({NOW_US: NOW_US, FAR_US: FAR_US})
    return query.path


def run(*arguments: object) -> str:
    """Run a command; return what it prints."""
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def test_rows_of_far_years_are_shown_and_exported(made: str, tmp_path: Path) -> None:
    """Catches an error of Python in place of the rows."""
    rows = json.loads(run("read", made, "--output", "json"))["rows"]
    assert {row["key"]["at"][:19] for row in rows} >= {FAR[:19]}
    assert FAR in run("read", made)
    for name in ("rows.json", "rows.csv"):
        run("read", made, "--to", tmp_path / name)
        assert FAR in (tmp_path / name).read_text()


def test_rows_of_far_years_are_deleted(made: str) -> None:
    """Catches a state that no command can put right."""
    condition = "\"at\" > '3000-01-01'"
    plan = run("edit", made, "--where", condition)
    assert FAR in plan
    run("edit", made, "--where", condition, "--yes")

    assert Checkpoint(made).rows().read().num_rows == 1


def test_keys_of_far_years_are_in_the_report(made: str, tmp_path: Path) -> None:
    """Catches a checkpoint whose page cannot be had for one key."""
    run("report", made, "--to", tmp_path / "page.html", "--deep")

    assert FAR in (tmp_path / "page.html").read_text()


@dataclass(frozen=True)
class ByDay(StoreOfQuery):
    """What users did, by day."""

    name: str = "default"
    columns: tuple[str, ...] = ("user", "day")

    @property
    def family(self) -> ColumnFamily:
        """Its only column family."""
        key = schema_of(user="string", day="date")
        return ColumnFamily(0, "default", key, schema_of(last="date"))

    def rows(self, changes: Mapping[Any, Any]) -> Changes:
        """Return its rows; an int is eight bytes, of which a date takes four."""
        return {
            unsafe_row(user, day & 0xFFFFFFFF): None if last is None else unsafe_row(last)
            for (user, day), last in changes.items()
        }


def test_keys_of_far_days_are_forgotten(tmp_path: Path) -> None:
    """Catches an OverflowError for a key with a day that stands for never."""
    query = MadeCheckpoint(
        str(tmp_path / "query"), operators=(("stateStoreSave", (ByDay(),)),), num_partitions=2
    )
    query.run_batch({("x", FAR_DAY): 1, ("x", 19_000): 2, ("x", -800_000): 3, ("y", FAR_DAY): 4})
    certificate, keys = tmp_path / "forgotten.json", tmp_path / "keys.parquet"
    days = pa.array([FAR_DAY, 19_000, -800_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"key.user": ["x"] * 3, "key.day": days}), keys)
    forget = ["forget", query.path, "--where", "\"user\" = 'x'"]
    assert "10000-01-01" in run(*forget)

    run(*forget, "--certificate", certificate, "--yes")

    assert Checkpoint(query.path).rows().read().num_rows == 1
    run("forget", query.path, "--keys", keys, "--certificate", certificate, "--verify")


@pytest.mark.parametrize("us", [253_402_329_599_000_000, -62_135_600_400_000_000])
def test_times_of_a_year_more_or_less_are_given_as_they_are_printed(
    tmp_path: Path, us: int
) -> None:
    """Catches the last second of 9999, which is of year 10000 in UTC, shown and then refused."""
    query = MadeCheckpoint(
        str(tmp_path / "query"), operators=(("stateStoreSave", (Seen(),)),), num_partitions=2
    )
    query.run_batch({us: us, NOW_US: NOW_US})
    rows = json.loads(run("read", query.path, "--output", "json"))["rows"]
    (shown,) = (at for row in rows if not (at := row["key"]["at"]).startswith("2023"))
    find = ["inspect", query.path, "--find", json.dumps([shown])]
    found = json.loads(run(*find, "--output", "json"))
    assert [row["key"]["at"] for row in found["rows"]] == [shown]
    for name in ("rows.json", "rows.csv"):
        file = tmp_path / name
        run("read", query.path, "--flatten", "--to", file)
        run("edit", query.path, "--upsert", file, "--yes")
        at = json.loads(run("read", query.path, "--output", "json"))["rows"]
        assert sorted(map(str, at)) == sorted(map(str, rows))
    run("read", query.path, "--column", "key.at", "--to", tmp_path / "keys.json")
    run("edit", query.path, "--delete", tmp_path / "keys.json", "--all", "--yes")
    assert json.loads(run("read", query.path, "--output", "json"))["rows"] == []
