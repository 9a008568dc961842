"""Versions of checkpoints that Spark's own state store providers wrote, without converting them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TYPE_CHECKING

from statestore.checkpoint.query_log import ENCODING_KEY, STRICT_DISTRIBUTION_KEY, is_avro, is_on
from statestore.codec.column_family import DEFAULT_FAMILY
from statestore.codec.joined_trailers import join_schemas
from statestore.codec.partition_key import grouped_otherwise, partition_key_columns
from statestore.codec.references import StoreName
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.core.key_groups import resolve_max_parallelism
from statestore.core.providers import SPARK_PROVIDERS
from statestore.operations.checkpoint import MAX_REQUESTS_AT_ONCE
from statestore.operations.store_state import States, StoreState
from statestore.spark_files.rows import RowForm, SparkVersion

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from statestore.checkpoint.operator_metadata import OperatorInfo, StoreInfo
    from statestore.codec.column_family import ColumnFamily
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.spark_files.files import Chain, StoreFiles
    from statestore.spark_files.snapshot import Snapshot

_STATE_STORE = "spark.sql.streaming.stateStore"
_CODEC = f"{_STATE_STORE}.compression.codec"
_CHECKSUMS = f"{_STATE_STORE}.rowChecksum.enabled"
_MERGE_OPERATOR = f"{_STATE_STORE}.rocksdb.mergeOperatorVersion"
_BATCH = re.compile(r"([0-9]+)_[^/.]*")
_LENGTHS = "$rowCounter"
_COUNTS = "$count"
_INDEXES = ("$ttl", "$min", _COUNTS, _LENGTHS)
"""Column families of Spark beside a state variable: expiries of rows, and lengths of lists."""


def find_versions(
    checkpoint: OpenCheckpoint,
    version: int,
    *,
    operator: int | None = None,
    name: str | None = None,
    max_parallelism: int | None = None,
) -> dict[StoreName, SparkVersion]:
    """Return a version of every store, from listings and the descriptions of snapshots.

    Args:
        checkpoint: One of Spark's own providers'.
        version: A committed version.
        operator: Only stores of this operator, None for all.
        name: Only stores of this name, None for all.
        max_parallelism: Number of key groups; as the option says when None.

    Raises:
        NotFoundError: A store lacks the version in a state partition (kind version-not-found), or
            its schemas; or as `OpenCheckpoint.require_metadata`.
        CorruptionError: A file of Spark's is damaged.
        IncompatibleError: Rows are in an encoding, or a file is of a form, that is not known.
        InvalidArgumentError: The option maxParallelism does not fit the state partitions.
        StorageError: The storage failed.
    """
    conf = checkpoint.offsets_entry(version - 1).conf
    encoding = conf.get(ENCODING_KEY, "unsaferow")
    if encoding.lower() != "unsaferow" and not is_avro(conf):
        raise IncompatibleError(
            "rows are encoded in a way that cannot be read",
            checkpoint=checkpoint.uri,
            key=ENCODING_KEY,
            found=encoding,
            expected="unsaferow or avro",
            to_fix="use a later release of statestore, or Spark's state reader",
        )
    if operator is None:
        checkpoint.require_metadata(version)
    if max_parallelism is None:
        num_partitions = checkpoint.num_partitions_at(version)
        max_parallelism = resolve_max_parallelism(
            checkpoint.options.max_parallelism, num_partitions
        )
    found: dict[StoreName, SparkVersion] = {}
    for info in checkpoint.operators_at(version):
        for store in info.stores:
            if operator in (None, info.id) and name in (None, store.name):
                found |= _Finder(checkpoint, version, conf, max_parallelism, info, store).find()
    return found


def find_states(
    checkpoint: OpenCheckpoint,
    version: int,
    *,
    operator: int | None = None,
    name: str | None = None,
) -> States:
    """Return the versions that `find_versions` finds, as states to read; errors as there."""
    found = find_versions(checkpoint, version, operator=operator, name=name)
    return {store: state_of(checkpoint, version, one) for store, one in found.items()}


def without_schema(found: SparkVersion) -> set[str]:
    """Return the column families of a version that have state and no schema.

    Indexes of a state variable that is gone are none: Spark's `deleteIfExists` deletes the variable
    and leaves them.
    """
    names = {family.name for family in found.families} | {DEFAULT_FAMILY}
    return {
        name
        for name in found.family_ids.keys() - names
        for index, _, variable in (name.partition("_"),)
        if index not in _INDEXES or variable in found.family_ids
    }


@dataclass(frozen=True, slots=True)
class _Finder:
    """Finds a version of one store in all state partitions."""

    checkpoint: OpenCheckpoint
    version: int
    conf: Mapping[str, str]
    max_parallelism: int
    operator: OperatorInfo
    store: StoreInfo

    def find(self) -> dict[StoreName, SparkVersion]:
        families = self._families()
        num_partitions = self.checkpoint.num_partitions_at(self.version)
        # A limit, or an aggregation without a key: there is nothing to partition by.
        is_single = not any(partition_key_columns(self.store.name, one) for one in families)
        stores = [
            StoreName(self.operator.id, partition, self.store.name)
            for partition in range(1 if is_single else num_partitions)
        ]
        with ThreadPoolExecutor(MAX_REQUESTS_AT_ONCE) as pool:
            find_one = partial(self._find_one, families)
            found = dict(zip(stores, pool.map(find_one, stores), strict=True))
        former = self._former(set().union(*map(without_schema, found.values())))
        return {store: self._with_former(one, former) for store, one in found.items()}

    def _find_one(self, families: tuple[ColumnFamily, ...], store: StoreName) -> SparkVersion:
        return self._find_in(families, self._files(store))

    def _find_in(self, families: tuple[ColumnFamily, ...], files: StoreFiles) -> SparkVersion:
        chain = files.chain(self.version, self.checkpoint.checkpoint_id(files.store, self.version))
        form = RowForm(
            files.is_rocksdb,
            self.operator.has_families,
            is_on(self.conf, _CHECKSUMS),
            b"" if self.conf.get(_MERGE_OPERATOR, "1") == "2" else b",",
        )
        older = None
        if chain.snapshot is not None:
            older = partial(self._find_in, families, files.without(chain.snapshot))
        found = SparkVersion(files, chain, None, form, families, self.max_parallelism, older)
        try:
            snapshot = self._snapshot(files, chain)
        except (CorruptionError, NotFoundError) as error:
            return found.without(error)
        if self.operator.has_families:
            families = self._with_ids(families, snapshot, chain)
        return replace(found, snapshot=snapshot, families=families)

    def _files(self, store: StoreName) -> StoreFiles:
        checkpoint = self.checkpoint
        codec = self.conf.get(_CODEC, "lz4")
        return checkpoint.spark_files.of(store, checkpoint.provider, codec)

    def _snapshot(self, files: StoreFiles, chain: Chain) -> Snapshot | None:
        if chain.snapshot is None or not files.is_rocksdb:
            return None
        return self.checkpoint.spark_files.snapshot(files, chain.snapshot)

    def _families(self) -> tuple[ColumnFamily, ...]:
        """Return the column families as the schema files describe them."""
        checkpoint = self.checkpoint
        known = self.store.schema_paths
        files = [name for name in known if self._is_of_before(name)] or known[:1]
        found = checkpoint.schemas(self.operator.id, files[-1])
        if self.operator.has_families:
            before = files[:-1] if is_avro(self.conf) else []
            described = [
                family for file in before for family in checkpoint.schemas(self.operator.id, file)
            ]
            return tuple(self._with_values(one, described, self.operator.lists) for one in found)
        found = tuple(replace(family, value_schemas={}) for family in found)
        is_rocksdb = checkpoint.provider == SPARK_PROVIDERS["spark-rocksdb"]
        num_prefix_columns = self.store.num_prefix_columns or None
        encoder = "prefix" if is_rocksdb and num_prefix_columns else "no-prefix"
        return tuple(
            replace(family, encoder=encoder, num_prefix_columns=num_prefix_columns)
            for family in found
        )

    def _with_values(
        self, family: ColumnFamily, described: Iterable[ColumnFamily], lists: Collection[str]
    ) -> ColumnFamily:
        """Return one of several column families with what its values are.

        Args:
            family: The newest description.
            described: Others that there are, of any column family.
            lists: Names of those whose keys have several values.
        """
        family = replace(family, multi_values=family.name in lists)
        if not is_avro(self.conf):
            return replace(family, value_schemas={})
        same = (one for one in described if one.name == family.name)
        return reduce(join_schemas, same, replace(family, avro=True))

    def _former(self, names: set[str]) -> tuple[ColumnFamily, ...]:
        """Return those column families, which the newest schemas lack, as former files have them.

        A program that has a variable no more leaves its rows. And where one program began a batch
        and another one ended it, Spark keeps the metadata of the first: none may name the file of
        the program whose rows are there.
        """
        if not names:
            return ()
        checkpoint, operator = self.checkpoint, self.operator.id
        directory = f"_stateSchema/{self.store.name}"
        files = [
            (int(match[1]), f"{directory}/{match[0]}")
            for info in checkpoint.io.list(f"{checkpoint.state_directory}/{operator}/{directory}")
            if (match := _BATCH.fullmatch(info.name)) and self._is_of_before(info.name)
        ]
        known: dict[str, list[tuple[int, ColumnFamily]]] = {}
        for batch, file in sorted(files):
            for family in checkpoint.schemas(operator, file):
                known.setdefault(family.name, []).append((batch, family))
        # Beside a list are its lengths, or with a TTL their counts; metadata need not say so.
        lists = {name for name in names if names & {f"{_LENGTHS}_{name}", f"{_COUNTS}_{name}"}}
        found = []
        for name in sorted(names & known.keys()):
            described = known[name]
            first, *others = (one for batch, one in described if batch == described[-1][0])
            # Which of several programs that began a batch has ended it nothing tells.
            if all(other == first for other in others):
                found.append(self._with_values(first, (one for _, one in described), lists))
        return tuple(found)

    def _with_former(self, found: SparkVersion, former: tuple[ColumnFamily, ...]) -> SparkVersion:
        if not former:
            return found
        families = self._with_ids(former, found.snapshot, found.chain)
        return replace(found, families=(*found.families, *families))

    def _is_of_before(self, name: str) -> bool:
        """Tell whether a file may have schemas of the version; its name has a batch."""
        batch = _BATCH.fullmatch(name.rpartition("/")[2])
        return batch is None or int(batch[1]) < self.version

    def _with_ids(
        self, families: tuple[ColumnFamily, ...], snapshot: Snapshot | None, chain: Chain
    ) -> tuple[ColumnFamily, ...]:
        """Return those column families that a state partition has, by its own IDs."""
        if snapshot is None or not snapshot.family_ids:
            raise CorruptionError(
                "the column families of a store have no IDs: no snapshot names them",
                file=chain.paths[0],
                offset=0,
                expected="a snapshot, which Spark writes when a column family is made",
                to_fix="put the snapshot back from a copy",
            )
        return tuple(
            replace(
                family,
                id=snapshot.family_ids[family.name],
                internal=family.name in snapshot.internal,
            )
            for family in families
            if family.name in snapshot.family_ids
        )


def state_of(checkpoint: OpenCheckpoint, version: int, found: SparkVersion) -> StoreState:
    """Return a version of a store as what reading stands on."""
    files, snapshot, sizes = found.files, found.snapshot, found.sizes
    num_keys = snapshot.num_keys if snapshot is not None and not found.chain.changes else None
    own = files.changes_path(version, checkpoint.checkpoint_id(files.store, version))
    conf = checkpoint.offsets_entry(version - 1).conf
    return StoreState(
        store=files.store,
        num_partitions=checkpoint.num_partitions_at(version),
        max_parallelism=found.max_parallelism,
        rescalable=is_on(conf, STRICT_DISTRIBUTION_KEY)
        and grouped_otherwise(files.store.name, found.families) is None,
        is_checked=not found.form.has_families,
        num_keys=num_keys,
        most_rows=max(1, num_keys or 0),
        column_families=found.families,
        kind="full" if own is None else "incremental",
        own_bytes=sum(sizes.values()) if own is None else files.size(own),
        full_bytes=sum(sizes.values()),
        num_files=len(sizes),
        contents=(checkpoint.uri, files.directory, version),
        is_by_key=found.form.is_rocksdb,
        rows=lambda name, _group=None: found.batches(checkpoint.scratch_directory, name),
        files=sizes if own is None else None,
    )
