"""Three bugs that state stores have had, to be planted in an engine: the audit must find each."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from typing import Any

import numpy as np

from statestore.backends.filesystem import versions
from statestore.checkpoint.layout import parse_state_file_name
from statestore.io.local import LocalFileIO

LATE_S = 1.0
NEVER = 0.1
MAX_AGE_MS = 500


def _plant_answers_first() -> None:
    """A commit that answers before it publishes, and sometimes never does."""
    publish = LocalFileIO.publish
    rng = np.random.default_rng(os.getpid())

    def publish_later(self: Any, local_path: str, path: str, **how: bool) -> float:
        if ".delta." not in path:
            return publish(self, local_path, path, **how)
        kept = f"{local_path}.kept"
        os.link(local_path, kept)
        if rng.random() > NEVER:
            threading.Timer(LATE_S, publish, (self, kept, path), how).start()
        return 0.0

    LocalFileIO.publish = publish_later  # type: ignore[method-assign]


def _plant_ignores_delta() -> None:
    """A load that leaves out the newest delta."""
    load = versions.FilesystemVersions.load

    def load_most(*arguments: Any, **more: Any) -> Any:
        found = load(*arguments, **more)
        if len(found.files) < 2:
            return found
        return replace(found, files=found.files[:-1], refs=found.refs[:-1])

    versions.FilesystemVersions.load = load_most  # type: ignore[method-assign]


def _plant_age_alone() -> None:
    """A cleanup that deletes what is old, whoever needs it."""
    clean_up = versions.FilesystemVersions.clean_up

    def clean_up_old(self: Any, *arguments: Any, **more: Any) -> Any:
        for info in self.location.io.list(self.location.directory):
            age_ms = time.time_ns() // 1_000_000 - info.modified_ms
            if parse_state_file_name(info.name) and age_ms > MAX_AGE_MS:
                self.location.io.delete(self.location.path(info.name))
        return clean_up(self, *arguments, **more)

    versions.FilesystemVersions.clean_up = clean_up_old  # type: ignore[method-assign]


BUGS = {
    "answers-first": _plant_answers_first,
    "ignores-delta": _plant_ignores_delta,
    "age-alone": _plant_age_alone,
}


def plant(name: str) -> None:
    """Plant a bug of BUGS in this process."""
    BUGS[name]()
