"""The page of a trial: what was compared, and the rows that differ. One HTML file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from statestore.report.page import fill_in, write_file

if TYPE_CHECKING:
    import os

    from statestore.operations.trial.results import TrialReport


def write_trial(report: TrialReport, to: str | os.PathLike[str]) -> None:
    """Write the page of a trial to a file, in place of one there.

    Raises:
        InvalidArgumentError: It cannot be written.
        IncompatibleError: The package that fills pages in is not installed.
    """
    rows = [
        (one, [json.dumps(row, ensure_ascii=False, default=str) for row in one.rows])
        for one in report.compared
    ]
    text = fill_in("trial.html", report=report, rows=rows, title=f"trial {report.trial}")
    write_file(text, to)
