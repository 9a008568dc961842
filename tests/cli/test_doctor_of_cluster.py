"""`statestore doctor --spark-submit` asks every executor, and names what each of them lacks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import venv
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from statestore.cli.commands import cli
from statestore.cli.executor_checks import main
from statestore.core.options import PREFIX
from statestore.core.providers import PROVIDERS, REAL_TIME_KEY
from statestore.io.shim_jar import JAR_VARIABLE, find_jar
from statestore.spark.on_executors import _SCRIPT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
# Executors of 1 core and 1 GiB, so that each of them has a process of its own.
MASTER = "--master local-cluster[2,1,1024] --conf spark.ui.enabled=false"


def doctor(submit: str, *arguments: str, python: str | None = None) -> Result:
    """Run the command over two executors, whose machines name a Python."""
    words = ["doctor", f"--spark-submit={MASTER} {submit}", *arguments]
    return CliRunner().invoke(cli, words, env={"PYSPARK_PYTHON": python, "SPARK_CONF_DIR": None})


def test_every_executor_is_a_row_with_its_checks(tmp_path: Path) -> None:
    """Catches an executor that is not asked, and files left on the user's storage."""
    storage = tmp_path / "storage"
    provider = f"--conf {PREFIX}providerClass={PROVIDERS['rocksdb']}"
    python = f"--conf spark.pyspark.python={sys.executable}"

    # A secret in an argument would be read by every user of the machine.
    secret, seen = "nobody-knows-this", []
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(0.05):
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with suppress(OSError):
                    words = path.read_bytes()
                    if b"on_executors" in words or b"statestore-doctor.zip" in words:
                        seen.append(words)

    watching = threading.Thread(target=watch)
    watching.start()
    result = doctor(
        f"--jars {find_jar()} {provider} {python}",
        f"--storage={storage}",
        "--storage-option=s3.accessKey=somebody",
        f"--storage-option=s3.secretKey={secret}",
        "--output=json",
    )
    ends.set()
    watching.join()
    assert any(b"statestore-doctor.zip" in words for words in seen)
    assert not any(secret.encode() in words for words in seen)

    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["ok"]
    assert len({of["executor"] for of in report["executors"]}) == 2
    for of in report["executors"]:
        checks = {check["name"]: check for check in of["checks"]}
        assert {check["status"] for check in checks.values()} == {"ok"}, checks
        assert "rocksdict" in checks["python"]["detail"]
        assert {"jar", "engine", "storage conditional write"} <= set(checks)
    assert not storage.exists()


@pytest.mark.parametrize("storage", [None, "hdfs://namenode/checkpoints"])
def test_storage_that_an_engine_does_not_open_is_left_out(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    storage: str | None,
) -> None:
    """Catches checks that fail for want of a storage, which nobody has to name."""
    monkeypatch.setenv(JAR_VARIABLE, "")  # which the checks set, in what is a process of their own
    request = {"application": "app", "directory": str(tmp_path), "jars": [str(find_jar())]}

    asked = tmp_path / "asked.json"
    asked.write_text(json.dumps({**request, "backend": None, "storage": storage, "options": {}}))
    main(str(asked), "1")

    checks = {of["name"]: of["status"] for of in json.loads(capsys.readouterr().out)["checks"]}
    assert {checks[name] for name in ("python", "jar", "engine")} == {"ok"}
    assert checks.get("storage") == (storage and "skip")
    assert not asked.exists(), "it may have the secrets of a storage"


@pytest.mark.extended
def test_what_executors_lack_is_named_with_its_fix(tmp_path: Path) -> None:
    """Catches a Python of the driver that is checked in place of the executors'."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"

    result = doctor(f"--conf spark.pyspark.python={python}")

    assert result.exit_code == 1
    install = f"{python} -m pip install pyarrow numpy google-crc32c"
    lines = result.output.splitlines()
    assert sum("FAIL python on" in line and install in line for line in lines) == 2


@pytest.mark.extended
@pytest.mark.parametrize("named", ["", "--conf spark.pyspark.python=/missing/python"])
def test_python_that_the_machines_name_is_checked(tmp_path: Path, named: str) -> None:
    """Catches another Python that is checked than the one that engines run in."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = tmp_path / "bare" / "bin" / "python"
    real_time = f"--conf {REAL_TIME_KEY}={PROVIDERS['rocksdb']}"

    result = doctor(f"{named} --jars {find_jar()}", python=str(python))
    works = doctor(
        f"{named} {real_time} --jars {find_jar()}", "--output=json", python=sys.executable
    )

    assert sum("FAIL python on" in line for line in result.output.splitlines()) == 2
    assert works.exit_code == 0, works.output
    assert "rocksdict" in works.output


@pytest.mark.extended
def test_jar_that_executors_lack_is_named_with_its_fix() -> None:
    """Catches a jar of the driver that is checked in place of the executors'."""
    result = doctor(f"--conf spark.pyspark.python={sys.executable}")

    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert sum("FAIL jar on" in line and "spark.jars" in line for line in lines) == 2
    assert not any("FAIL python" in line for line in lines)


@pytest.mark.extended
def test_python_that_is_not_there_is_named(tmp_path: Path) -> None:
    """Catches a stack trace of Spark in place of what to correct."""
    missing = doctor(f"--conf spark.pyspark.python={tmp_path}/python")

    assert missing.exit_code == 1
    assert "FAIL python on" in missing.output
    assert f"cannot be run: python='{tmp_path}/python'" in missing.output


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_status_of_a_python_that_is_not_there_is_its_own(tmp_path: Path, shell: str) -> None:
    """Catches the status of another command, 0, in what is told of a Python that cannot be run."""
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    python, request = tmp_path / "python", tmp_path / "request"
    request.write_text("secrets")
    done = subprocess.run(
        [shell, "-c", _SCRIPT, shell, f"./{python.name}", "archive", request],
        env={"PATH": os.environ["PATH"], "PYSPARK_PYTHON": "no-such-python"},
        cwd=tmp_path, capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert json.loads(done.stdout)["exit"] == 127
    assert not request.exists()


def test_arguments_that_spark_submit_refuses_are_named() -> None:
    """Catches a usage of Spark's in place of what to correct."""
    wrong = doctor("--no-such-option")

    assert wrong.exit_code == 1
    assert "they are those of the query" in wrong.output
