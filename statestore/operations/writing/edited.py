"""Edited: rows of which some keys go, and for some keys rows are put."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Edited:
    """The rows that an operator, store or state variable has, but for some keys: for `transform`.

    Keys and rows are held in memory.

    Attributes:
        delete: Keys whose rows go, as Arrow data or a `pathlib.Path` of a file; or a condition in
            SQL that their rows fulfil, such as `"user_id = 'x'"`; None for none.
        upsert: Rows, in place of those that their keys have, as Arrow data or a `pathlib.Path` of a
            file; None for none. Of a state variable that is a list a row an element.
        all_rows: Whether all rows may go.
    """

    delete: Any = None
    upsert: Any = None
    all_rows: bool = False
