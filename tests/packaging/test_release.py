"""A release is made of a commit alone, twice the same, and works without pip."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import numpy
import pyspark
import pytest

from statestore import __version__
from statestore.core.version import SPARK_MINORS
from tools.maven import GROUP, add_checksums, add_jar, artifact_of, folder_of
from tools.release_checks import (
    ReleaseError,
    check_clean,
    check_contents,
    check_tags,
    notes_of,
)
from tools.shim_jar import build_jar, sources_of
from tools.spark_jars import INSTALLED, release_of

from .test_wheel import JOB, ROOT, clean_environment, run

COORDINATES = {minor: f"{GROUP}:{artifact_of(minor)}:{__version__}" for minor in SPARK_MINORS}


def git(*arguments: str, cwd: Path) -> None:
    """Run git as somebody."""
    somebody = ["-c", "user.name=somebody", "-c", "user.email=somebody@example.com"]
    subprocess.run(["git", *somebody, *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clean checkout of one file, without tags."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    git("init", cwd=checkout)
    (checkout / "file").write_text("committed")
    git("add", "file", cwd=checkout)
    git("commit", "-m", "first", cwd=checkout)
    return checkout


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda path: (path / "file").write_text("changed"), id="changed"),
        pytest.param(lambda path: (path / "file").unlink(), id="deleted"),
        pytest.param(lambda path: (path / "new file").write_text(""), id="added"),
    ],
)
def test_checkout_that_differs_from_its_commit_is_refused(
    change: Callable[[Path], None], checkout: Path
) -> None:
    """Catches a release that nobody can build again."""
    check_clean(checkout)
    change(checkout)

    with pytest.raises(
        ReleaseError, match=r"the checkout differs from its commit: .*file.*number=1"
    ):
        check_clean(checkout)


def test_directory_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    """Catches a release of an unpacked sdist, whose commit nobody knows."""
    with pytest.raises(ReleaseError, match=r"this is no checkout: .* To fix: "):
        check_clean(tmp_path)


@pytest.mark.parametrize("tags", [(), ("v1.2.0",), ("v1.2.0", "tried")])
def test_tag_of_the_version_is_taken(tags: tuple[str, ...], checkout: Path) -> None:
    """Catches a check that lets nothing through."""
    for tag in tags:
        git("tag", tag, cwd=checkout)

    check_tags(checkout, "1.2.0")


@pytest.mark.parametrize("tags", [("v1.2.1",), ("v1.2.0", "v1.2.1"), ("v1.2",)])
def test_tag_of_another_version_is_refused(tags: tuple[str, ...], checkout: Path) -> None:
    """Catches files that say of themselves to be another version than their tag."""
    for tag in tags:
        git("tag", tag, cwd=checkout)

    with pytest.raises(ReleaseError, match=r"tag and version differ: .*version='1\.2\.0'"):
        check_tags(checkout, "1.2.0")


def test_version_that_another_commit_is_tagged_as_is_refused(checkout: Path) -> None:
    """Catches two releases of one name with different bytes."""
    git("tag", "v1.2.0", cwd=checkout)
    (checkout / "file").write_text("changed")
    git("commit", "--all", "-m", "second", cwd=checkout)

    with pytest.raises(ReleaseError, match=r"another commit is this version: tag='v1\.2\.0'"):
        check_tags(checkout, "1.2.0")


def test_notes_are_the_section_of_the_version() -> None:
    """Catches notes of another version, or with a part of them."""
    changelog = "# Changelog\n\n## [1.2.0]\n\n### Added\n\n- One.\n\n## [1.1.0]\n\n- Two.\n"

    assert notes_of(changelog, "1.2.0") == "### Added\n\n- One.\n"
    assert notes_of((ROOT / "CHANGELOG.md").read_text(), __version__).startswith("### Added\n")


@pytest.mark.parametrize(
    ("changelog", "expected"),
    [
        ("# Changelog\n", "changelog and version differ: first_section=''"),
        ("## [1.1.0]\n\n- Two.\n", "changelog and version differ: first_section='[1.1.0]'"),
        ("## [1.2.01]\n\n- Two.\n", "changelog and version differ: first_section='[1.2.01]'"),
        ("## [Unreleased]\n\n- Two.\n\n## [1.2.0]\n\n- One.\n", "first_section='[Unreleased]'"),
        ("## [1.2.0]\n\n## [1.1.0]\n\n- Two.\n", "the changelog says nothing of the version"),
    ],
)
def test_changelog_of_another_version_is_refused(changelog: str, expected: str) -> None:
    """Catches a release whose changes nobody wrote down, or wrote under another version."""
    with pytest.raises(ReleaseError, match=re.escape(expected)):
        notes_of(changelog, "1.2.0")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (["a"], r"lacking=\['b'\], extra=\[\]"),
        (["a", "b", "secret"], r"lacking=\[\], extra=\['secret'\]"),
        (["a", "b", "b"], r"lacking=\[\], extra=\['b'\]"),
    ],
)
def test_archive_with_other_files_is_refused(found: list[str], expected: str) -> None:
    """Catches a package that lacks a file, or publishes one that lay around."""
    check_contents("wheel", ["b", "a"], ["a", "b"])

    with pytest.raises(ReleaseError, match=expected):
        check_contents("wheel", found, ["a", "b"])


def test_repository_has_all_sources_of_a_jar_and_its_pom(tmp_path: Path) -> None:
    """Catches sources that overwrite each other in the archive, and a POM of another jar."""
    add_jar(tmp_path, INSTALLED, build_jar())
    folder = folder_of(tmp_path, INSTALLED)
    stem = f"{artifact_of(INSTALLED)}-{__version__}"

    with zipfile.ZipFile(folder / f"{stem}-sources.jar") as archive:
        sources = {name: archive.read(name) for name in archive.namelist()}
    pom = Xml.parse(folder / f"{stem}.pom").getroot()  # noqa: S314 (made above)

    scala = sorted(content for name, content in sources.items() if name.endswith(".scala"))
    assert scala == sorted(path.read_bytes() for path in sources_of(INSTALLED))
    for name, content in sources.items():
        if name.endswith(".scala"):
            package = name.rpartition("/")[0].replace("/", ".")
            assert f"package {package}\n".encode() in content
    texts = {element.tag.partition("}")[2]: element.text for element in pom}
    assert f"{texts['groupId']}:{texts['artifactId']}:{texts['version']}" == COORDINATES[INSTALLED]
    versions = [element.text for element in pom.iter("{http://maven.apache.org/POM/4.0.0}version")]
    assert versions == [__version__, release_of(INSTALLED)]


def test_every_file_of_a_repository_has_its_checksums(tmp_path: Path) -> None:
    """Catches a file that changed after its checksum was taken, and checksums of checksums."""
    add_jar(tmp_path, INSTALLED, build_jar())
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}

    add_checksums(tmp_path)

    found = {path.name: path for path in tmp_path.rglob("*") if path.is_file()}
    checksums = {f"{name}.{kind}" for name in names for kind in ("md5", "sha1", "sha256")}
    assert set(found) == names | checksums
    for name in checksums:
        content = found[name.rpartition(".")[0]].read_bytes()
        kind = name.rpartition(".")[2]
        assert found[name].read_text() == hashlib.new(kind, content).hexdigest()


def release_in(checkout: Path, *, umask: int = 0o022, **environment: str) -> Path:
    """Make a release of this repository's commit in a new clone; return its dist."""
    git("clone", "--quiet", str(ROOT), str(checkout), cwd=ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "tools.release"],
        cwd=checkout,
        env={**os.environ, **environment},
        umask=umask,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return checkout / "dist"


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the commit that is checked out."""
    return release_in(tmp_path_factory.mktemp("first") / "clone")


def contents_of(directory: Path) -> dict[str, str]:
    """Return digests of all files below a directory by path."""
    return {
        str(path.relative_to(directory)): sha256(path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(3600)
@pytest.mark.xdist_group("release")
class TestRelease:
    """What takes all jars, compiled anew."""

    def test_bills_of_materials_name_what_was_released(self, released: Path) -> None:
        """Catches a bill of other files, and needs that are left out or not the tested ones."""
        (wheel,) = released.glob("*.whl")
        (sdist,) = released.glob("*.tar.gz")
        pins = dict(
            line.lower().replace("_", "-").split("==")
            for line in (ROOT / "constraints.txt").read_text().splitlines()
            if "==" in line
        )
        engine = {"google-crc32c", "numpy", "py4j", "pyarrow"}

        bill = json.loads((released / f"statestore-{__version__}.cdx.json").read_text())
        subject = bill["metadata"]["component"]
        needed = {part["name"]: part for part in bill["components"]}

        assert subject["purl"] == f"pkg:pypi/statestore@{__version__}"
        assert {
            reference["url"]: hash_of(reference) for reference in subject["externalReferences"]
        } == {path.name: sha256(path.read_bytes()) for path in (wheel, sdist)}
        with zipfile.ZipFile(wheel) as archive:
            bundled = {
                sha256(archive.read(name))
                for name in archive.namelist()
                if name.endswith((".jar", ".min.js"))
            }
        assert {hash_of(part) for part in subject["components"]} == bundled
        assert len(bundled) == 5
        assert {name: part["version"] for name, part in needed.items()} == {
            name: pins[name] for name in needed
        }
        assert {name for name, part in needed.items() if part["scope"] == "required"} == engine
        assert {"pyspark", "rocksdict", "boto3", "botocore", "markupsafe"} < set(needed)

        for minor in SPARK_MINORS:
            folder = folder_of(released / "maven", minor)
            stem = f"{artifact_of(minor)}-{__version__}"
            bill = json.loads((folder / f"{stem}-cyclonedx.json").read_text())
            subject = bill["metadata"]["component"]
            assert hash_of(subject) == sha256((folder / f"{stem}.jar").read_bytes())
            assert {part["name"] for part in bill["components"]} == {*engine, "spark-sql_2.13"}

    def test_spark_resolves_the_jar_of_each_spark(self, released: Path, tmp_path: Path) -> None:
        """Catches coordinates, a POM or checksums that Spark does not take."""
        (tmp_path / "nothing.py").write_text("")

        submit(released, *COORDINATES.values(), job=[tmp_path / "nothing.py"], cwd=tmp_path)

        resolved = {path.name: path.read_bytes() for path in (tmp_path / "ivy/jars").iterdir()}
        assert resolved == {
            f"{GROUP}_{artifact_of(minor)}-{__version__}.jar": (
                folder_of(released / "maven", minor) / f"{artifact_of(minor)}-{__version__}.jar"
            ).read_bytes()
            for minor in SPARK_MINORS
        }

    def test_query_runs_by_coordinates_alone(self, released: Path, tmp_path: Path) -> None:
        """Catches a jar that needs the package beside it, or does not say what to install.

        The Python of engines has no pip and no statestore: its packages were put there.
        """
        run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "python", cwd=tmp_path)
        python = tmp_path / "python/bin/python"
        query = [JOB, "", "embedded"]
        here = Path(numpy.__file__).parents[1]
        (there,) = (tmp_path / "python").glob("lib/python3.*/site-packages")

        bare = submit(released, COORDINATES[INSTALLED], job=query, cwd=tmp_path, python=python)
        for path in here.iterdir():
            if re.fullmatch(r"(numpy|pyarrow|google_crc32c)(\.libs)?", path.name):
                (there / path.name).symlink_to(path)
        good = submit(released, COORDINATES[INSTALLED], job=query, cwd=tmp_path, python=python)
        query[-1] = "installed"
        lacking = submit(released, COORDINATES[INSTALLED], job=query, cwd=tmp_path, python=python)

        assert bare.returncode != 0
        fix = "To fix: set spark.pyspark.python to a Python 3.11 or later in which `pip install {}`"
        assert fix.format("pyarrow numpy google-crc32c") in bare.stderr
        assert good.returncode == 0, good.stderr[-4000:]
        assert good.stdout.splitlines()[-1] == "a=1 b=2"
        assert lacking.returncode != 0
        assert fix.format(f"statestore=={__version__}") in lacking.stderr

    def test_two_clones_release_the_same_bytes(self, released: Path, tmp_path: Path) -> None:
        """Catches a path, a time, an order or a mode of the machine in what is published."""
        again = release_in(
            tmp_path / "another and longer place" / "of it",
            umask=0o077,
            TZ="Asia/Tokyo",
            LC_ALL="C",
            PYTHONHASHSEED="7",
            SOURCE_DATE_EPOCH="1234567890",
        )

        assert len(contents_of(released)) == 4 + len(SPARK_MINORS) * 4 * 4
        assert contents_of(again) == contents_of(released)


def submit(
    released: Path, *packages: str, job: list[str | Path], cwd: Path, python: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a job by spark-submit, with jars from the repository of a release."""
    spark = Path(pyspark.__file__).parent
    confs = {
        "spark.jars.ivy": cwd / "ivy",
        "spark.pyspark.driver.python": sys.executable,
        "spark.pyspark.python": python or sys.executable,
    }
    command = [
        spark / "bin" / "spark-submit",
        *("--packages", ",".join(packages)),
        *("--repositories", (released / "maven").as_uri()),
        *(word for name, value in confs.items() for word in ("--conf", f"{name}={value}")),
        *job,
    ]
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**clean_environment(), "SPARK_HOME": str(spark)},
        capture_output=True,
        text=True,
        check=False,
    )


def sha256(content: bytes) -> str:
    """Return the digest of bytes in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def hash_of(part: dict[str, Any]) -> str:
    """Return the one digest that a bill of materials has of a part."""
    (stated,) = part["hashes"]
    assert stated["alg"] == "SHA-256"
    return str(stated["content"])
