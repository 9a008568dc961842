"""Bills of materials of a release, in CycloneDX: what is in a wheel and in a jar, what they need.

What a wheel needs is stated as the versions that constraints.txt names, with which every test ran;
a wheel itself takes others, too. It is read from the environment that builds the release.
"""

from __future__ import annotations

import hashlib
import re
import uuid
import zipfile
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from statestore.core.version import __version__
from tools.maven import GROUP, artifact_of
from tools.spark_jars import release_of

FORM = SchemaVersion.V1_6
CHARTS = "statestore/report/assets/echarts.min.js"
"""The one file of somebody else in a wheel."""
_APACHE = "Apache-2.0"


def wheel_bom(wheel: Path, sdist: Path, jars: dict[str, Path], made: datetime) -> str:
    """Return the document of wheel and sdist: jars by Spark minor, what is bundled, what is needed.

    Args:
        wheel: The wheel.
        sdist: What it was built from.
        jars: Those that both hold.
        made: When, with its zone.

    Raises:
        PackageNotFoundError: A package that the wheel needs is not installed.
    """
    subject = _python_package(_installed(wheel))
    subject.components.update([_charts(wheel), *(_jar(*jar) for jar in jars.items())])
    for path in (wheel, sdist):
        subject.external_references.add(
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(path.name),
                hashes=[_sha256(path.read_bytes())],
            )
        )
    bom = _begin(subject, made, wheel)
    _add_needs(bom, subject, _installed(wheel), extras=("all",))
    return _text_of(bom)


def jar_bom(minor: str, jar: Path, wheel: Path, made: datetime) -> str:
    """Return the document of a jar: the package in it, its Spark, and what an engine needs.

    Args:
        minor: The Spark that the jar is for.
        jar: The jar.
        wheel: That of the same release, which says what the package in the jar needs.
        made: When, with its zone.

    Raises:
        PackageNotFoundError: As `wheel_bom`.
    """
    subject = _jar(minor, jar)
    package = _python_package(_installed(wheel))
    subject.components.add(package)
    bom = _begin(subject, made, jar)
    spark = _maven_package("org.apache.spark", "spark-sql_2.13", release_of(minor))
    bom.components.add(spark)
    bom.register_dependency(subject, [package, spark])
    _add_needs(bom, package, _installed(wheel))
    return _text_of(bom)


def _installed(wheel: Path) -> Distribution:
    return PathDistribution(zipfile.Path(wheel, f"statestore-{__version__}.dist-info/"))


def _begin(subject: Component, made: datetime, artifact: Path) -> Bom:
    """Return a document without components, whose number follows from the artifact's bytes."""
    content = hashlib.sha256(artifact.read_bytes()).hexdigest()
    tools = ToolRepository(components=[this_component()])
    return Bom(
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{subject.purl}#{content}"),
        metadata=BomMetaData(component=subject, tools=tools, timestamp=made),
    )


def _add_needs(
    bom: Bom, subject: Component, package: Distribution, extras: tuple[str, ...] = ()
) -> None:
    """Add all packages that one needs, those of its extras as optional, and who needs whom."""
    always = _edges(package, ())
    edges = _edges(package, extras)
    distributions = {name: distribution(name) for name in edges if name != subject.name}
    components = {
        name: _python_package(
            found, ComponentScope.REQUIRED if name in always else ComponentScope.OPTIONAL
        )
        for name, found in distributions.items()
    }
    bom.components.update(components.values())
    components[subject.name] = subject
    for name, needed in edges.items():
        bom.register_dependency(components[name], [components[other] for other in sorted(needed)])


def _edges(package: Distribution, extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Return the packages that each needs, from one on, by canonical names; on this platform."""
    edges: dict[str, set[str]] = {}
    seen = set()
    own = canonicalize_name(package.name)
    to_visit = [(own, extra) for extra in ("", *extras)]
    while to_visit:
        name, extra = to_visit.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        needed = edges.setdefault(name, set())
        found = package if name == own else distribution(name)
        for requirement in map(Requirement, found.requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                other = canonicalize_name(requirement.name)
                to_visit += [(other, wanted) for wanted in ("", *requirement.extras)]
                if other != name:
                    needed.add(other)
    return edges


def _python_package(found: Distribution, scope: ComponentScope | None = None) -> Component:
    name = canonicalize_name(found.name)
    address = PackageURL("pypi", name=name, version=found.version)
    return Component(
        name=name,
        version=found.version,
        description=_field(found, "Summary"),
        scope=scope,
        licenses=[LicenseFactory().make_from_string(text) for text in _licenses(found)],
        purl=address,
        bom_ref=str(address),
    )


def _licenses(found: Distribution) -> Iterable[str]:
    """Return what a package says of its license, in the best form that it has."""
    stated = _field(found, "License-Expression") or _field(found, "License")
    if len(stated.splitlines()) == 1:
        return [stated]
    classifiers = found.metadata.get_all("Classifier") or ()
    return [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License :: ")]


def _field(found: Distribution, name: str) -> str:
    values: list[str] = found.metadata.get_all(name) or [""]
    return values[0]


def _jar(minor: str, jar: Path) -> Component:
    component = _maven_package(GROUP, artifact_of(minor), __version__)
    component.hashes.add(_sha256(jar.read_bytes()))
    return component


def _maven_package(group: str, name: str, version: str) -> Component:
    address = PackageURL("maven", namespace=group, name=name, version=version)
    return Component(
        group=group,
        name=name,
        version=version,
        licenses=[LicenseFactory().make_with_id(_APACHE)],
        purl=address,
        bom_ref=str(address),
    )


def _charts(wheel: Path) -> Component:
    with zipfile.ZipFile(wheel) as archive:
        content = archive.read(CHARTS)
    (version,) = set(re.findall(rb'\bversion="(\d+\.\d+\.\d+)"', content))
    address = PackageURL("npm", name="echarts", version=version.decode())
    return Component(
        name="echarts",
        version=version.decode(),
        licenses=[LicenseFactory().make_with_id(_APACHE)],
        hashes=[_sha256(content)],
        purl=address,
        bom_ref=str(address),
    )


def _sha256(content: bytes) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=hashlib.sha256(content).hexdigest())


def _text_of(bom: Bom) -> str:
    """Return a document that obeys the schema.

    Raises:
        ValueError: It does not; the schema's own words say where.
    """
    text: str = make_outputter(bom, OutputFormat.JSON, FORM).output_as_string(indent=1)
    wrong = JsonStrictValidator(FORM).validate_str(text)
    if wrong is not None:
        raise ValueError(f"the bill of materials breaks its schema: {wrong}")
    return text + "\n"
