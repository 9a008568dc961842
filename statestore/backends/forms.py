"""The form of each body of state files, made when it is asked for."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from statestore.backends.filesystem.form import ArrowForm
from statestore.backends.form import FileForm, Work
from statestore.backends.rocksdb.requirement import require_rocksdict

if TYPE_CHECKING:
    from statestore.checkpoint.layout import FileBody
    from statestore.core.clock import Clock
    from statestore.core.options import StateStoreOptions


def work_in(scratch_directory: str, options: StateStoreOptions, clock: Clock) -> Work:
    """Return the means to read and write state.

    Args:
        scratch_directory: Local directory, deleted by the caller.
        options: Of the files that are written.
        clock: Source of time.
    """
    forms: dict[FileBody, FileForm] = {}
    lock = threading.Lock()

    def form(body: FileBody) -> FileForm:
        with lock:
            if body not in forms:
                forms[body] = _open(body, options)
            return forms[body]

    return Work(scratch_directory, options, clock, form)


def _open(body: FileBody, options: StateStoreOptions) -> FileForm:
    if body == "arrows":
        return ArrowForm()
    require_rocksdict()
    # Imported here because it needs a package that is an extra.
    from statestore.backends.rocksdb.form import SstForm

    return SstForm(options)
