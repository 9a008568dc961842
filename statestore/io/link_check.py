"""Links a jar of the shim with the jars of a Spark, on paper: what does its byte code miss there?

    python -m statestore.io.link_check SHIM.jar "$SPARK_HOME"/jars/*.jar

prints a line for each thing that is missing, and exits with 1 where there is one, with 2 where a
jar cannot be read. The shim asks so in a Spark that no jar is made for, with the Python of its
engines: only Python itself is needed.
"""

from __future__ import annotations

import io
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from statestore.core.errors import CorruptionError

_ABSTRACT, _INTERFACE = 0x0400, 0x0200
_UTF8, _LONG, _DOUBLE, _CLASS = 1, 5, 6, 7
_MEMBERS = (9, 10, 11)
"""Tags of fields, methods, and methods of interfaces."""
_TWO_BYTES, _THREE_BYTES, _EIGHT_BYTES = (7, 8, 16, 19, 20), (15,), (5, 6)
"""Tags of constants that are not 4 bytes long; of text its length says so."""
Member = tuple[str, str]
"""Name and descriptor."""


@dataclass(frozen=True, slots=True)
class ClassFile:
    """A class of byte code: the members that it declares, and the ones that its code names.

    Attributes:
        name: As byte code has it, with slashes.
        is_abstract: Whether it is an interface or an abstract class.
        parents: Superclass and interfaces.
        fields, methods: Declared ones with their access flags.
        classes: Names of all classes in its constants.
        used: Owner and member of all fields and methods in its constants.
    """

    name: str
    is_abstract: bool
    parents: tuple[str, ...]
    fields: dict[Member, int]
    methods: dict[Member, int]
    classes: frozenset[str]
    used: frozenset[tuple[str, Member]]


class _Reader:
    """Reads a class file from its begin; JVMS 4 has the format."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self._data.seek(8)
        self._constants = self._read_constants()

    def read(self) -> ClassFile:
        access, this, parent, num_interfaces = (self._number() for _ in range(4))
        parents = [parent, *(self._number() for _ in range(num_interfaces))]
        fields, methods = self._members(), self._members()
        references = [self._pair(number) for number in self._tagged(*_MEMBERS)]
        return ClassFile(
            self._class(this),
            bool(access & (_ABSTRACT | _INTERFACE)),
            tuple(self._class(number) for number in parents if number),
            fields,
            methods,
            frozenset(self._class(number) for number in self._tagged(_CLASS)),
            frozenset((self._class(owner), self._member(member)) for owner, member in references),
        )

    def _number(self, size: int = 2) -> int:
        return int.from_bytes(self._data.read(size))

    def _read_constants(self) -> dict[int, tuple[int, bytes]]:
        found: dict[int, tuple[int, bytes]] = {}
        end, number = self._number(), 1
        while number < end:
            tag = self._number(1)
            found[number] = tag, self._data.read(self._size_of(tag))
            number += 2 if tag in (_LONG, _DOUBLE) else 1
        return found

    def _size_of(self, tag: int) -> int:
        if tag == _UTF8:
            return self._number()
        sizes = {2: _TWO_BYTES, 3: _THREE_BYTES, 8: _EIGHT_BYTES}
        return next((size for size, tags in sizes.items() if tag in tags), 4)

    def _tagged(self, *tags: int) -> list[int]:
        return [number for number, (tag, _) in self._constants.items() if tag in tags]

    def _text(self, number: int) -> str:
        return self._constants[number][1].decode("utf-8", "replace")

    def _class(self, number: int) -> str:
        return self._text(int.from_bytes(self._constants[number][1]))

    def _pair(self, number: int) -> tuple[int, int]:
        data = self._constants[number][1]
        return int.from_bytes(data[:2]), int.from_bytes(data[2:])

    def _member(self, number: int) -> Member:
        name, descriptor = self._pair(number)
        return self._text(name), self._text(descriptor)

    def _members(self) -> dict[Member, int]:
        found = {}
        for _ in range(self._number()):
            access, name, descriptor, num_attributes = (self._number() for _ in range(4))
            for _ in range(num_attributes):
                self._number()
                self._data.seek(self._number(4), io.SEEK_CUR)
            found[self._text(name), self._text(descriptor)] = access
        return found


@contextmanager
def _named_errors(path: object) -> Iterator[None]:
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, LookupError) as error:
        raise CorruptionError(
            "a jar cannot be read",
            path=str(path),
            error=str(error),
            to_fix="bring it anew, from the Spark or the wheel that it is of",
        ) from error


class ClassPath:
    """Classes of jars, read when they are asked for; the jars are open until it is left."""

    def __init__(self, jars: Iterable[Path]) -> None:
        self._jars: dict[str, zipfile.ZipFile] = {}
        self._read: dict[str, ClassFile] = {}
        with ExitStack() as opened:
            for path in jars:
                with _named_errors(path):
                    jar = opened.enter_context(zipfile.ZipFile(path))
                for name in _classes_in(jar):
                    self._jars.setdefault(name, jar)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._opened.close()

    def __contains__(self, name: str) -> bool:
        return name in self._jars

    def __getitem__(self, name: str) -> ClassFile:
        if name not in self._read:
            jar = self._jars[name]
            with _named_errors(jar.filename):
                self._read[name] = _Reader(jar.read(f"{name}.class")).read()
        return self._read[name]

    def lineage(self, name: str) -> Iterator[ClassFile | None]:
        """Yield a class and all that it inherits from; None for what no jar has, as Java's own."""
        waiting, seen = [name], set()
        while waiting:
            at = waiting.pop()
            if at not in seen:
                seen.add(at)
                if at not in self:
                    yield None
                    continue
                yield self[at]
                waiting += self[at].parents

    def has(self, owner: str, member: Member) -> bool:
        """Return whether a class has or inherits a member; one of Java's own may be its."""
        name, descriptor = member
        may_be_java = name != "<init>" and "org/apache/spark" not in descriptor
        for found in self.lineage(owner):
            if found is None:
                if may_be_java:
                    return True
            elif member in found.fields or member in found.methods:
                return True
        return False


def find_missing(shim: Path, spark_jars: Iterable[Path]) -> dict[str, list[str]]:
    """Return classes and members that a jar of the shim needs and a Spark lacks.

    Args:
        shim: The jar.
        spark_jars: All jars of the Spark.

    Returns:
        The classes of the shim that need it, by each missing thing: a class, field or method that
        is named, or an abstract method that a class of the shim leaves without a body.

    Raises:
        CorruptionError: A jar cannot be read.
    """
    missing: dict[str, list[str]] = {}
    with ClassPath([shim, *spark_jars]) as path, zipfile.ZipFile(shim) as jar:
        for name in _classes_in(jar):
            for thing in _missing_of(path[name], path):
                missing.setdefault(thing, []).append(name)
    return missing


def describe(missing: dict[str, list[str]]) -> list[str]:
    """Return a line for each missing thing, with the classes of the shim that need it."""
    return [
        f"{thing}, needed by {', '.join(sorted(of)[:3])}" for thing, of in sorted(missing.items())
    ]


def _classes_in(jar: zipfile.ZipFile) -> list[str]:
    return [name.removesuffix(".class") for name in jar.namelist() if name.endswith(".class")]


def _missing_of(found: ClassFile, path: ClassPath) -> Iterator[str]:
    for name in found.classes:
        element = name.lstrip("[").removeprefix("L").removesuffix(";")
        is_javas = element.startswith(("java/", "javax/", "sun/")) or "/" not in element
        if not is_javas and element not in path:
            yield f"class {element}"
    for owner, member in found.used:
        if owner in path and not path.has(owner, member):
            yield f"member {owner}.{''.join(member)}"
    if not found.is_abstract:
        bodies: set[Member] = set()
        wanted: dict[Member, str] = {}
        for parent in path.lineage(found.name):
            for member, access in parent.methods.items() if parent is not None else ():
                if access & _ABSTRACT:
                    wanted.setdefault(member, parent.name if parent is not None else "")
                else:
                    bodies.add(member)
        for member, owner in wanted.items():
            if member not in bodies:
                yield f"body of {owner}.{''.join(member)}"


def _main() -> int:
    shim, *jars = map(Path, sys.argv[1:])
    try:
        lines = describe(find_missing(shim, jars))
    except CorruptionError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(_main())
