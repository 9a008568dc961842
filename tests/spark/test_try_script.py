"""A script is tried by commands: in processes of its own, which may be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.json_reference import fields

from .conftest import EXTENDED, PROVIDER
from .tried import MARKS, expected, files

pytestmark = MARKS

JOB = """
import sys
import statestore
from pyspark.sql import SparkSession, functions as sf

root, wrong = sys.argv[1:]
builder = SparkSession.builder.master("local[2]").config("spark.sql.shuffle.partitions", 2)
builder = builder.config("spark.ui.enabled", "false")
spark = statestore.configure(builder, backend="{backend}").getOrCreate()
events = spark.readStream.schema("key STRING, value BIGINT, ts TIMESTAMP")
events = events.option("maxFilesPerTrigger", 1).json(root + "/input")
value = sf.col("value") * (2 if wrong == "yes" else 1)
totals = events.groupBy("key").agg(sf.count("*").alias("number"), sf.sum(value).alias("total"))


def write(batch, number):
    batch.write.mode("overwrite").json(root + "/output/" + str(number))


{slow}
other = events.writeStream.format("noop").option("checkpointLocation", root + "/other").start()
query = totals.writeStream.outputMode("update").foreachBatch(write).option(
    "checkpointLocation", root + "/checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
if other is not None:
    other.stop()
spark.stop()
"""


class Script:
    """A user's program in a file, which is run and tried by commands.

    Attributes:
        root: Directory of its input, checkpoint and output.
        path: The program.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.path = root, root / "job.py"
        (root / "input").mkdir(parents=True)
        backend = "rocksdb" if "RocksDB" in PROVIDER else "filesystem"
        self.path.write_text(JOB.replace("{backend}", backend).replace("{slow}", ""))

    def feed(self, first: int, number: int) -> None:
        """Add files, a batch each."""
        for batch, file in enumerate(files(first, number), first):
            lines = [json.dumps(row) for row in file["events"]]
            path = self.root / "input" / f"{batch:05d}.json"
            path.write_text("\n".join(lines))
            os.utime(path, (1_700_000_000 + batch,) * 2)

    def command(self, *arguments: str) -> list[str]:
        """Return a command of this package."""
        return [sys.executable, "-m", "statestore.cli", *arguments]

    def tried(self, wrong: str = "no") -> list[str]:
        """Return the command that tries it."""
        checkpoint = str(self.root / "checkpoint")
        how = ["--against", str(self.path), "--batches", "2", "--output", "json"]
        return self.command("try", *how, checkpoint, str(self.path), str(self.root), wrong)

    def run(self, wrong: str = "no") -> None:
        """Run it as its user does."""
        command = [sys.executable, str(self.path), str(self.root), wrong]
        subprocess.run(command, check=True, capture_output=True, timeout=120)

    @property
    def written(self) -> dict[str, tuple[int, int]]:
        """Number and total by key, as the newest batch wrote them."""
        found = {}
        output = sorted((self.root / "output").iterdir(), key=lambda path: int(path.name))
        for part in output[-1].glob("*.json"):
            for line in part.read_text().splitlines():
                row = json.loads(line)
                found[row["key"]] = (row["number"], row["total"])
        return found


@EXTENDED
@pytest.mark.timeout(600)
def test_script_is_tried_by_commands_and_goes_on_when_it_is_killed(tmp_path: Path) -> None:
    """Catches a script that writes its sink while it is tried, and a kill that stops the trial."""
    script = Script(tmp_path / "script")
    script.feed(0, 4)
    script.run()
    assert script.written == expected(4)
    output = sorted(path.name for path in (script.root / "output").iterdir())

    rounds = 0
    while True:
        rounds += 1
        process = subprocess.Popen(
            script.tried(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            out, err = process.communicate(timeout=5 + 3 * rounds if rounds < 6 else 200)
            break
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    assert process.returncode == 0, err.decode()[-3000:]
    printed = json.loads(out)
    assert printed["result"] == "equal"
    assert {*printed} == fields("try")
    assert rounds > 1
    assert sorted(path.name for path in (script.root / "output").iterdir()) == output
    script.feed(4, 1)
    script.run()
    again = subprocess.run(script.tried(), check=True, capture_output=True, timeout=120)
    printed = json.loads(again.stdout)
    assert (printed["result"], printed["first_version"], printed["version"]) == ("equal", 2, 5)
    trial = str(script.root / "checkpoint-trial")
    promote = script.command("promote", trial, "--yes")
    subprocess.run(promote, check=True, capture_output=True, timeout=60)
    script.feed(5, 2)
    script.run()
    assert script.written == expected(7)


@EXTENDED
@pytest.mark.timeout(600)
def test_column_that_is_ignored_does_not_count(tmp_path: Path) -> None:
    """Catches a difference that is not told, or one that was to be left out."""
    script = Script(tmp_path / "script")
    script.feed(0, 3)
    script.run()
    new = script.root / "new.py"
    new.write_text(script.path.read_text().replace('if wrong == "yes" else 1', "if True else 1"))
    how = ["--against", str(script.path), "--batches", "1", "--output", "json"]
    tried = script.command("try", *how, str(script.root / "checkpoint"), str(new))

    def result(*ignored: str) -> tuple[int, str]:
        command = [*tried, *ignored, "--", str(script.root), "no"]
        done = subprocess.run(command, capture_output=True, timeout=200, check=False)
        assert done.returncode in (0, 1), done.stderr.decode()[-3000:]
        return done.returncode, json.loads(done.stdout)["result"]

    assert result() == (1, "the new code differs")
    assert result("--ignore", "total", "--ignore", "value.sum") == (0, "equal")
