"""The address of checkpoint memory, without its client, which not every engine loads."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CheckpointMemoryAddress:
    """The address of checkpoint memory.

    Attributes:
        host, port: Of the driver's machine.
        token: Shown by a client.
    """

    host: str
    port: int
    token: str = field(repr=False)

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"
