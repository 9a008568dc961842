"""Forms of files of rows, which are written and read, by how a file's name ends."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from pathlib import Path


class RowsFileForm(Enum):
    """A form of a file of rows; the value is its name."""

    PARQUET = "Parquet"
    CSV = "CSV"
    JSON = "JSON"
    ARROW = "Arrow"

    @property
    def has_types(self) -> bool:
        """Whether a file tells the types of its columns, and is not text."""
        return self in (RowsFileForm.PARQUET, RowsFileForm.ARROW)


_BY_SUFFIX = {
    ".parquet": RowsFileForm.PARQUET,
    ".arrow": RowsFileForm.ARROW,
    ".csv": RowsFileForm.CSV,
    ".json": RowsFileForm.JSON,
    ".jsonl": RowsFileForm.JSON,
    "": RowsFileForm.PARQUET,
}


def form_of(path: Path) -> RowsFileForm:
    """Return the form of a file of rows by its name: Parquet where that has no suffix.

    Raises:
        InvalidArgumentError: No form has the suffix.
    """
    form = _BY_SUFFIX.get(path.suffix.lower())
    if form is None:
        raise InvalidArgumentError(
            "the name of a file of rows has an unknown suffix",
            file=str(path),
            known=", ".join(filter(None, _BY_SUFFIX)),
            to_fix="give the file the suffix of its form; without one it is Parquet",
        )
    return form
