"""JSON documents read field by field, each by its type and range.

Nothing that comes from a file is believed before that: a damaged or hostile document is a
`MalformedError` and never another exception, and what is read needs no more memory than a small
multiple of the document.
"""

from __future__ import annotations

import json
import re
from typing import Any

from statestore.core.errors import IncompatibleError

MAX_INTEGER = (1 << 63) - 1
_SHOWN = 60


class MalformedError(ValueError):
    """A document is not what it should be; the caller knows its file and says so."""


class Fields:
    """A JSON object.

    Args:
        found: What stands where an object should.

    Raises:
        MalformedError: It is none; so do all methods where a field is absent, or not of the type
            and range asked for.
    """

    def __init__(self, found: Any) -> None:
        if not isinstance(found, dict):
            raise _malformed("document", "an object", found)
        self.all: dict[str, Any] = found
        """Every field, as it was parsed."""

    def value(self, name: str) -> Any:
        """Return a field of any type."""
        if name not in self.all:
            raise MalformedError(f"no field {name}")
        return self.all[name]

    def has(self, name: str) -> bool:
        """Return whether a field is there and not null."""
        return self.all.get(name) is not None

    def integer(self, name: str, low: int = 0, high: int = MAX_INTEGER) -> int:
        """Return an integer from low to high."""
        return to_integer(self.value(name), low, high, name)

    def text(self, name: str, form: re.Pattern[str] | None = None) -> str:
        """Return a string, one that a pattern matches where there is one."""
        return to_text(self.value(name), form, name)

    def flag(self, name: str) -> bool:
        """Return a boolean."""
        found = self.value(name)
        if not isinstance(found, bool):
            raise _malformed(name, "true or false", found)
        return found

    def require_format(self, newest: int, file: str, name: str = "format_version") -> None:
        """Check that a file of the package's own is of a format that this release knows.

        To be asked for first: a newer format may lack the other fields.

        Args:
            newest: Newest format version that is known.
            file: Path or URI of the file, for the error.
            name: The field that has it.

        Raises:
            IncompatibleError: It is of a newer one (kind newer-format).
        """
        found = self.integer(name, 1)
        if found > newest:
            version: dict[str, Any] = {name: found}
            raise IncompatibleError(
                "a file is of a newer format version",
                kind="newer-format",
                file=file,
                **version,
                newest_known=newest,
                to_fix="use the statestore release that wrote it, or a later one",
            )

    def items(self, name: str) -> list[Any]:
        """Return an array."""
        return to_items(self.value(name), name)

    def object(self, name: str) -> Fields:
        """Return an object."""
        found = self.value(name)
        if not isinstance(found, dict):
            raise _malformed(name, "an object", found)
        return Fields(found)


def parse_fields(document: bytes | str) -> Fields:
    """Read a document that is a JSON object.

    Raises:
        MalformedError: It is not JSON in UTF-8, it is nested too deep, a string in it is half a
            character, or it is no object.
    """
    return Fields(parse_json(document))


def parse_json(document: bytes | str) -> Any:
    """Read a JSON document; errors as `parse_fields`, but of any type."""
    try:
        text = document if isinstance(document, str) else document.decode()
        found = json.loads(text)
        if "\\u" in text:
            # An escape may be one half of a character of two, which no file can be written with.
            json.dumps(found, ensure_ascii=False).encode()
        return found
    except RecursionError as error:
        raise MalformedError("nested too deep") from error
    except ValueError as error:
        raise MalformedError(str(error)) from error


def to_integer(found: Any, low: int = 0, high: int = MAX_INTEGER, name: str = "element") -> int:
    """Return an integer from low to high; `MalformedError` for anything else."""
    if type(found) is not int or not low <= found <= high:
        raise _malformed(name, f"an integer from {low} to {high}", found)
    return found


def to_text(found: Any, form: re.Pattern[str] | None = None, name: str = "element") -> str:
    """Return a string, one that the pattern matches; `MalformedError` for anything else."""
    if not isinstance(found, str) or (form is not None and form.fullmatch(found) is None):
        raise _malformed(name, "text" if form is None else f"text like {form.pattern}", found)
    return found


def to_items(found: Any, name: str = "element") -> list[Any]:
    """Return an array; `MalformedError` for anything else."""
    if not isinstance(found, list):
        raise _malformed(name, "an array", found)
    return found


def _malformed(name: str, expected: str, found: Any) -> MalformedError:
    shown = found if isinstance(found, int | str | float | None) else type(found).__name__
    return MalformedError(f"field {name}: expected {expected}, found {shown!r:.{_SHOWN}}")
