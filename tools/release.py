"""Makes all that a release is, in dist/: `python -m tools.release`, from a clean checkout.

    statestore-VERSION-py3-none-any.whl, statestore-VERSION.tar.gz
    statestore-VERSION.cdx.json     bill of materials of both
    release-notes.md                the section of CHANGELOG.md
    maven/                          a repository: a jar for each Spark, its sources, POM, bill of
                                    materials, checksums

Two runs at one commit, wherever the checkouts lie, make the same bytes under the same versions of
Python and Java.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from statestore.core.version import __version__
from tools.maven import add_checksums, add_jar, artifact_of, folder_of
from tools.release_checks import (
    ReleaseError,
    check_clean,
    check_contents,
    check_tags,
    git,
    notes_of,
)
from tools.sbom import jar_bom, wheel_bom
from tools.shim_jar import JARS, ROOT, build_jar
from tools.spark_jars import RELEASES

DIST = ROOT / "dist"
_METADATA = ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")
_ALWAYS_IN_SDIST = (".gitignore", "LICENSE", "README.md", "pyproject.toml")


def release() -> None:
    """Make a release, check it, and put it into dist/.

    Guarantee: when dist/ is there afterwards, it holds all of one release and nothing else.

    Raises:
        ReleaseError: The checkout is not to be released, or a built file holds something else than
            it should.
        subprocess.CalledProcessError: A program failed, and has said why.
    """
    check_clean(ROOT)
    check_tags(ROOT, __version__)
    notes = notes_of((ROOT / "CHANGELOG.md").read_text(), __version__)
    seconds = git(ROOT, "log", "-1", "--format=%ct").strip()
    shutil.rmtree(DIST, ignore_errors=True)
    jars = {minor: build_jar(minor) for minor in RELEASES}
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as work:
        output = Path(work, "dist")
        wheel, sdist = _build_packages(output, seconds)
        _check_packages(wheel, sdist)
        made = datetime.fromtimestamp(int(seconds), UTC)
        bom = output / f"statestore-{__version__}.cdx.json"
        bom.write_text(wheel_bom(wheel, sdist, jars, made))
        repository = output / "maven"
        for minor, jar in jars.items():
            add_jar(repository, minor, jar)
            name = f"{artifact_of(minor)}-{__version__}-cyclonedx.json"
            (folder_of(repository, minor) / name).write_text(jar_bom(minor, jar, wheel, made))
        add_checksums(repository)
        (output / "release-notes.md").write_text(f"# statestore {__version__}\n\n{notes}")
        output.rename(DIST)


def _build_packages(output: Path, seconds: str) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; check both as an index does.

    Returns:
        Wheel and sdist.
    """
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(output), str(ROOT)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": seconds}
    subprocess.run(build, check=True, env=environment, stdout=sys.stderr, timeout=600)
    (wheel,) = output.glob("*.whl")
    (sdist,) = output.glob("*.tar.gz")
    check = [sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)]
    subprocess.run(check, check=True, stdout=sys.stderr, timeout=600)
    return wheel, sdist


def _check_packages(wheel: Path, sdist: Path) -> None:
    """Compare what both hold with what is committed.

    Raises:
        ReleaseError: As `check_contents`.
    """
    tracked = [path for path in git(ROOT, "ls-files", "-z").split("\0") if path]
    jars = [f"statestore/jars/{path.name}" for path in JARS.glob("*.jar")]
    documents = [
        f"statestore/cli/documents/{path.removeprefix('docs/')}"
        for path in tracked
        if path.startswith(("docs/errors/", "docs/configuration.md"))
    ]
    package = [path for path in tracked if path.startswith("statestore/")]
    metadata = [f"{wheel.name.partition('-py3')[0]}.dist-info/{name}" for name in _METADATA]
    with zipfile.ZipFile(wheel) as archive:
        check_contents(wheel.name, archive.namelist(), package + documents + jars + metadata)

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    roots = tuple(f"{path.removeprefix('/')}/" for path in [*included, *_ALWAYS_IN_SDIST])
    source = [path for path in tracked if f"{path}/".startswith(roots)]
    folder = sdist.name.removesuffix(".tar.gz")
    expected = [f"{folder}/{path}" for path in [*source, *jars, "PKG-INFO"]]
    with tarfile.open(sdist) as archive:
        check_contents(sdist.name, archive.getnames(), expected)


def _main() -> int:
    try:
        release()
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError:
        return 1
    for path in sorted(DIST.iterdir()):
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(_main())
