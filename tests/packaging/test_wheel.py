"""The wheel works where nothing else of this repository is, and is not built without its jar."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from statestore import __version__
from statestore.core.version import SPARK_MINORS
from tools.shim_jar import build_jar

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("counting_job.py")
BUILD_INPUTS = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "docs/configuration.md",
    "docs/errors",
    "jvm-shim",
    "tools",
    "statestore",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command prints, with nothing of this checkout in its environment."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "PYSPARK", "SPARK", "STATESTORE", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def copy_inputs(target: Path) -> None:
    """Copy what a wheel is built from, but for the jars."""
    target.mkdir()
    for name in BUILD_INPUTS:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("jars", "__pycache__")
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
        else:
            (target / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, target / name)


def jars_of(names: list[str]) -> list[str]:
    """Return the names of the jars among the entries of a wheel."""
    folder = "statestore/jars/"
    return sorted(name.removeprefix(folder) for name in names if name.startswith(folder))


def build_wheel(source: Path, output: Path) -> Path:
    """Build the wheel of a source tree and return it."""
    built = run_build(source, output)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(output.glob("*.whl"))


def run_build(source: Path, output: Path) -> subprocess.CompletedProcess[str]:
    """Build the wheel of a source tree, if it can be."""
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(output)]
    return subprocess.run([*command, str(source)], capture_output=True, text=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, as if there were no other Spark than the installed one."""
    work = tmp_path_factory.mktemp("wheel")
    copy_inputs(work / "source")
    jars = work / "source" / "statestore" / "jars"
    jars.mkdir()
    shutil.copy(build_jar(), jars)
    only = f"{pyspark.__version__} {pyspark.__version__}\n"
    (work / "source" / "jvm-shim" / "spark-releases.txt").write_text(only)
    return build_wheel(work / "source", work)


def test_wheel_holds_the_jar_and_nothing_but_the_package(wheel: Path) -> None:
    """Catches a wheel without its jar, or with tests and tools in it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()

    assert wheel.name == f"statestore-{__version__}-py3-none-any.whl"
    assert jars_of(names) == [build_jar().name]
    assert "statestore/py.typed" in names
    assert "statestore/cli/documents/errors/corruption.md" in names
    assert "statestore/cli/documents/configuration.md" in names
    assert {name.split("/")[0] for name in names} == {
        "statestore",
        f"statestore-{__version__}.dist-info",
    }


@pytest.mark.extended
def test_wheel_holds_the_jar_of_every_spark(tmp_path: Path) -> None:
    """Catches a release that one of the Sparks cannot load."""
    for spark in SPARK_MINORS:
        build_jar(spark)

    with zipfile.ZipFile(build_wheel(ROOT, tmp_path)) as archive:
        assert jars_of(archive.namelist()) == [
            f"statestore-shim_2.13-spark{spark}-{__version__}.jar" for spark in SPARK_MINORS
        ]


def test_wheel_is_refused_when_the_jar_is_not_built(tmp_path: Path) -> None:
    """Catches a release that no executor could load."""
    copy_inputs(tmp_path / "source")

    built = run_build(tmp_path / "source", tmp_path / "dist")

    assert built.returncode != 0
    assert "To fix: ./build.sh wheel" in built.stdout + built.stderr


def test_wheel_serves_a_query_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """Catches anything that works only beside the checkout; the restart uses the other package."""
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", environment, cwd=tmp_path)
    binaries = environment / "bin"
    install = [binaries / "python", "-m", "pip", "install", "--quiet"]
    run(*install, "-c", ROOT / "constraints.txt", f"{wheel}[cli,spark]", cwd=tmp_path)
    job = shutil.copy(JOB, tmp_path / "job.py")

    jar = run(binaries / "statestore", "jar", cwd=tmp_path).strip()
    page = run(binaries / "statestore", "explain", "corruption", cwd=tmp_path)
    first = run(binaries / "python", job, jar, "installed", cwd=tmp_path)
    second = run(binaries / "python", job, jar, "embedded", cwd=tmp_path)

    assert Path(jar).is_relative_to(environment)
    assert page == (ROOT / "docs" / "errors" / "corruption.md").read_text()
    assert first.splitlines()[-1] == "a=1 b=2"
    assert second.splitlines()[-1] == "a=2 b=4"
