"""Builds the shim jar: the compiled shim, the options table, and the package that engines run.

    python -m tools.shim_jar
    python -m tools.shim_jar --all

There is a jar for each Spark minor: the first makes that of the installed Spark, the second all of
them. A jar is rebuilt only when something that goes into it changed, and holds the digests that
tell. Its bytes depend on its inputs alone: entries are sorted and carry one fixed date.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

from statestore.core.version import __version__
from tools.option_table import table_json
from tools.scala import SCALAC_FLAGS, compile_scala
from tools.spark_jars import INSTALLED, OLDEST, RELEASES, jars_of, release_of

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / "statestore" / "jars"
SOURCES = ROOT / "jvm-shim" / "src"

PACKAGE = "statestore-python"
PY4J = "statestore-py4j"
"""Folders of a jar: the package that engines run, and py4j for a Spark that has no Python."""
ENGINE_LAYERS = ("core", "codec", "io", "checkpoint", "backends", "engine")
"""Subpackages of statestore that an engine process imports."""

MANIFEST = "META-INF/MANIFEST.MF"
SERVICES = {
    "org.apache.spark.sql.SparkSessionExtensionsProvider": (
        "io.statestore.plan.OperatorGate",
        "io.statestore.provider.QueryStarts",
    ),
}
"""What Spark finds in the jar by itself: implementations by interface, of which a jar names those
that its Spark has a use for."""
FIXED_DATE = (1980, 1, 1, 0, 0, 0)


def build_jar(minor: str = INSTALLED) -> Path:
    """Return the jar for a Spark minor, made anew when an input changed.

    Guarantee: the file at the returned path is complete; a failed build leaves the previous jar.

    Raises:
        subprocess.CalledProcessError: The shim does not compile, or Spark's jars cannot be
            fetched; the program that failed has said why.
    """
    JARS.mkdir(exist_ok=True)
    jar = JARS / f"statestore-shim_2.13-spark{minor}-{__version__}.jar"
    with (JARS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = sources_of(minor)
        shim_digest = _digest(minor, [(str(p.relative_to(ROOT)), p.read_bytes()) for p in sources])
        resources = _resources(minor)
        package_digest = _digest(minor, resources.items())
        built = _manifest_fields(jar)
        if (built.get("Shim-Digest"), built.get("Package-Digest")) == (shim_digest, package_digest):
            return jar
        if built.get("Shim-Digest") == shim_digest:
            classes = _classes_of(jar)
        else:
            print(f"compiling {len(sources)} Scala files for Spark {minor}", file=sys.stderr)
            classes = _compile(sources, minor)
        manifest = {
            "Manifest-Version": "1.0",
            "Implementation-Title": "statestore-shim",
            "Implementation-Version": __version__,
            "Spark-Version": minor,
            "Shim-Digest": shim_digest,
            "Package-Digest": package_digest,
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in manifest.items()) + "\r\n"
        partial = jar.with_suffix(".partial")
        services = _services(classes)
        write_zip(partial, {MANIFEST: text.encode()}, {**classes, **services, **resources})
        for other in JARS.glob("*.jar"):
            if not other.name.endswith(f"-{__version__}.jar"):
                other.unlink()
        partial.replace(jar)
    return jar


def sources_of(minor: str) -> list[Path]:
    """Return the Scala files of a jar: what every Spark shares, and what is bound to some.

    A folder says to which: `spark-4.1` is for that minor alone, `since-4.1` for it and later ones,
    `until-4.1` for it and earlier ones.
    """
    wanted = [SOURCES / "main"]
    for folder in (SOURCES / "compat").iterdir():
        kind, _, bound = folder.name.partition("-")
        order = _number(minor) - _number(bound)
        if {"spark": order == 0, "since": order >= 0, "until": order <= 0}[kind]:
            wanted.append(folder)
    return sorted(path for folder in wanted for path in folder.rglob("*.scala"))


def _number(minor: str) -> int:
    major, number = map(int, minor.split("."))
    return 1000 * major + number


def _services(classes: dict[str, bytes]) -> dict[str, bytes]:
    return {
        f"META-INF/services/{interface}": "".join(
            f"{name}\n" for name in names if f"{name.replace('.', '/')}.class" in classes
        ).encode()
        for interface, names in SERVICES.items()
    }


def _resources(minor: str) -> dict[str, bytes]:
    """Return what a jar holds beside classes: content by entry name."""
    package = ROOT / "statestore"
    files = [package / "__init__.py", package / "py.typed"]
    for layer in ENGINE_LAYERS:
        files += (package / layer).rglob("*.py")
    embedded = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted(files)}
    return {
        "META-INF/LICENSE": (ROOT / "LICENSE").read_bytes(),
        **_py4j(),
        "io/statestore/version": f"{__version__}\n".encode(),
        "io/statestore/spark": f"{OLDEST[minor]}\n".encode(),
        "io/statestore/sparks": f"{' '.join(OLDEST)}\n".encode(),
        "io/statestore/options.json": json.dumps(json.loads(table_json()), indent=1).encode(),
        **_folder(PACKAGE, embedded),
    }


def _folder(name: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files that the shim writes to a disk, with an index of them."""
    index = "".join(f"{path}\n" for path in sorted(files)).encode()
    return {f"{name}/INDEX": index, **{f"{name}/{path}": files[path] for path in files}}


def _py4j() -> dict[str, bytes]:
    """Return the installed py4j without its tests, and its licence."""
    found = distribution("py4j")
    texts = [file for file in found.files or () if file.name == "LICENSE.txt"]
    files = {
        str(file): Path(str(file.locate())).read_bytes()
        for file in found.files or ()
        if file.suffix == ".py" and file.parts[0] == "py4j" and "tests" not in file.parts
    }
    licence = Path(str(texts[0].locate())).read_bytes()
    return {"META-INF/LICENSE-py4j": licence, **_folder(PY4J, files)}


def _digest(minor: str, entries: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.sha256()
    digest.update(f"{release_of(minor)} {SCALAC_FLAGS}".encode())
    for name, content in entries:
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:32]


def _compile(sources: list[Path], minor: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="classes-", dir=JARS) as output:
        compile_scala(sources, Path(output), spark_jars=jars_of(minor))
        return {
            str(path.relative_to(output)): path.read_bytes()
            for path in Path(output).rglob("*")
            if path.is_file()
        }


def _manifest_fields(jar: Path) -> dict[str, str]:
    if not jar.exists():
        return {}
    with zipfile.ZipFile(jar) as archive:
        lines = archive.read(MANIFEST).decode().splitlines()
    return dict(line.split(": ", 1) for line in lines if line)


def _classes_of(jar: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(jar) as archive:
        return {name: archive.read(name) for name in archive.namelist() if name.endswith(".class")}


def write_zip(path: Path, *groups: dict[str, bytes]) -> None:
    """Write a zip file whose bytes depend on its entries alone: content by entry name.

    Args:
        path: The file; what is there is overwritten.
        groups: What comes first, what comes after that; the entries of each are sorted.
    """
    with zipfile.ZipFile(path, "w") as archive:
        for group in groups:
            for name, content in sorted(group.items()):
                entry = zipfile.ZipInfo(name, FIXED_DATE)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _main() -> int:
    minors = tuple(RELEASES) if sys.argv[1:] == ["--all"] else (INSTALLED,)
    try:
        for minor in minors:
            print(build_jar(minor).relative_to(ROOT))
    except subprocess.CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
