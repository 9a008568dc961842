"""Wheel and sdist work where nothing else of the repository is, and are not built without a jar."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pyspark
import pytest

from statestore import __version__
from statestore.core.version import SPARK_MINORS
from tests.checkpoints import DEFAULT, write_checkpoint
from tools.shim_jar import build_jar

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("counting_job.py")
BUILD_INPUTS = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "build.sh",
    "constraints.txt",
    "docs/configuration.md",
    "docs/errors",
    "jvm-shim",
    "tools",
    "statestore",
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def clean_environment() -> dict[str, str]:
    """Return the environment, with nothing of this checkout in it."""
    of_checkout = ("PYTHON", "PYSPARK", "SPARK", "STATESTORE", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(of_checkout)}


def run(*command: str | Path, cwd: Path) -> str:
    """Return what a command prints in a clean environment."""
    done = subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
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


def build(source: Path, output: Path, kind: str = "wheel") -> Path:
    """Build the wheel or the sdist of a source tree and return it."""
    built = run_build(source, output, kind)
    assert built.returncode == 0, built.stdout + built.stderr
    (package,) = (path for path in output.iterdir() if path.suffix in (".whl", ".gz"))
    return package


def run_build(source: Path, output: Path, kind: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel or the sdist of a source tree, if it can be."""
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", output]
    return subprocess.run([*map(str, command), str(source)], capture_output=True, text=True)


def link_spark(environment: Path) -> None:
    """Have an environment the Spark of this one: the largest of what is installed, and not ours."""
    (packages,) = environment.glob("lib/python3.*/site-packages")
    for path in Path(pyspark.__file__).parents[1].glob("pyspark*"):
        (packages / path.name).symlink_to(path)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This checkout, as if there were no other Spark than the installed one."""
    source = tmp_path_factory.mktemp("packages") / "source"
    copy_inputs(source)
    jars = source / "statestore" / "jars"
    jars.mkdir()
    shutil.copy(build_jar(), jars)
    only = f"{pyspark.__version__} {pyspark.__version__}\n"
    (source / "jvm-shim" / "spark-releases.txt").write_text(only)
    return source


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """The wheel of that checkout."""
    return build(source, source.parent / "wheel")


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

    with zipfile.ZipFile(build(ROOT, tmp_path)) as archive:
        assert jars_of(archive.namelist()) == [
            f"statestore-shim_2.13-spark{spark}-{__version__}.jar" for spark in SPARK_MINORS
        ]


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_package_is_refused_when_the_jar_is_not_built(kind: str, tmp_path: Path) -> None:
    """Catches a release that no executor could load."""
    copy_inputs(tmp_path / "source")

    built = run_build(tmp_path / "source", tmp_path / "dist", kind)

    assert built.returncode != 0
    assert f"the {kind} needs a jar for each Spark" in built.stdout + built.stderr
    assert "To fix: ./build.sh wheel" in built.stdout + built.stderr


@pytest.mark.parametrize("kind", ["wheel", pytest.param("sdist", marks=pytest.mark.extended)])
def test_package_serves_a_query_in_an_empty_environment(
    kind: str, wheel: Path, source: Path, tmp_path: Path
) -> None:
    """Catches anything that works only beside the checkout; the restart uses the other package.

    An sdist is built where it is installed, by what pip fetches for that alone.
    """
    package = wheel if kind == "wheel" else build(source, tmp_path / "sdist", kind)
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    link_spark(environment)
    binaries = environment / "bin"
    pip = [sys.executable, "-m", "pip", "--python", binaries / "python"]
    # What is imported is compiled then: most of what Spark brings never is.
    install = ["install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt"]
    run(*pip, *install, f"{package}[cli,spark]", cwd=tmp_path)
    job = shutil.copy(JOB, tmp_path / "job.py")

    jar = run(binaries / "statestore", "jar", cwd=tmp_path).strip()
    page = run(binaries / "statestore", "explain", "corruption", cwd=tmp_path)
    first = run(binaries / "python", job, jar, "installed", cwd=tmp_path)
    second = run(binaries / "python", job, jar, "embedded", cwd=tmp_path)

    assert Path(jar).is_relative_to(environment)
    assert page == (ROOT / "docs" / "errors" / "corruption.md").read_text()
    assert first.splitlines()[-1] == "a=1 b=2"
    assert second.splitlines()[-1] == "a=2 b=4"


@pytest.mark.extended
def test_commands_run_on_the_oldest_packages_that_are_allowed(wheel: Path, tmp_path: Path) -> None:
    """Catches a lower bound below what the code needs: pip keeps what is there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    allowed = [*project["dependencies"], *itertools.chain.from_iterable(extras.values())]
    oldest = (re.match(r"([\w-]+)>=([\w.]+)", one) for one in allowed)
    constraints = tmp_path / "oldest.txt"
    constraints.write_text("".join(f"{one[1]}=={one[2]}\n" for one in oldest if one))
    environment = tmp_path / "environment"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    run(*pip, "-c", constraints, f"{wheel}[avro,cli,rocksdb,s3,ui]", cwd=tmp_path)
    checkpoint = tmp_path / "checkpoint"
    rows = {"default": {("a", 1): (2, "b")}}
    write_checkpoint(checkpoint, [rows], families=(DEFAULT,), backend="rocksdb")

    for command, *arguments in (
        ["--help"],
        ["list", checkpoint],
        ["verify", "--deep", checkpoint],
        ["sql", checkpoint, "SELECT key, value FROM state"],
        ["report", checkpoint, "--to", tmp_path / "page.html"],
    ):
        assert run(environment / "bin" / "statestore", command, *arguments, cwd=tmp_path)
