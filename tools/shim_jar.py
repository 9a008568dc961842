"""Builds the shim jar: the compiled shim, the options table, and the package that engines run.

    python -m tools.shim_jar

The jar is rebuilt only when something that goes into it changed, and holds the digests that tell.
Its bytes depend on its inputs alone: entries are sorted and carry one fixed date.
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
from pathlib import Path
from typing import Any

import pyspark

from statestore.core.version import __version__
from tools.option_table import table_json
from tools.scala import SCALAC_FLAGS, compile_scala

ROOT = Path(__file__).resolve().parents[1]
JARS = ROOT / "statestore" / "jars"
SPARK_MINOR = ".".join(pyspark.__version__.split(".")[:2])
SHIM_SOURCES = (
    ROOT / "jvm-shim" / "src" / "main" / "scala",
    ROOT / "jvm-shim" / "src" / "compat" / f"spark-{SPARK_MINOR}",
)
"""What every Spark shares, and what is bound to one minor."""
JAR_NAME = f"statestore-shim_2.13-spark{SPARK_MINOR}-{__version__}.jar"

PACKAGE = "statestore-python"
ENGINE_LAYERS = ("core", "codec", "io", "checkpoint", "backends", "engine")
"""Subpackages of statestore that an engine process imports."""

MANIFEST = "META-INF/MANIFEST.MF"
SERVICES = {
    "org.apache.spark.sql.SparkSessionExtensionsProvider": (
        "io.statestore.plan.OperatorGate",
        "io.statestore.provider.QueryStarts",
    ),
}
"""What Spark finds in the jar by itself: implementations by interface."""
RESOURCES = (
    "io/statestore/version",
    "io/statestore/options.json",
    *(f"META-INF/services/{interface}" for interface in SERVICES),
)
FIXED_DATE = (1980, 1, 1, 0, 0, 0)


def build_jar() -> Path:
    """Return the jar, made anew when an input changed.

    Guarantee: the file at the returned path is complete; a failed build leaves the previous jar.

    Raises:
        subprocess.CalledProcessError: The shim does not compile; the compiler has said why.
    """
    JARS.mkdir(exist_ok=True)
    jar = JARS / JAR_NAME
    with (JARS / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = sorted(path for tree in SHIM_SOURCES for path in tree.rglob("*.scala"))
        shim_digest = _digest([(str(p.relative_to(ROOT)), p.read_bytes()) for p in sources])
        resources = _resources()
        package_digest = _digest(resources.items())
        built = _manifest_fields(jar)
        if (built.get("Shim-Digest"), built.get("Package-Digest")) == (shim_digest, package_digest):
            return jar
        if built.get("Shim-Digest") == shim_digest:
            classes = _classes_of(jar)
        else:
            print(f"compiling {len(sources)} Scala files", file=sys.stderr)
            classes = _compile(sources)
        manifest = {
            "Manifest-Version": "1.0",
            "Implementation-Title": "statestore-shim",
            "Implementation-Version": __version__,
            "Spark-Version": SPARK_MINOR,
            "Shim-Digest": shim_digest,
            "Package-Digest": package_digest,
        }
        text = "".join(f"{name}: {value}\r\n" for name, value in manifest.items()) + "\r\n"
        partial = jar.with_suffix(".partial")
        _write_zip(partial, {MANIFEST: text.encode()}, {**classes, **resources})
        for other in JARS.glob("*.jar"):
            if other != jar:
                other.unlink()
        partial.replace(jar)
    return jar


def _resources() -> dict[str, bytes]:
    """Return what the jar holds beside classes: content by entry name."""
    package = ROOT / "statestore"
    files = [package / "__init__.py", package / "py.typed"]
    for layer in ENGINE_LAYERS:
        files += (package / layer).rglob("*.py")
    embedded = {str(path.relative_to(ROOT)): path.read_bytes() for path in sorted(files)}
    version, options, *services = RESOURCES
    return {
        version: f"{__version__}\n".encode(),
        options: json.dumps(json.loads(table_json()), indent=1).encode(),
        **{
            path: "".join(f"{implementation}\n" for implementation in implementations).encode()
            for path, implementations in zip(services, SERVICES.values(), strict=True)
        },
        f"{PACKAGE}/INDEX": "".join(f"{name}\n" for name in sorted(embedded)).encode(),
        **{f"{PACKAGE}/{name}": content for name, content in embedded.items()},
    }


def _digest(entries: Iterable[tuple[str, bytes]]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{pyspark.__version__} {SCALAC_FLAGS}".encode())
    for name, content in entries:
        digest.update(f"\0{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def _compile(sources: list[Path]) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="classes-", dir=JARS) as output:
        compile_scala(sources, Path(output))
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
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.startswith(f"{PACKAGE}/") and name not in (MANIFEST, *RESOURCES)
        }


def _write_zip(path: Path, *groups: dict[str, Any]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for group in groups:
            for name, content in sorted(group.items()):
                entry = zipfile.ZipInfo(name, FIXED_DATE)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content, zipfile.ZIP_DEFLATED)


def _main() -> int:
    try:
        print(build_jar().relative_to(ROOT))
    except subprocess.CalledProcessError:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
