"""Requests of docs/protocol.md: reads their fields, and names a wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

from statestore.checkpoint.commit import NewVersion, SstRows
from statestore.checkpoint.key_group_rows import NUM_CLASSES
from statestore.codec.column_family import ColumnFamily
from statestore.codec.commit_times import MemoryUse
from statestore.codec.references import StoreName, VersionRef
from statestore.codec.trailer import RowCounts
from statestore.core.errors import IncompatibleError, InvalidArgumentError, ProtocolError
from statestore.core.ids import is_checkpoint_id
from statestore.core.json_fields import Fields, MalformedError
from statestore.core.options import StateStoreOptions
from statestore.io.checkpoint_memory_address import CheckpointMemoryAddress

T = TypeVar("T", int, str, bool, dict[str, Any], list[Any])


class Request:
    """One call's arguments, read field by field."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self._options: StateStoreOptions | None = None

    def get(self, name: str, kind: type[T]) -> T:
        """Return a required field.

        Raises:
            ProtocolError: It is missing or of another type.
        """
        value = self._fields.get(name)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ProtocolError(
                "a field of a call is missing or of another type",
                op=self._fields.get("op"),
                field=name,
                expected=kind.__name__,
                found=type(value).__name__,
                to_fix="use the shim and the package of one version",
            )
        return value

    def get_or(self, name: str, kind: type[T], default: T) -> T:
        """Return a field, or the default when it is absent or null."""
        return default if self._fields.get(name) is None else self.get(name, kind)

    def get_optional(self, name: str, kind: type[T]) -> T | None:
        """Return a field, or None when it is absent or null."""
        return None if self._fields.get(name) is None else self.get(name, kind)

    def child(self, name: str) -> Request:
        """Return a field that is an object, as a request of its own."""
        return Request(self.get(name, dict))

    def provider(self) -> str:
        """Return the calling provider instance, empty where unknown."""
        return self.child("store").get_or("provider", str, "")

    def options(self) -> StateStoreOptions:
        """Return the options the call carries.

        Raises:
            InvalidArgumentError: One does not exist or is out of range.
        """
        if self._options is None:
            given = self.get_or("options", dict, {})
            try:
                self._options = _read_options(tuple(given), *given.values())
            except TypeError:  # a value that is an array or an object, which no option is
                self._options = StateStoreOptions.from_fields(given)
        return self._options

    def store_name(self) -> StoreName:
        """Return the store of the call, without its root."""
        store = self.child("store")
        return StoreName(
            store.get("operator", int),
            store.get("partition", int),
            store.get_or("name", str, "default"),
        )

    def root(self) -> str:
        """Return the checkpoint's `state` directory, as Hadoop's Path.toString prints it."""
        return self.child("store").get("root", str)

    def run(self) -> str:
        """Return the query run of the call, empty where no query runs."""
        return self.child("store").get_or("run", str, "")

    def memory(self) -> CheckpointMemoryAddress | None:
        """Return the address of the driver's memory, None where the call has none."""
        if self.child("store").get_optional("memory", dict) is None:
            return None
        fields = self.child("store").child("memory")
        return CheckpointMemoryAddress(
            fields.get("host", str), fields.get("port", int), fields.get("token", str)
        )

    def backend(self, available: tuple[str, ...]) -> str:
        """Return the state backend of the call, the first available one when it names none.

        Raises:
            IncompatibleError: That backend is not available.
        """
        asked = self.get_or("backend", str, available[0])
        if asked not in available:
            raise IncompatibleError(
                "the engine does not have this state backend",
                kind="backend-changed",
                query=asked,
                available=", ".join(available),
                to_fix="use a provider of one of these backends",
            )
        return asked

    def version_ref(self, name: str) -> VersionRef:
        """Return a version that the call names.

        Raises:
            ProtocolError: A field is missing.
        """
        fields = self.child(name)
        return VersionRef(
            fields.get("version", int), fields.get("checkpoint_id", str), fields.get("lineage", str)
        )

    def new_version(self, memory: MemoryUse) -> NewVersion:
        """Return the version that a commit is to make, given the engine's memory.

        Raises:
            ProtocolError, InvalidArgumentError: A field is missing or out of range.
        """
        checkpoint_id = self.get("checkpoint_id", str)
        if not is_checkpoint_id(checkpoint_id):
            raise InvalidArgumentError(
                "a checkpoint ID is not 32 lower-case hex digits",
                checkpoint_id=checkpoint_id,
                to_fix="make it from 16 random bytes",
            )
        delta = self.child("delta")
        has_parent = self.get_optional("parent", dict) is not None
        growth = self.get_optional("key_group_growth", list)
        if growth is not None and len(growth) != NUM_CLASSES:
            raise InvalidArgumentError(
                "growth by key group has a wrong number of entries",
                key_group_growth=len(growth),
                expected=NUM_CLASSES,
                to_fix="send one for each class of key groups, or null",
            )
        return NewVersion(
            version=self.get("version", int),
            parent=self.version_ref("parent") if has_parent else None,
            checkpoint_id=checkpoint_id,
            checkpoint_format=self.get("checkpoint_format", int),
            rows=RowCounts(
                delta.get("put", int), delta.get("delete", int), delta.get("merge", int)
            ),
            num_keys=self.get("num_keys", int),
            num_internal_keys=self.get_or("num_internal_keys", int, 0),
            max_parallelism=self.get("max_parallelism", int),
            num_partitions=self.get("num_partitions", int),
            rescalable=self.get("rescalable", bool),
            column_families=tuple(map(_family, self.get("column_families", list))),
            backend=self.get_or("backend", str, "filesystem"),
            state_bytes=self.get_or("state_bytes", int, 0),
            key_group_growth=None if growth is None else tuple(growth),
            sst=_sst_rows(delta),
            write_ms=self.get_or("write_ms", int, 0),
            memory=memory,
        )


@lru_cache(maxsize=64, typed=True)
def _read_options(names: tuple[str, ...], *values: Any) -> StateStoreOptions:
    """Return the options, cached: a query sends the same ones in each call."""
    return StateStoreOptions.from_fields(dict(zip(names, values, strict=True)))


def _family(described: Any) -> ColumnFamily:
    try:
        return ColumnFamily.from_json(Fields(described))
    except MalformedError as error:
        raise ProtocolError(
            "a column family has a wrong description",
            found=str(error),
            to_fix="use the shim and the package of one version",
        ) from error


def _sst_rows(delta: Request) -> SstRows | None:
    if delta.get_optional("sst", dict) is None:
        return None
    sst = delta.child("sst")
    rows = SstRows(sst.get("rows_length", int), sst.get("checksum", int))
    if sst.get_optional("deletes", dict) is None:
        return rows
    deletes = sst.child("deletes")
    return replace(
        rows, deletes_path=deletes.get("path", str), deletes_length=deletes.get("length", int)
    )
