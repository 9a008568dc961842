"""Spark's metadata of stateful operators, read and written without Spark.

Most operators have one file, `_metadata/metadata`: version 1. An operator with column families,
such as transformWithState, has a file for the first batch of every run of the query,
`_metadata/v2/<batch>`: version 2. It names the operator's state variables, and by absolute URIs the
files of its schemas in `_stateSchema`. The newest file before a batch is valid for it. Source:
Spark's OperatorStateMetadata, releases 4.0 to 4.3.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from statestore.checkpoint.text_files import (
    compact,
    damaged,
    delete_file,
    lines_of,
    read_text,
    write_text,
)
from statestore.codec.references import STORE_NAME
from statestore.core.errors import NotFoundError
from statestore.core.json_fields import Fields, MalformedError, parse_fields, to_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from statestore.io.file_io import FileIO

JOIN_OPERATOR = "symmetricHashJoin"
_SIDES = ("left", "right")
_JOIN_LISTS = ("keyWithTsToValues", "tsWithKey")
_JOIN_PARTNERS = {
    "keyWithIndexToValue": "keyToNumValues",
    "keyToNumValues": "keyWithIndexToValue",
    "keyWithTsToValues": "tsWithKey",
    "tsWithKey": "keyWithTsToValues",
}
_JOIN_INDEXES = ("keyToNumValues", "tsWithKey")
"""Column families of a side of a join: with several values a key; and those that Spark leaves out
when it counts rows."""
OF_OPERATOR = re.compile(r"state/[0-9]+/_metadata/.*")
"""Paths of metadata below a checkpoint."""
_SCHEMAS = "/_stateSchema/"


@dataclass(frozen=True, slots=True)
class StoreInfo:
    """A store of a stateful operator, as Spark's operator metadata has it.

    Attributes:
        schema_files: Paths of its schemas below the operator's directory, oldest first; empty in
            metadata of version 1.
    """

    name: str
    num_prefix_columns: int
    num_partitions: int
    schema_files: tuple[str, ...] = ()

    @property
    def schema_paths(self) -> tuple[str, ...]:
        """Paths of its schemas below the operator's directory, newest last, of any metadata."""
        first = f"0/{self.name}/_metadata/schema".replace("/default/", "/")
        return self.schema_files or (first,)


@dataclass(frozen=True, slots=True)
class StateVariable:
    """A state variable of transformWithState, or its timers.

    Attributes:
        name: As the query and its column family name it; timers begin with `$`.
        kind: Spark's word: ValueState, ListState, MapState or TimerState.
        has_ttl: Whether its entries expire.
    """

    name: str
    kind: str
    has_ttl: bool


@dataclass(frozen=True, slots=True)
class OperatorInfo:
    """A stateful operator of a query.

    Attributes:
        id: Number of its directory below `state`.
        name: Spark's short name, such as `stateStoreSave`.
        stores: In Spark's order, as the checkpoint IDs.
        has_families: Whether its state is in column families: metadata of version 2.
        variables: State variables, in no order; only transformWithState has any.
    """

    id: int
    name: str
    stores: tuple[StoreInfo, ...]
    has_families: bool = False
    variables: tuple[StateVariable, ...] = ()

    @property
    def lists(self) -> frozenset[str]:
        """Names that its column families may have whose keys have several values."""
        if self.name == JOIN_OPERATOR:
            return _of_sides(_JOIN_LISTS)
        return frozenset(one.name for one in self.variables if one.kind == "ListState")

    def goes_with(self, name: str) -> str | None:
        """Return what of a join must agree with a store or column family, None for nothing."""
        side, _, kind = name.partition("-")
        partner = _JOIN_PARTNERS.get(kind) if self.name == JOIN_OPERATOR else None
        return None if partner is None else f"{side}-{partner}"

    @property
    def indexes(self) -> frozenset[str]:
        """Names of its column families that Spark keeps beside those of rows, but `$…`."""
        return _of_sides(_JOIN_INDEXES) if self.name == JOIN_OPERATOR else frozenset()


def _of_sides(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(f"{side}-{name}" for side in _SIDES for name in names)


def operator_metadata_path(state_directory: str, operator: int) -> str:
    """Return the path of Spark's metadata of an operator, in version 1."""
    return f"{state_directory}/{operator}/_metadata/metadata"


def read_operators(
    io: FileIO, state_directory: str, newest_batch: int | None = None
) -> tuple[OperatorInfo, ...]:
    """Return the stateful operators of a query, by their newest metadata.

    Args:
        io: Storage of the checkpoint.
        state_directory: The checkpoint's `state` directory.
        newest_batch: Metadata of later batches is not looked at; None for that of all.

    Raises:
        CorruptionError: Metadata is damaged.
        StorageError: The storage failed.
    """
    return operators_of(read_operator_files(io, state_directory), newest_batch)


OperatorFiles = tuple[dict[int, tuple[str, str]], ...]
"""Path and text of the metadata of each operator by first batch, -1 for version 1."""


def read_operator_files(io: FileIO, state_directory: str) -> OperatorFiles:
    """Read what `operators_of` takes apart; arguments and errors as `read_operators`."""
    files: list[dict[int, tuple[str, str]]] = []
    while True:
        try:
            files.append(_read_files(io, state_directory, len(files)))
        except NotFoundError:
            return tuple(files)


def operators_of(files: OperatorFiles, newest_batch: int | None = None) -> tuple[OperatorInfo, ...]:
    """Return the stateful operators by what was read; arguments and errors as `read_operators`."""
    return tuple(
        parse_operator(text, path, operator)
        for operator, of_batches in enumerate(files)
        for path, text in [of_batches[max(_valid_until(of_batches, newest_batch))]]
    )


def schema_uris_of(files: OperatorFiles) -> tuple[str, ...]:
    """Return the URIs by which Spark finds the newest schema of each store, at the next start.

    Only metadata of version 2 has any. Errors as `read_operators`.
    """
    return tuple(
        store["stateSchemaFilePaths"][-1]
        for of_batches in files
        for path, text in [of_batches[max(of_batches)]]
        for store in _take_apart(text, path)[1]["stateStoreInfo"]
        if store.get("stateSchemaFilePaths")
    )


def _read_files(io: FileIO, state_directory: str, operator: int) -> dict[int, tuple[str, str]]:
    """Return path and text of an operator's metadata by first batch, -1 for version 1.

    Raises:
        NotFoundError: It has none.
    """
    path = operator_metadata_path(state_directory, operator)
    try:
        return {-1: (path, read_text(io, path))}
    except NotFoundError:
        directory = _directory(state_directory, operator)
        # Spark may purge a listed file before it is read, and all where it has written new ones.
        for _ in range(2):
            names = [info.name for info in io.list(directory)]
            batches = sorted(int(name) for name in names if name.isascii() and name.isdigit())
            files: dict[int, tuple[str, str]] = {}
            for batch in batches:
                path = f"{directory}/{batch}"
                with suppress(NotFoundError):
                    files[batch] = path, read_text(io, path)
            if files:
                return files
            if not batches:
                break
        raise


def _valid_until(files: Mapping[int, Any], newest_batch: int | None) -> list[int]:
    """Return the first batches of what is no later than a batch; the first there is, always."""
    end = max(files) if newest_batch is None else max(newest_batch, min(files))
    return [batch for batch in files if batch <= end]


def _directory(state_directory: str, operator: int) -> str:
    return f"{state_directory}/{operator}/_metadata/v2"


def metadata_with_families_path(state_directory: str, operator: int, batch: int) -> str:
    """Return the path of Spark's metadata of an operator in version 2, valid from a batch on."""
    return f"{_directory(state_directory, operator)}/{batch}"


def parse_operator(text: str, path: str, operator: int) -> OperatorInfo:
    """Take the metadata of an operator apart.

    Raises:
        CorruptionError: It is not that, or another operator's.
    """
    try:
        fields = parse_fields(lines_of(text, path)[-1])
        stores = tuple(map(_parse_store, map(Fields, fields.items("stateStoreInfo"))))
        info = fields.object("operatorInfo")
        found = OperatorInfo(
            info.integer("operatorId"),
            info.text("operatorName"),
            stores,
            text.startswith("v2\n"),
            _parse_variables(fields),
        )
    except MalformedError as error:
        raise damaged(path, text) from error
    if found.id != operator or not stores:
        raise damaged(path, text)
    return found


def _parse_variables(fields: Fields) -> tuple[StateVariable, ...]:
    # Other operators than transformWithState have none, or an empty text.
    if not fields.has("operatorPropertiesJson") or not fields.text("operatorPropertiesJson"):
        return ()
    properties = parse_fields(fields.text("operatorPropertiesJson"))
    if not properties.has("stateVariables"):
        return ()
    return tuple(
        StateVariable(
            variable.text("stateName"),
            variable.text("stateVariableType"),
            variable.flag("ttlEnabled"),
        )
        for variable in map(Fields, properties.items("stateVariables"))
    )


def _parse_store(store: Fields) -> StoreInfo:
    uris = store.items("stateSchemaFilePaths") if store.has("stateSchemaFilePaths") else []
    return StoreInfo(
        store.text("storeName", STORE_NAME),
        store.integer("numColsPrefixKey"),
        store.integer("numPartitions", 1),
        tuple(_schema_file(to_text(uri)) for uri in uris),
    )


def _schema_file(uri: str) -> str:
    """Return the path of a schema below its operator's directory.

    Raises:
        MalformedError: It is in no such place.
    """
    _, found, below = uri.rpartition(_SCHEMAS)
    if not found or ".." in below.split("/"):
        raise MalformedError(f"no file of a state schema: {uri!r:.80}")
    return f"{_SCHEMAS[1:]}{below}"


def write_operator(operator: OperatorInfo, state_uri: str) -> str:
    """Return Spark's metadata of an operator with column families and no state variables.

    Args:
        operator: The operator.
        state_uri: URI for Hadoop of the `state` directory, by which schemas are named.
    """
    root = _as_written(state_uri)
    stores = [
        {
            "storeName": store.name,
            "numColsPrefixKey": store.num_prefix_columns,
            "numPartitions": store.num_partitions,
            "stateSchemaFilePaths": [f"{root}/{operator.id}/{f}" for f in store.schema_files],
        }
        for store in operator.stores
    ]
    fields = {
        "operatorInfo": {"operatorId": operator.id, "operatorName": operator.name},
        "stateStoreInfo": stores,
        "operatorPropertiesJson": compact({"useVirtualColumnFamilies": True}),
    }
    return _put_together(["v2"], fields)


def copy_operators(
    io: FileIO,
    state_directory: str,
    new_io: FileIO,
    new_state_directory: str,
    new_state_uri: str,
    new_ids: Mapping[int, int],
    num_partitions: int,
    newest_batch: int,
) -> None:
    """Write Spark's metadata of operators for another checkpoint.

    Args:
        io: Storage of the checkpoint.
        state_directory: Its `state` directory.
        new_io: Storage of the one to write to.
        new_state_directory: Its `state` directory.
        new_state_uri: Its URI for Hadoop, by which schemas are named.
        new_ids: The number of each operator there, by the one it has.
        num_partitions: State partitions of the query there.
        newest_batch: Metadata of later batches is left out.

    Raises:
        CorruptionError: Metadata is damaged.
        NotFoundError, StorageError: It cannot be read or written.
    """
    for old, new in new_ids.items():
        files = _read_files(io, state_directory, old)
        for path, text in files.values():
            parse_operator(text, path, old)
        for batch in _valid_until(files, newest_batch):
            path, text = files[batch]
            head, fields = _take_apart(text, path)
            fields["operatorInfo"]["operatorId"] = new
            for store in fields["stateStoreInfo"]:
                store["numPartitions"] = num_partitions
                for number, uri in enumerate(store.get("stateSchemaFilePaths") or ()):
                    root = _as_written(new_state_uri, uri)
                    store["stateSchemaFilePaths"][number] = f"{root}/{new}/{_schema_file(uri)}"
            new_path = operator_metadata_path(new_state_directory, new)
            if batch >= 0:
                new_path = f"{_directory(new_state_directory, new)}/{batch}"
            write_text(new_io, new_path, _put_together(head, fields), overwrite=True)


def _as_written(uri: str, old: str = "") -> str:
    """Return a URI as Spark opens it: `s3a` for `s3`, unless the one before says `s3`, too."""
    scheme, _, rest = uri.partition(":")
    return f"s3a:{rest}" if scheme == "s3" and not old.startswith("s3:") else uri


def write_num_partitions(
    io: FileIO, state_directory: str, operators: Iterable[int], num_partitions: int, batch: int
) -> None:
    """Write the query's number of state partitions from a batch on into the metadata.

    Metadata of later batches, which no longer exist, is deleted. Repeating it does no harm.

    Args:
        io: Storage of the checkpoint.
        state_directory: Its `state` directory.
        operators: Their IDs.
        num_partitions: State partitions.
        batch: First batch with them.

    Raises:
        CorruptionError, NotFoundError, StorageError: As `copy_operators`.
    """
    for operator in operators:
        files = _read_files(io, state_directory, operator)
        holds = max((known for known in files if known < batch), default=min(files))
        path, text = files.pop(holds)
        parse_operator(text, path, operator)
        head, fields = _take_apart(text, path)
        before = [store["numPartitions"] for store in fields["stateStoreInfo"]]
        if set(before) != {num_partitions}:
            for store in fields["stateStoreInfo"]:
                store["numPartitions"] = num_partitions
            # Of version 1 there is one file, for all batches.
            path = path if holds < 0 else f"{_directory(state_directory, operator)}/{batch}"
            write_text(io, path, _put_together(head, fields), overwrite=True)
        for later, (other, _) in files.items():
            if later >= batch and other != path:
                delete_file(io, other)


def _take_apart(text: str, path: str) -> tuple[list[str], dict[str, Any]]:
    *head, line = lines_of(text, path)
    return head, parse_fields(line).all


def _put_together(head: list[str], fields: Mapping[str, Any]) -> str:
    return "\n".join([*head, compact(fields)])
