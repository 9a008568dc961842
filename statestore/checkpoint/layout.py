"""Every path of a checkpoint; nothing else builds or takes apart a file name.

<root>/../statestore.json                  placement: where else state is kept
<root>/../statestore-history.jsonl         history: which operations changed the checkpoint
<root>/../statestore-leases/               leases: who writes into the checkpoint now
  query-<id>.json                              an executor of a running query
  operation-<id>.json                          an operation
<root>/<operator>/<partition>/             store "default"
<root>/<operator>/<partition>/<store>/     every other store
  <version>.delta.<body>                       delta, checkpoint format v1
  <version>_<checkpoint ID>.delta.<body>       delta, checkpoint format v2
  <version>_<checkpoint ID>.snapshot.<body>    snapshot
  <version>_<checkpoint ID>.merged.sst         what some deltas up to a version do together
  .tmp-<id>, .<name>.<id>.tmp                  being written, the latter through Hadoop
  <version>.<partition>.ref                    a rescale made that version of that state partition
                                               of files here
  <version>.<id>.pin                           an operation copies that version
  heap-backend                                 alone: the state is in checkpoint memory

The body is how rows are kept: `arrows`, an Arrow stream (heap, filesystem), or `sst` (rocksdb).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, cast

from statestore.codec.references import FileKind, StoreName
from statestore.core.errors import CorruptionError
from statestore.core.providers import PROVIDERS
from statestore.io.local import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from statestore.checkpoint.query_log import QueryLog
    from statestore.io.file_io import FileIO

FileBody = Literal["arrows", "sst"]
BODIES: dict[str, FileBody] = {"heap": "arrows", "filesystem": "arrows", "rocksdb": "sst"}
"""How state files keep rows, by state backend."""
REPLAYED: frozenset[FileBody] = frozenset({"arrows"})
"""Bodies whose snapshot the files before it stand in for, where it is lost."""

DEFAULT_STORE_NAME = "default"
HEAP_MARKER = "heap-backend"
HEAP_MARKER_TEXT = b"The state of this store is in the memory of the driver (heap backend).\n"
OWNER_NAME = "checkpoint.json"
"""File of a directory outside of its checkpoint that names the checkpoint, for people."""
LeaseKind = Literal["query", "operation"]
_PLACEMENT_NAME = "statestore.json"
_LEASES_NAME = "statestore-leases"
_HISTORY_NAME = "statestore-history.jsonl"
_PLACEHOLDER_NAME = ".statestore"

_LEASE_FILE = re.compile(r"(query|operation)-[0-9a-f]{32}\.json")
_STATE_FILE = re.compile(
    r"([1-9][0-9]*)(?:_([0-9a-f]{32}))?\.(delta|snapshot|merged)\.(arrows|sst)"
)
_PIN = re.compile(r"([1-9][0-9]*)\.[0-9a-f]{32}\.pin")
_SIBLING = re.compile(r"\.\./(?:\.\./)?(0|[1-9][0-9]{0,4})/")
_RESCALE_REF = re.compile(r"([1-9][0-9]*)\.(0|[1-9][0-9]*)\.ref")
# <version>.delta and .snapshot are HDFSBackedStateStoreProvider's; .zip and .changelog RocksDB's,
# in checkpoint format v2 with an ID; a dot and a "crc" file belongs to either.
_OTHER_PROVIDER = (
    (re.compile(r"[0-9]+\.(delta|snapshot)"), "HDFSBackedStateStoreProvider"),
    (re.compile(r"[0-9]+(_[0-9A-Za-z-]+)*\.(zip|changelog)"), "RocksDBStateStoreProvider"),
    (re.compile(HEAP_MARKER), PROVIDERS["heap"]),
)


@dataclass(frozen=True, slots=True)
class StateFileName:
    """A state file's name taken apart; no checkpoint_id for a delta of checkpoint format v1."""

    kind: FileKind
    version: int
    checkpoint_id: str | None
    body: FileBody = "arrows"


@dataclass(frozen=True, order=True, slots=True)
class RescaleRefName:
    """Name of the file that names a rescaled version which needs the files of a store directory.

    Attributes:
        version: The rescaled version.
        partition: Its state partition.
    """

    version: int
    partition: int

    def __str__(self) -> str:
        return f"{self.version}.{self.partition}.ref"


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The place of a store's files, and the storage through which they are read and written.

    Attributes:
        io: The storage.
        root: The `state` directory of the checkpoint, a path of that storage.
        store: The store.
        body: How its files keep rows.
        commits: The commit log of the query that writes it, wherever the state is; None where there
            is none, or only the caller writes.
    """

    io: FileIO
    root: str
    store: StoreName
    body: FileBody = "arrows"
    commits: QueryLog | None = None

    @property
    def directory(self) -> str:
        """The store's own directory."""
        return store_directory(self.root, self.store)

    def path(self, name: str) -> str:
        """Return the path of a file by its name, or by the path of a file reference.

        Raises:
            CorruptionError: It leads out of the directories of this store.
        """
        if "/" not in name and name not in ("", ".", ".."):
            return f"{self.directory}/{name}"
        sibling = store_of_path(self.store, name)
        return f"{store_directory(self.root, sibling)}/{posixpath.basename(name)}"

    def sibling(self, partition: int) -> StoreLocation:
        """Return where the same store of another state partition is."""
        return replace(self, store=replace(self.store, partition=partition))

    def delta_name(self, version: int, checkpoint_id: str | None) -> str:
        """Return the file name of a delta; pass None for checkpoint format v1."""
        infix = "" if checkpoint_id is None else f"_{checkpoint_id}"
        return f"{version}{infix}.delta.{self.body}"

    def delta_names(self, version: int, checkpoint_id: str | None) -> tuple[str, ...]:
        """Return the names the delta of a version may have, likeliest first.

        A checkpoint that changed to format v2 keeps the v1 names of its earlier versions.
        """
        v1 = self.delta_name(version, None)
        return (v1,) if checkpoint_id is None else (self.delta_name(version, checkpoint_id), v1)

    def summary_name(self, kind: FileKind, version: int, checkpoint_id: str) -> str:
        """Return the file name of the snapshot or merged file of a version."""
        return f"{version}_{checkpoint_id}.{kind}.{self.body}"


def placement_path(root: str) -> str:
    """Return the path of the placement of a checkpoint, by the checkpoint's `state` directory."""
    return f"{posixpath.dirname(root)}/{_PLACEMENT_NAME}"


def history_path(directory: str) -> str:
    """Return the path of the history of a checkpoint, by the checkpoint directory."""
    return f"{directory}/{_HISTORY_NAME}"


def lease_directory(root: str) -> str:
    """Return the directory of a checkpoint's leases, by the checkpoint's `state` directory."""
    return f"{posixpath.dirname(root)}/{_LEASES_NAME}"


def lease_name(kind: LeaseKind, lease_id: str) -> str:
    """Return the file name of a lease."""
    return f"{kind}-{lease_id}.json"


def parse_lease_name(name: str) -> LeaseKind | None:
    """Return the kind of holder by a lease's file name, None for another file."""
    match = _LEASE_FILE.fullmatch(name)
    return None if match is None else cast("LeaseKind", match[1])


def placeholder_path(root: str, store: StoreName) -> str:
    """Return the path of the empty file that stands for a state partition kept elsewhere.

    Spark's state reader finds state partitions by their directories, and an object store has no
    empty ones.
    """
    return f"{root}/{store.operator}/{store.partition}/{_PLACEHOLDER_NAME}"


def store_directory(root: str, store: StoreName) -> str:
    """Return the directory of a store below the `state` directory of a checkpoint."""
    directory = f"{root}/{store.operator}/{store.partition}"
    return directory if store.name == DEFAULT_STORE_NAME else f"{directory}/{store.name}"


def path_from_sibling(store: StoreName, name: str) -> str:
    """Return the path by which the same store of any state partition refers to a store's file."""
    if store.name == DEFAULT_STORE_NAME:
        return f"../{store.partition}/{name}"
    return f"../../{store.partition}/{store.name}/{name}"


def parse_state_file_name(name: str) -> StateFileName | None:
    """Take a file name apart, or return None when it is not a state file's."""
    match = _STATE_FILE.fullmatch(name)
    if match is None:
        return None
    version, checkpoint_id, kind, body = match.groups()
    if kind != "delta" and checkpoint_id is None:
        return None
    return StateFileName(
        cast("FileKind", kind), int(version), checkpoint_id, cast("FileBody", body)
    )


def parse_rescale_ref_name(name: str) -> RescaleRefName | None:
    """Take the name of a rescale's reference file apart, None when it is not one."""
    match = _RESCALE_REF.fullmatch(name)
    return match and RescaleRefName(int(match[1]), int(match[2]))


def pin_name(version: int, pin_id: str) -> str:
    """Return the file name of a pin."""
    return f"{version}.{pin_id}.pin"


def parse_pin_name(name: str) -> int | None:
    """Return the version that a pin holds by its file name, None when it is not a pin's."""
    match = _PIN.fullmatch(name)
    return None if match is None else int(match[1])


def is_temporary(name: str) -> bool:
    """Return whether a file is being written, or was left behind by a writer that died.

    Hadoop's are Spark's own temporary files, `.<name>.<id>.tmp`.
    """
    return name.startswith(TEMPORARY_PREFIX) or (name.startswith(".") and name.endswith(".tmp"))


def other_provider(names: list[str]) -> tuple[str, str] | None:
    """Return (file name, provider class) of the first file another provider wrote, or None."""
    for name in sorted(names):
        for pattern, provider in _OTHER_PROVIDER:
            if pattern.fullmatch(name):
                return name, provider
    return None


def store_of_path(store: StoreName, path: str) -> StoreName:
    """Return the store of a file by the path of its reference: this one, or a sibling.

    Nothing else is followed, wherever the path comes from: a reference leads to a state file of the
    same store in this or another state partition.

    Raises:
        CorruptionError: The path leads elsewhere.
    """
    if "/" not in path and parse_state_file_name(path) is not None:
        return store
    name = posixpath.basename(path)
    partition = _SIBLING.match(path)
    if partition is not None and parse_state_file_name(name) is not None:
        sibling = replace(store, partition=int(partition[1]))
        if path == path_from_sibling(sibling, name):
            return sibling
    raise CorruptionError(
        "a reference leads to no state file of the store",
        store=str(store),
        path=path,
        expected=path_from_sibling(store, "<version>.delta.<body>"),
        to_fix="do not use the checkpoint or savepoint: its checksums are right, so somebody wrote "
        "this on purpose",
    )
