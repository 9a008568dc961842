"""A declarative pipeline: its tables keep their state here, over operations between its runs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.io.shim_jar import find_jar

from .conftest import ON_EACH_SPARK, OURS

EXAMPLE = Path(__file__).resolve().parents[2] / "examples/pipeline"
INPUT = "/tmp/flights"  # noqa: S108
FLOWS = ("by_hour/by_hour", "first_flights/first_flights")
pytestmark = [*ON_EACH_SPARK, pytest.mark.skipif(not OURS, reason="no jar")]


class Pipeline:
    """The pipeline of the example, with its input and its tables in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = root / "storage"
        (root / "in").mkdir()
        shutil.copytree(EXAMPLE, root / "pipeline")
        for path in (root / "pipeline").rglob("*.*"):
            if path.is_file():
                path.write_text(path.read_text().replace(INPUT, str(root)))
        self._num_files = 0

    def add(self) -> None:
        """Add a file of flights, a day each: 20 routes, half of them new."""
        day = self._num_files = self._num_files + 1
        flights = [
            {
                "route": f"route-{10 * day + number}",
                "minutes": number,
                "at": f"2013-01-{day:02}T{number:02}:15:00.000Z",
            }
            for number in range(20)
        ]
        path = self.root / f"in/{day}.json"
        path.write_text("\n".join(map(json.dumps, flights)))

    def run(self, *arguments: str) -> None:
        """Have spark-pipelines run it to its end."""
        code, output = self._run(*arguments)
        assert code == 0, output

    def fail(self) -> str:
        """Have spark-pipelines run it, which fails; return what it says at the end."""
        code, output = self._run()
        assert code
        return output

    def _run(self, *arguments: str) -> tuple[int, str]:
        conf = [
            *("--conf", f"spark.driver.extraClassPath={find_jar()}"),
            *("--conf", "spark.sql.catalogImplementation=hive"),
            *("--conf", "spark.ui.enabled=false"),
            *("--conf", "spark.sql.session.timeZone=UTC"),
        ]
        pipelines = str(Path(sys.executable).with_name("spark-pipelines"))
        command = [pipelines, "run", "--remote", "local[2]"]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        log = self.root / "pipeline.log"
        with log.open("w") as output:
            code = subprocess.run(
                [*command, *conf, *arguments],
                cwd=self.root / "pipeline",
                env={**os.environ, "PATH": path},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=300,
                check=False,
            ).returncode
        return code, log.read_text()[-3_000:]

    def table(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a table."""
        files = ds.dataset(self.root / f"pipeline/spark-warehouse/{name}", format="parquet")
        rows: list[dict[str, Any]] = files.to_table().to_pylist()
        return rows

    def routes(self) -> list[int]:
        return sorted(
            int(row["route"].removeprefix("route-")) for row in self.table("first_flights")
        )

    def flow(self, flow: str, number: int) -> str:
        return f"{self.storage}/_checkpoints/spark_catalog/default/{flow}/{number}"


def run_cli(*arguments: str) -> str:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def newest(pipeline: Pipeline) -> dict[str, int]:
    """Newest version by flow and number."""
    listed = json.loads(run_cli("list", str(pipeline.storage), "--output", "json"))
    prefix = pipeline.flow("", 0).removesuffix("/0")
    return {one["uri"].removeprefix(prefix): one["newest_version"] for one in listed["checkpoints"]}


@pytest.mark.timeout(900)
@pytest.mark.needs("pipelines")
def test_state_goes_on_over_operations_between_runs(tmp_path: Path) -> None:
    """Catches a run that does not see what an operation made, or sees its input twice."""
    pipeline = Pipeline(tmp_path)
    first = FLOWS[1]
    pipeline.add()
    pipeline.add()
    pipeline.run()
    assert pipeline.routes() == [*range(10, 40)]
    assert set(newest(pipeline)) == {f"{flow}/0" for flow in FLOWS}

    run_cli("rescale", pipeline.flow(first, 0), "--num-partitions", "6", "--yes")
    pipeline.add()
    pipeline.run()
    assert pipeline.routes() == [*range(10, 50)]
    assert Checkpoint(pipeline.flow(first, 0)).info.num_partitions == 6

    before = newest(pipeline)
    run_cli("restore", pipeline.flow(first, 0), pipeline.flow(first, 1), "--num-partitions", "3")
    pipeline.add()
    pipeline.run()
    assert pipeline.routes() == [*range(10, 60)]
    after = newest(pipeline)
    assert after[f"{first}/0"] == before[f"{first}/0"] < after[f"{first}/1"]
    assert Checkpoint(pipeline.flow(first, 1)).info.num_partitions == 3
    hours = [(row["hour"], row["flights"]) for row in pipeline.table("by_hour")]
    assert len(hours) == len(set(hours)) == 3 * 20 + 18
    assert {count for _, count in hours} == {1}

    pipeline.run("--full-refresh", "first_flights")
    assert pipeline.routes() == [*range(10, 60)]
    assert newest(pipeline).keys() == {*after, f"{first}/2"}
    run_cli("verify", str(pipeline.storage), "--deep")

    # The table has no rows of the state of before the refresh.
    run_cli("restore", pipeline.flow(first, 1), pipeline.flow(first, 3))
    pipeline.add()
    assert "[sink-apart]" in pipeline.fail()
    shutil.rmtree(pipeline.flow(first, 3))
    pipeline.run()
    assert pipeline.routes() == [*range(10, 70)]
