"""Processes of this very package for tests: an engine, and the checkpoint memory."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from statestore.engine import client
from statestore.engine.client import EngineGoneError, EngineRefusedError
from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress

__all__ = [
    "TOKEN",
    "CheckpointMemory",
    "EngineConnection",
    "EngineGoneError",
    "EngineProcess",
    "EngineRefusedError",
]

TOKEN = "5ec2e7" * 11
_PACKAGE_ROOT = str(Path(__file__).resolve().parents[1])


class EngineProcess(client.EngineProcess):
    """An engine of this package in this Python.

    Args:
        scratch_directory: See the base class.
        command: What Python is to run; the checkpoint memory has a command of its own.
        claims: See the base class.
    """

    def __init__(
        self,
        scratch_directory: str,
        *,
        command: tuple[str, ...] = ("-m", "statestore.engine"),
        **claims: object,
    ) -> None:
        super().__init__(
            [sys.executable, *command],
            scratch_directory,
            token=TOKEN,
            environment={**os.environ, "PYTHONPATH": _PACKAGE_ROOT},
            **claims,
        )


class CheckpointMemory(EngineProcess):
    """A running checkpoint memory, driven the same way."""

    def __init__(self, scratch_directory: str) -> None:
        module = "statestore.engine.checkpoint_memory"
        super().__init__(scratch_directory, command=("-m", module, "127.0.0.1"))

    @property
    def address(self) -> CheckpointMemoryAddress:
        """Where it is served."""
        return CheckpointMemoryAddress("127.0.0.1", self.ready["port"], TOKEN)


class EngineConnection(client.EngineConnection):
    """A connection with the token of these processes, or another one."""

    def __init__(self, port: int, token: str = TOKEN) -> None:
        super().__init__(port, token)
