"""Lays jars of the shim out as a Maven repository: jar, sources, POM, and checksums of each file.

Coordinates of the jar for Spark 4.1 are `io.statestore:statestore-shim_2.13-spark4.1:VERSION`.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from xml.etree import ElementTree as Xml

from statestore.core.version import __version__
from tools.shim_jar import MANIFEST, ROOT, SOURCES, sources_of, write_zip
from tools.spark_jars import release_of

GROUP = "io.statestore"
CHECKSUMS = ("md5", "sha1", "sha256")
"""Algorithms; what resolves a jar compares the first two, and refuses a file that is another."""

_POM = "http://maven.apache.org/POM/4.0.0"


def artifact_of(minor: str) -> str:
    """Return the artifact ID of a Spark minor's jar; the file's name begins with it."""
    return f"statestore-shim_2.13-spark{minor}"


def folder_of(repository: Path, minor: str) -> Path:
    """Return the directory of a repository in which the files of a jar and this version lie."""
    return repository.joinpath(*GROUP.split("."), artifact_of(minor), __version__)


def add_jar(repository: Path, minor: str, jar: Path) -> None:
    """Add a jar with its sources and its POM to a repository, as yet without checksums."""
    folder = folder_of(repository, minor)
    folder.mkdir(parents=True)
    stem = f"{artifact_of(minor)}-{__version__}"
    shutil.copyfile(jar, folder / f"{stem}.jar")
    (folder / f"{stem}.pom").write_bytes(_pom(minor))
    sources = {"META-INF/LICENSE": (ROOT / "LICENSE").read_bytes()}
    for path in sources_of(minor):
        # Below main/scala, or below the folder of some Sparks.
        sources["/".join(path.relative_to(SOURCES).parts[2:])] = path.read_bytes()
    manifest = {MANIFEST: b"Manifest-Version: 1.0\r\n\r\n"}
    write_zip(folder / f"{stem}-sources.jar", manifest, sources)


def add_checksums(repository: Path) -> None:
    """Write the checksums of every file of a repository beside it."""
    for path in [path for path in repository.rglob("*") if path.is_file()]:
        content = path.read_bytes()
        for name in CHECKSUMS:
            digest = hashlib.new(name, content, usedforsecurity=False).hexdigest()
            path.with_name(f"{path.name}.{name}").write_text(digest)


def _pom(minor: str) -> bytes:
    """Return what a build tool reads: in a JVM nothing is needed but Spark, which is there."""
    project = Xml.Element("project", xmlns=_POM)

    def add(parent: Xml.Element, **texts: str) -> None:
        for name, text in texts.items():
            Xml.SubElement(parent, name).text = text

    add(
        project,
        modelVersion="4.0.0",
        groupId=GROUP,
        artifactId=artifact_of(minor),
        version=__version__,
        name="statestore shim",
        description=f"State stores of Spark Structured Streaming {minor}: the part in the JVM",
    )
    add(
        Xml.SubElement(Xml.SubElement(project, "licenses"), "license"),
        name="Apache-2.0",
        url="https://www.apache.org/licenses/LICENSE-2.0.txt",
    )
    add(
        Xml.SubElement(Xml.SubElement(project, "dependencies"), "dependency"),
        groupId="org.apache.spark",
        artifactId="spark-sql_2.13",
        version=release_of(minor),
        scope="provided",
    )
    Xml.indent(project)
    text: bytes = Xml.tostring(project, encoding="UTF-8", xml_declaration=True)
    return text + b"\n"
