"""`statestore doctor` tries the real thing, and names what to fix where something is missing."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from click.testing import CliRunner, Result

from statestore import __version__
from statestore.cli.commands import cli
from statestore.core.options import PREFIX
from statestore.core.providers import PROVIDERS
from statestore.io import shim_jar
from statestore.io.shim_jar import JAR_VARIABLE
from tests.s3_server import REGION, WRONG_KEY

STORAGE = [f"storage {name}" for name in ("write", "read", "conditional write", "list", "delete")]
TOO_NEW = f"{pyspark.__version__.rpartition('.')[0]}.99"
CHECKS = ["java", "spark", "jar", "fit", "python", "transformWithState", "engine"]
ALL = [*CHECKS, *STORAGE]
IN_PARTS = "storage conditional write in parts"
# Engines that start on a loaded machine take their time.
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module", autouse=True)
def links_each_jar_once() -> Iterator[None]:
    """Remembers what a jar misses in which jars: to read all classes takes a third of a run."""
    known: dict[Any, Any] = {}
    find = shim_jar.find_missing

    def find_once(shim: Path, jars: Iterable[Path]) -> dict[str, list[str]]:
        asked = shim, *jars
        if asked not in known:
            known[asked] = find(shim, asked[1:])
        return known[asked]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shim_jar, "find_missing", find_once)
        yield


def doctor(*arguments: str, **environment: str | None) -> Result:
    """Run the command with the given changes to the environment."""
    none = {"PYSPARK_PYTHON": None, "SPARK_CONF_DIR": None}
    return CliRunner().invoke(cli, ["doctor", *arguments], env={**none, **environment})


def checks(result: Result) -> dict[str, dict[str, Any]]:
    """Return the checks of an output in JSON, by name."""
    report = json.loads(result.stdout)
    assert report["ok"] == (result.exit_code == 0)
    return {check["name"]: check for check in report["checks"]}


def failed(result: Result) -> list[str]:
    """Return the names of the checks that failed."""
    return [name for name, check in checks(result).items() if check["status"] == "fail"]


def s3_conf(server: Any, **others: str) -> list[str]:
    """Arguments that reach a server."""
    conf = {"s3.endpoint": server.endpoint, "s3.region": REGION, "s3.pathStyle": "true"}
    conf = {**conf, "s3.maxAttempts": "2", **others}
    return [f"--storage-option={key}={value}" for key, value in conf.items()]


@pytest.fixture
def stand_in(tmp_path: Path) -> Any:
    """Makes a program of a name that does what a shell script says; returns its path."""

    def make(name: str, script: str) -> str:
        path = tmp_path / "programs" / name
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


def test_every_check_is_a_line_and_nothing_is_left_behind(tmp_path: Path) -> None:
    """Catches a check that is not tried, and files left on the user's storage."""
    storage = tmp_path / "not yet" / "there"

    result = doctor("--backend=rocksdb", f"--storage={storage}")

    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert [line.partition(":")[0] for line in lines] == [f"OK   {name}" for name in ALL]
    assert "rocksdict" in lines[ALL.index("python")]
    assert list(tmp_path.iterdir()) == []


def test_backend_and_python_are_those_of_the_sessions(tmp_path: Path, stand_in: Any) -> None:
    """Catches a machine found well for a backend that sessions do not use."""
    hide = 'import sys; sys.modules["rocksdict"] = None; exec(sys.argv.pop(1))'
    script = f'[ "$1" = -c ] || exec {sys.executable} "$@"\nshift\n'
    python = stand_in("python", f"{script}exec {sys.executable} -c '{hide}' \"$@\"")
    conf = tmp_path / "spark-defaults.conf"
    conf.write_text(f"# of the cluster\nspark.pyspark.python = {python}\n")
    where = {"SPARK_CONF_DIR": str(tmp_path)}

    found = checks(doctor("--output=json", f"--storage={tmp_path}", **where))
    assert found["rocksdb"]["status"] == "skip"
    assert f"{python} -m pip install rocksdict" in found["rocksdb"]["to_fix"]
    assert found["python"]["status"] == "ok"

    with conf.open("a") as file:
        file.write(f"{PREFIX}providerClass\t{PROVIDERS['rocksdb']}\n")
    result = doctor(f"--storage={tmp_path}", **where)
    assert result.exit_code == 1
    assert f"state backend rocksdb, of {conf}" in result.stderr
    assert f"FAIL python: packages that an engine imports are missing: python='{python}'" in (
        result.output
    )


def test_heap_has_no_storage_to_check() -> None:
    """Catches a question about a directory that the backend never uses."""
    result = doctor("--backend=heap", "--output=json")

    assert result.exit_code == 0, result.output
    assert list(checks(result)) == CHECKS
    assert checks(result)["transformWithState"]["status"] == "ok"


def test_storage_on_s3_is_tried(s3_server: Any, bucket: str) -> None:
    """Catches a check that passes without asking the server."""
    result = doctor(f"--storage=s3://{bucket}/a/b", "--output=json", *s3_conf(s3_server))

    assert result.exit_code == 0, result.output
    assert [name for name in checks(result) if name != "rocksdb"] == [
        *CHECKS, *STORAGE[:3], IN_PARTS, *STORAGE[3:]
    ]  # fmt: skip
    assert checks(result)["rocksdb"]["status"] == "ok"  # where no backend is named
    assert "boto3" in checks(result)["python"]["detail"]
    assert (s3_server.requests["PUT"], s3_server.requests["COMPLETE"]) == (2 + 3, 1)
    assert s3_server.keys(bucket) == []


@pytest.mark.parametrize(
    ("method", "times", "check"),
    [("PUT", 2, "storage conditional write"), ("COMPLETE", 1, IN_PARTS)],
)
def test_storage_without_conditional_writes_fails_that_check_only(
    s3_server: Any, bucket: str, method: str, times: int, check: str
) -> None:
    """Catches a server on which two writers replace each other's files, small or large."""
    s3_server.fail(method, "unconditional", times)

    result = doctor(f"--storage=s3://{bucket}", "--output=json", *s3_conf(s3_server))

    assert result.exit_code == 1
    assert failed(result) == [check]
    assert "If-None-Match" in checks(result)[check]["to_fix"]
    assert s3_server.keys(bucket) == []


def test_wrong_credentials_are_named_and_not_shown(s3_server: Any, bucket: str) -> None:
    """Catches five errors for one cause, and a secret in an output that people paste."""
    conf = s3_conf(s3_server, **{"s3.accessKey": WRONG_KEY, "s3.secretKey": "not-to-be-seen"})

    result = doctor(f"--storage=s3://{bucket}", "--output=json", *conf)

    assert result.exit_code == 1
    assert failed(result) == ["storage write"]
    assert {checks(result)[name]["status"] for name in STORAGE[1:]} == {"skip"}
    assert "not-to-be-seen" not in result.output


def test_directory_that_cannot_be_written_fails_with_its_path(tmp_path: Path) -> None:
    """Catches a storage that only the first batch would have complained about."""
    file = tmp_path / "file"
    file.touch()

    result = doctor(f"--storage=file:{file}/state")

    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if line.startswith("FAIL")]
    assert line.startswith("FAIL storage write: ")
    assert str(file) in line
    assert "To fix: " in line


def test_storage_that_only_hadoop_opens_is_tried_through_it(tmp_path: Path) -> None:
    """Catches a storage that is called well unseen, and a Java stack trace."""
    mount = (
        f"--storage-option=spark.hadoop.fs.viewfs.mounttable.doctor.link./data={tmp_path.as_uri()}"
    )

    result = doctor("--storage=viewfs://doctor/data/a/b", "--output=json", mount)
    unreachable = doctor("--storage=hdfs://127.0.0.1:1/state", "--output=json")

    assert result.exit_code == 0, result.output
    assert {checks(result)[name]["status"] for name in STORAGE} == {"ok"}
    assert list(tmp_path.iterdir()) == []
    assert unreachable.exit_code == 1
    assert "ConnectException" in checks(unreachable)["storage write"]["detail"]
    assert checks(unreachable)["storage read"]["status"] == "skip"


def test_python_without_packages_fails_with_the_pip_line(tmp_path: Path) -> None:
    """Catches a check of the command's own Python instead of the engines'."""
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")

    result = doctor(f"--python={python}", f"--storage={tmp_path}", "--output=json")

    assert result.exit_code == 1
    assert failed(result) == ["python"]
    install = f"{python} -m pip install pyarrow numpy google-crc32c"
    assert install in checks(result)["python"]["to_fix"]
    assert checks(result)["engine"]["status"] == "skip"


def test_packages_that_are_too_old_fail_though_their_modules_do_not_tell(tmp_path: Path) -> None:
    """Catches a machine found well, whose engines fail with their first load or commit."""
    for name, version in (("rocksdict", "0.3.9"), ("google_crc32c", "1.1.2")):
        folder = tmp_path / "installed" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    path = os.pathsep.join([str(tmp_path / "installed"), os.environ.get("PYTHONPATH", "")])
    how = ("--output=json", f"--storage={tmp_path}")

    found = checks(doctor("--backend=rocksdb", *how, PYTHONPATH=path))
    shutil.rmtree(folder)  # that of what every engine imports
    unnamed = checks(doctor(*how, PYTHONPATH=path))

    assert found["python"]["status"] == "fail"
    assert "google_crc32c 1.1.2, rocksdict 0.3.9" in found["python"]["detail"]
    assert "'google-crc32c>=1.6' 'rocksdict>=0.3.29'" in found["python"]["to_fix"]
    assert unnamed["python"]["status"] == "ok"
    assert unnamed["rocksdb"]["status"] == "skip"
    assert "pip install 'rocksdict>=0.3.29'" in unnamed["rocksdb"]["to_fix"]


def test_checksums_of_pure_python_fail_with_the_pip_line(stand_in: Any) -> None:
    """Catches a machine found well, whose engines write and read two megabytes a second."""
    hide = 'import sys; sys.modules["google_crc32c.cext"] = None; exec(sys.argv.pop(1))'
    script = f'[ "$1" = -c ] || exec {sys.executable} "$@"\nshift\n'
    python = stand_in("python", f"{script}exec {sys.executable} -c '{hide}' \"$@\"")

    result = doctor("--backend=heap", "--output=json", f"--python={python}")

    assert failed(result) == ["python"]
    assert "google_crc32c" in checks(result)["python"]["detail"]
    assert f"{python} -m pip install --force-reinstall" in checks(result)["python"]["to_fix"]


def test_packages_that_few_queries_need_are_named_and_do_not_fail(stand_in: Any) -> None:
    """Catches a query of `transformWithState` that dies with its first Python worker."""
    hide = 'import sys; sys.modules["google.protobuf"] = None; exec(sys.argv.pop(1))'
    script = f'[ "$1" = -c ] || exec {sys.executable} "$@"\nshift\n'
    python = stand_in("python", f"{script}exec {sys.executable} -c '{hide}' \"$@\"")

    result = doctor("--backend=heap", "--output=json", f"--python={python}")

    assert result.exit_code == 0, result.output
    check = checks(result)["transformWithState"]
    assert check["status"] == "skip"
    assert f"{python} -m pip install protobuf, on every executor" in check["to_fix"]


def test_python_that_is_not_there_fails(tmp_path: Path) -> None:
    """Catches a traceback for a path with a typo."""
    result = doctor("--backend=heap", "--output=json", PYSPARK_PYTHON=str(tmp_path / "python"))

    assert result.exit_code == 1
    assert failed(result) == ["python"]
    assert "PYSPARK_PYTHON" in checks(result)["python"]["detail"]


def test_missing_java_fails(tmp_path: Path) -> None:
    """Catches a Java that is found where Spark would not look."""
    result = doctor("--backend=heap", "--output=json", JAVA_HOME=None, PATH=str(tmp_path))

    assert result.exit_code == 1
    assert failed(result) == ["java"]
    assert "found_by='PATH'" in checks(result)["java"]["detail"]


def test_old_java_fails_with_its_version(stand_in: Any) -> None:
    """Catches a Java that Spark refuses with a class file error."""
    java = stand_in("bin/java", "echo 'openjdk version \"11.0.2\"' >&2")
    home = str(Path(java).parents[1])

    result = doctor("--backend=heap", "--output=json", JAVA_HOME=home)

    assert failed(result) == ["java"]
    assert "found_by='JAVA_HOME', version='11.0.2'" in checks(result)["java"]["detail"]


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        (
            {"io/statestore/version": "99.0.0", "io/statestore/spark": "4.3.0"},
            f"jar='99.0.0', package={__version__!r}",
        ),
        (
            {"io/statestore/version": __version__, "io/statestore/spark": "3.5.1"},
            "the jar is for another Spark: jar='3.5'",
        ),
        (
            {"io/statestore/version": __version__, "io/statestore/spark": TOO_NEW},
            f"this patch release of Spark lacks what the jar needs: spark={pyspark.__version__!r}, "
            f"oldest={TOO_NEW!r}",
        ),
        ({"other": ""}, "the file is not a jar of the shim"),
    ],
)
def test_wrong_jar_fails(tmp_path: Path, entries: dict[str, str], problem: str) -> None:
    """Catches a jar whose engines would refuse every query."""
    jar = tmp_path / "shim.jar"
    with zipfile.ZipFile(jar, "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)

    result = doctor("--backend=heap", "--output=json", **{JAR_VARIABLE: str(jar)})

    assert failed(result) == ["jar"]
    assert problem in checks(result)["jar"]["detail"]
    assert checks(result)["engine"]["status"] == "skip"


def test_build_of_a_vendor_that_lacks_something_fails_with_what_it_lacks(tmp_path: Path) -> None:
    """Catches a Spark that is taken for the right one by the name of its version."""
    (tmp_path / "jars").mkdir()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar"):
        if not jar.name.startswith("spark-sql_2.13-"):
            (tmp_path / "jars" / jar.name).symlink_to(jar)

    result = doctor("--backend=heap", "--output=json", SPARK_HOME=str(tmp_path))

    assert failed(result) == ["fit"]
    assert "first='class org/apache/spark/sql/" in checks(result)["fit"]["detail"]
    assert checks(result)["engine"]["status"] == "skip"


def test_pyspark_of_another_spark_than_that_of_spark_home_fails(tmp_path: Path) -> None:
    """Catches two Sparks that are well by themselves, and a session of which hangs."""
    other = "4.1.4" if not pyspark.__version__.startswith("4.1.") else "4.2.1"
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{other}.jar").touch()

    result = doctor("--backend=heap", "--output=json", SPARK_HOME=str(tmp_path))

    found = checks(result)["spark"]
    assert found["status"] == "fail"
    assert f"'pyspark=={other[:3]}.*'" in found["to_fix"]


def test_jar_of_spark_that_is_cut_off_is_named(tmp_path: Path) -> None:
    """Catches a traceback where one of Spark's jars was not copied whole."""
    release = pyspark.__version__
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"spark-core_2.13-{release}.jar").write_bytes(b"PK")

    result = doctor("--backend=heap", "--output=json", SPARK_HOME=str(tmp_path))

    assert failed(result) == ["fit"]
    assert f"spark-core_2.13-{release}.jar" in checks(result)["fit"]["detail"]


def test_spark_home_without_a_spark_is_named_as_what_to_correct(tmp_path: Path) -> None:
    """Catches a fix that installs a Spark, which SPARK_HOME hides."""
    result = doctor("--backend=heap", "--output=json", SPARK_HOME=str(tmp_path))

    assert checks(result)["jar"]["to_fix"].startswith("correct or unset SPARK_HOME")


def test_engine_starts_in_a_python_that_is_a_pex(stand_in: Any) -> None:
    """Catches a package that a Python does not find which goes by PEX_EXTRA_SYS_PATH alone."""
    path = 'case $* in *statestore.engine*) export PYTHONPATH="${PEX_EXTRA_SYS_PATH:?}";; esac'
    python = stand_in("python", f'{path}\nexec {sys.executable} "$@"')

    result = doctor("--backend=heap", "--output=json", f"--python={python}")

    assert checks(result)["engine"]["status"] == "ok"


def test_engine_that_dies_fails_with_its_last_words(stand_in: Any) -> None:
    """Catches an engine that is taken for well because its packages are there."""
    die = "case $* in *statestore.engine*) echo no loopback here >&2; exit 7;; esac"
    python = stand_in("python", f'{die}\nexec {sys.executable} "$@"')

    result = doctor("--backend=heap", "--output=json", f"--python={python}")

    assert failed(result) == ["engine"]
    assert "no loopback here" in checks(result)["engine"]["detail"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--backend=rocks"],
        ["--storage-option=fsync.enabled"],
        ["--storage-option=fsync.enable=true"],
        ["--backend=heap", f"--storage={os.sep}"],
    ],
)
def test_wrong_arguments_are_a_usage_error(arguments: list[str]) -> None:
    """Catches a typo that a script would take for something to fix on the machine."""
    assert doctor(*arguments).exit_code == 2


def test_place_that_cannot_be_looked_at_fails_its_check(tmp_path: Path) -> None:
    """Catches a doctor that dies of what it is to find."""
    result = doctor("--output=json", f"--storage={tmp_path / ('n' * 300) / 'checkpoints'}")

    assert "storage write" in failed(result)
    assert "name too long" in checks(result)["storage write"]["detail"]
