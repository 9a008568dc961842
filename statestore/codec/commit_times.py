"""Time and memory of a commit, kept in the trailer of the version after it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.core.json_fields import MalformedError, to_integer

if TYPE_CHECKING:
    from statestore.core.json_fields import Fields


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Memory at a commit, bytes; all 0 where unknown.

    Attributes:
        engine_bytes: Resident memory of the engine.
        taken_bytes: Memory of all processes of its container that the system cannot take back.
        limit_bytes: Their limit: the container's, or the machine's memory.
    """

    engine_bytes: int = 0
    taken_bytes: int = 0
    limit_bytes: int = 0

    @property
    def share(self) -> float:
        """The taken part of the limit, 0 to 1; 0 where unknown."""
        return self.taken_bytes / self.limit_bytes if self.limit_bytes else 0.0


UNKNOWN_MEMORY = MemoryUse()


@dataclass(frozen=True, slots=True)
class CommitTimes:
    """A commit's phases, one after the other; all 0 where unknown.

    Attributes:
        write_ms: The shim sorts the rows and writes them to the local disk.
        checksum_ms: The engine checks them, or builds the file of them, and seals it.
        publish_ms: The engine brings the file to the storage, and waits until it is durable.
        sync_ms: The part of publish_ms that waits for the disk.
        committed_ms: When the version was durable, milliseconds since the Unix epoch by the
            engine's clock.
        memory: Memory at the commit.
    """

    write_ms: float = 0.0
    checksum_ms: float = 0.0
    publish_ms: float = 0.0
    sync_ms: float = 0.0
    committed_ms: int = 0
    memory: MemoryUse = UNKNOWN_MEMORY

    @property
    def total_ms(self) -> float:
        """The commit without the exchange between shim and engine."""
        return self.write_ms + self.checksum_ms + self.publish_ms

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form: durations in whole microseconds."""
        return {
            "write_us": round(self.write_ms * 1000),
            "checksum_us": round(self.checksum_ms * 1000),
            "publish_us": round(self.publish_ms * 1000),
            "sync_us": round(self.sync_ms * 1000),
            "committed_ms": self.committed_ms,
            "memory": [
                self.memory.engine_bytes,
                self.memory.taken_bytes,
                self.memory.limit_bytes,
            ],
        }

    @classmethod
    def from_json(cls, fields: Fields) -> CommitTimes:
        """Read the JSON form.

        Raises:
            MalformedError: It is none.
        """
        return cls(
            fields.integer("write_us") / 1000,
            fields.integer("checksum_us") / 1000,
            fields.integer("publish_us") / 1000,
            fields.integer("sync_us") / 1000,
            fields.integer("committed_ms"),
            _memory(fields.items("memory")) if fields.has("memory") else UNKNOWN_MEMORY,
        )


def _memory(found: list[Any]) -> MemoryUse:
    if len(found) != 3:
        raise MalformedError(f"memory has {len(found)} numbers, not 3")
    return MemoryUse(*map(to_integer, found))
