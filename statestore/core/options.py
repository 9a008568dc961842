"""Options: one frozen class, from whose fields keys, checks and docs come."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from statestore.core.errors import InvalidArgumentError

PREFIX = "spark.sql.streaming.stateStore."
RETAIN_KEY = "spark.sql.streaming.minBatchesToRetain"
_RETAIN_FIELD = "min_versions_to_retain"
_EMPTY = '""'  # no text, as a user writes it: a word would be taken for a value

_URL = re.compile(r"(https?://[^\s/]+(/\S*)?)?")

OptionType = Literal["int", "long", "float", "boolean", "string", "url"]
"""Of `url` are the URL of a server, by HTTP or HTTPS, and no text."""
OptionValue = int | float | bool | str


@dataclass(frozen=True, slots=True)
class Option:
    """One row of the table.

    Attributes:
        key: Spark key without the prefix.
        field: Field of StateStoreOptions.
        type: How the value is written.
        default: Value when the key is not set.
        unit: Unit of the value, "" for none.
        minimum, maximum: Inclusive bounds, None for none.
        choices: The allowed strings, empty when any.
        scope: Which side reads it: shim, engine or both.
        fixed: True when the checkpoint keeps the value of its first batch.
        since: Package version that introduced it.
        doc: What it does, one sentence or two.
    """

    key: str
    field: str
    type: OptionType
    default: OptionValue
    doc: str
    scope: Literal["shim", "engine", "both"]
    unit: str = ""
    minimum: int | float | None = None
    maximum: int | float | None = None
    choices: tuple[str, ...] = ()
    fixed: bool = False
    since: str = "0.1.0"

    @property
    def full_key(self) -> str:
        """The key as a user sets it."""
        return PREFIX + self.key

    def parse(self, value: object) -> OptionValue:
        """Return the value in the option's type, checked.

        Raises:
            InvalidArgumentError: It is of another type or out of range; names key, value and range.
        """
        parsed = self._convert(value)
        # So that NaN, which is neither smaller nor larger than anything, is refused.
        is_above = self.minimum is None or parsed >= self.minimum  # type: ignore[operator]
        is_below = self.maximum is None or parsed <= self.maximum  # type: ignore[operator]
        if not (is_above and is_below) or (self.choices and parsed not in self.choices):
            raise self._refusal(value)
        return parsed

    def _convert(self, value: object) -> OptionValue:
        if value is None:  # else the text None is taken
            raise self._refusal(value)
        text = str(value).strip()
        try:
            if self.type == "boolean":
                return {"true": True, "false": False}[text.lower()]
            if self.type == "float":
                return float(text)
            if self.type in ("int", "long"):
                return int(text)
        except (ValueError, KeyError):
            raise self._refusal(value) from None
        if self.type == "url" and not _URL.fullmatch(text):
            raise self._refusal(value)
        return text

    def _refusal(self, value: object) -> InvalidArgumentError:
        return InvalidArgumentError(
            "value of an option is out of range",
            kind="invalid-option",
            key=self.full_key,
            value=value,
            to_fix=f"set it to {self.describe_range()}, or leave it out for {self.default_text()}",
        )

    def describe_range(self) -> str:
        """Return the range in words."""
        if self.choices:
            return " or ".join(choice or _EMPTY for choice in self.choices)
        if self.type == "boolean":
            return "true or false"
        if self.type == "string":
            return "any text"
        if self.type == "url":
            return "http://HOST:PORT or https://HOST:PORT"
        kind = "a number" if self.type == "float" else "a whole number"
        if self.maximum is not None:
            return f"{kind} from {self.minimum} to {self.maximum}"
        return f"{kind} of at least {self.minimum}"

    def default_text(self) -> str:
        """Return the default as a user would write it."""
        return _as_text(self.default) or _EMPTY


def _option(
    key: str, default: OptionValue, type: OptionType, *, secret: bool = False, **row: Any
) -> Any:
    """Return the field of an option: what Option says of it, but for its name."""
    row |= {"key": key, "default": default, "type": type}
    return field(default=default, repr=not secret, metadata=row)


@dataclass(frozen=True, slots=True)
class StateStoreOptions:
    """Every number and switch a user can set, checked; each field with its row of TABLE.

    `min_versions_to_retain` is Spark's own `spark.sql.streaming.minBatchesToRetain` and therefore
    not in the table: how many of the newest versions can be loaded, at least 1.
    """

    # fmt: off
    max_parallelism: int = _option(
        "maxParallelism", 0, "int", scope="engine",
        minimum=0, maximum=32768, fixed=True,
        doc="Number of key groups, the most state partitions a rescale makes without hashing rows "
        "anew. 0 takes the largest N * 2^k up to 32768, N being the number of state partitions.",
    )
    partitions: int = _option(
        "partitions", 0, "int", scope="shim",
        minimum=0, maximum=32768,
        doc="Number of state partitions. 0: a new query takes spark.sql.shuffle.partitions, an old "
        "one keeps what it has. A query whose checkpoint has another number does not start, and "
        "the error shows the command that rescales; statestore.run does it before it starts.",
    )
    file_compression: str = _option(
        "file.compression", "zstd", "string", scope="both",
        choices=("none", "zstd"),
        doc="Compression of the buffers in delta and snapshot files.",
    )
    overlay_max_bytes: int = _option(
        "overlay.maxBytes", -1, "long", scope="shim",
        unit="bytes", minimum=-1,
        doc="Uncommitted writes that an executor keeps on its heap, all stores together; beyond "
        "its share, at least 1 MiB, a store spills to local sorted runs. -1 takes a quarter of the "
        "largest heap (-Xmx).",
    )
    off_heap_enabled: bool = _option(
        "offHeap.enabled", False, "boolean", scope="shim",
        doc="Whether committed rows are in memory outside of the JVM's heap, where no garbage "
        "collection looks at them: all of filesystem and heap, of rocksdb as many as fit. It is "
        "taken from spark.memory.offHeap.size, which the application has to have. See "
        "docs/sizing.md.",
    )
    snapshot_max_chain_length: int = _option(
        "snapshot.maxChainLength", 32, "int", scope="engine",
        unit="deltas", minimum=1, maximum=1000,
        doc="Number of deltas since the last snapshot at which a new one is taken. The rocksdb "
        "backend merges files instead: rocksdb.mergeMinFiles. Spark asks for one after five times "
        "spark.sql.streaming.stateStore.minDeltasForSnapshot, 50: for more, raise that too.",
    )
    snapshot_replay_ratio: float = _option(
        "snapshot.replayRatio", 1.0, "float", scope="engine",
        minimum=0.1, maximum=100,
        doc="A snapshot is taken when a restore is estimated to cost (1 + ratio) times what it "
        "would cost from a fresh snapshot, and at least 50 ms more; or when 8 deltas or more hold "
        "(1 + ratio) times the rows of the state.",
    )
    rocksdb_incremental: bool = _option(
        "rocksdb.incremental", True, "boolean", scope="both",
        doc="Whether a commit of the rocksdb backend makes only the rows of its batch durable. "
        "false writes the full state into every version's file.",
    )
    rocksdb_merge_min_files: int = _option(
        "rocksdb.mergeMinFiles", 8, "int", scope="engine",
        unit="files", minimum=2, maximum=1000,
        doc="Fewest durable files of similar size that are merged into one, in the background. "
        "Spark asks for it after five times "
        "spark.sql.streaming.stateStore.minDeltasForSnapshot, 50: for more, raise that too.",
    )
    rocksdb_memory_bytes: int = _option(
        "rocksdb.memoryBytes", 134217728, "long", scope="engine",
        unit="bytes", minimum=8388608,
        doc="Block cache and write buffers of all databases of an engine process together. The "
        "first query of the process sets it.",
    )
    rocksdb_row_cache_bytes: int = _option(
        "rocksdb.rowCacheBytes", -1, "long", scope="shim",
        unit="bytes", minimum=-1,
        doc="Rows read from RocksDB and written to it that an executor keeps on its heap, all "
        "stores of the rocksdb backend together. -1 takes an eighth of the largest heap (-Xmx).",
    )
    rocksdb_block_cache_size_mb: int = _option(
        "rocksdb.blockCacheSizeMB", 128, "int", scope="shim",
        unit="MiB", minimum=1,
        doc="Block cache of an executor's RocksDB readers, all stores together. The first query "
        "of the executor sets it.",
    )
    rocksdb_block_size_kb: int = _option(
        "rocksdb.blockSizeKB", 4, "int", scope="both",
        unit="KiB", minimum=1, maximum=4096,
        doc="Size of the blocks in an SST.",
    )
    rocksdb_compression: str = _option(
        "rocksdb.compression", "lz4", "string", scope="both",
        choices=("none", "snappy", "lz4", "zstd"),
        doc="Compression of the blocks in an SST.",
    )
    rocksdb_compact_on_commit: bool = _option(
        "rocksdb.compactOnCommit", False, "boolean", scope="engine",
        doc="Whether every commit waits for a compaction of the whole local database.",
    )
    engine_processes: int = _option(
        "engine.processes", 0, "int", scope="shim",
        unit="processes", minimum=0, maximum=16,
        doc="Engine processes per executor. 0 takes half of its cores, 1 to 4.",
    )
    engine_call_timeout_ms: int = _option(
        "engine.callTimeoutMs", 600000, "long", scope="shim",
        unit="ms", minimum=1000, maximum=2147483647,
        doc="Time without a sign of life of a call after which its engine counts as hung and is "
        "killed. Moving bytes and finished files are signs of life, so a restore may take as long "
        "as it needs.",
    )
    engine_otlp_endpoint: str = _option(
        "engine.otlpEndpoint", "", "url", scope="engine",
        doc="Address of a collector, for example http://collector:4318, to which engines push "
        "their metrics and a trace of each commit by OTLP over HTTP. Their Python needs the extra "
        "otel. The first query of the process sets it; empty pushes nothing.",
    )
    engine_package: str = _option(
        "engine.package", "embedded", "string", scope="shim",
        choices=("embedded", "installed"),
        doc="Which statestore package an engine runs: the copy embedded in the jar, or the one "
        "installed in its Python.",
    )
    lease_interval_ms: int = _option(
        "lease.intervalMs", 10000, "long", scope="both",
        unit="ms", minimum=100, maximum=3600000,
        doc="How often the driver and each executor of a running query renew its lease on its "
        "checkpoint. One that is killed counts as a writer for three times as long, except on its "
        "own machine.",
    )
    fsync_enabled: bool = _option(
        "fsync.enabled", True, "boolean", scope="engine",
        doc="Whether a commit waits until its file has reached the disk. false survives a killed "
        "process but not a power failure.",
    )
    orphan_age_ms: int = _option(
        "orphan.ageMs", 3600000, "long", scope="engine",
        unit="ms", minimum=0,
        doc="Age from which maintenance deletes files that no version refers to. Files that may "
        "still be written, by their names, are left for an hour at least.",
    )
    heap_max_state_bytes: int = _option(
        "heap.maxStateBytes", 5242880, "long", scope="engine",
        unit="bytes", minimum=1,
        doc="Heap backend: the most that the state of one store, a state partition of an operator, "
        "may hold, counted as the bytes of its keys and values in Spark's encoding. A commit that "
        "would exceed it is refused.",
    )
    heap_on_driver_loss: str = _option(
        "heap.onDriverLoss", "fail", "string", scope="engine",
        choices=("fail", "empty"),
        doc="Heap backend: whether a query fails when it is restarted without the driver that held "
        "its state, or starts with empty state and a warning in the log.",
    )
    checkpoint_storage: str = _option(
        "checkpointStorage", "", "string", scope="engine", fixed=True,
        doc="URI of the directory under which state is kept, in a directory of its own for each "
        "checkpoint; empty keeps it in Spark's checkpoint directory. See docs/storage.md.",
    )
    s3_region: str = _option(
        "s3.region", "", "string", scope="engine",
        doc="Region of the buckets; empty takes the AWS chain's.",
    )
    s3_endpoint: str = _option(
        "s3.endpoint", "", "url", scope="engine",
        doc="URL of an S3 server other than AWS's own.",
    )
    s3_path_style: bool = _option(
        "s3.pathStyle", False, "boolean", scope="engine",
        doc="Whether the bucket is part of the path instead of the host name. false takes the AWS "
        "profile's addressing_style; without one the bucket is in the path on a named endpoint.",
    )
    s3_sse: str = _option(
        "s3.sse", "", "string", scope="engine",
        choices=("", "AES256", "aws:kms"),
        doc="Server-side encryption of written objects; empty leaves it to the bucket.",
    )
    s3_sse_kms_key: str = _option(
        "s3.sseKmsKey", "", "string", scope="engine",
        doc="ID of the key for aws:kms.",
    )
    s3_access_key: str = _option(
        "s3.accessKey", "", "string", scope="engine", secret=True,
        doc="Access key; empty takes the AWS chain's (environment, profile, role).",
    )
    s3_secret_key: str = _option(
        "s3.secretKey", "", "string", scope="engine", secret=True,
        doc="Secret of the access key.",
    )
    s3_session_token: str = _option(
        "s3.sessionToken", "", "string", scope="engine", secret=True,
        doc="Token of temporary credentials.",
    )
    s3_max_attempts: int = _option(
        "s3.maxAttempts", 8, "int", scope="engine",
        unit="tries", minimum=1, maximum=100,
        doc="Tries of a request that the server throttled or did not answer, with growing waits.",
    )
    s3_timeout_ms: int = _option(
        "s3.timeoutMs", 30000, "long", scope="engine",
        unit="ms", minimum=1, maximum=2147483647,
        doc="Wait for the next bytes of an answer, and, 5 s at most, for a connection.",
    )
    fetch_cache_bytes: int = _option(
        "fetch.cacheBytes", 1073741824, "long", scope="engine",
        unit="bytes", minimum=0,
        doc="Files fetched by an engine that stay on the local disk for the next restore, those of "
        "all queries together; the largest value of its queries counts.",
    )
    # fmt: on
    min_versions_to_retain: int = 100

    def __post_init__(self) -> None:
        for option in TABLE:
            object.__setattr__(self, option.field, option.parse(getattr(self, option.field)))
        if not isinstance(self.min_versions_to_retain, int) or self.min_versions_to_retain < 1:
            raise InvalidArgumentError(
                "number of versions to retain is out of range",
                kind="invalid-option",
                key=RETAIN_KEY,
                value=self.min_versions_to_retain,
                to_fix="set it to a whole number of at least 1",
            )

    @classmethod
    def from_fields(cls, values: Mapping[str, Any]) -> StateStoreOptions:
        """Build options from field names, as a call of the shim carries them.

        Raises:
            InvalidArgumentError: A field does not exist or its value is out of range.
        """
        known = [known_field.name for known_field in fields(cls)]
        for name in values:
            if name not in known:
                raise _unknown(name, known)
        return cls(**values)

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> StateStoreOptions:
        """Build options from what a program gives, by key or by field; errors as `spark_conf`.

        Keys of Spark's that no state backend has a use for are left out, as a query does.
        """
        ignored = {f"{PREFIX}{key}" for key, _ in IGNORED}
        conf = {key: value for key, value in spark_conf(options).items() if key not in ignored}
        retain = conf.pop(RETAIN_KEY, None)
        made = cls.from_spark_conf(conf)
        return made if retain is None else replace(made, min_versions_to_retain=int(retain))

    @classmethod
    def from_spark_conf(cls, conf: Mapping[str, str]) -> StateStoreOptions:
        """Build options from Spark keys, full or without the prefix.

        Raises:
            InvalidArgumentError: A key does not exist or its value is out of range.
        """
        values: dict[str, Any] = {}
        for full_key, value in conf.items():
            option = BY_KEY.get(full_key.removeprefix(PREFIX))
            if option is None:
                raise _unknown(full_key, [known.full_key for known in TABLE])
            values[option.field] = option.parse(value)
        return cls(**values)


TABLE: tuple[Option, ...] = tuple(
    Option(field=known.name, **known.metadata)
    for known in fields(StateStoreOptions)
    if known.metadata
)
"""One row for each option, in the order of the fields."""

BY_KEY: dict[str, Option] = {option.key: option for option in TABLE}

IGNORED: tuple[tuple[str, str], ...] = (
    (
        "rocksdb.trackTotalNumberOfRows",
        "rows are always counted, exactly: a new key costs a lookup",
    ),
    ("rocksdb.writeBufferSizeMB", "rows are ingested as files and pass through no write buffer"),
    ("rocksdb.maxWriteBufferNumber", "rows are ingested as files and pass through no write buffer"),
    ("rocksdb.changelogCheckpointing.enabled", "rocksdb.incremental says it"),
    ("rocksdb.maxOpenFiles", "readers keep the files of their version open"),
    ("rocksdb.boundedMemoryUsage", "memory is always bounded: rocksdb.memoryBytes"),
    ("rocksdb.maxMemoryUsageMB", "memory is always bounded: rocksdb.memoryBytes"),
    ("rocksdb.writeBufferCacheRatio", "memory is always bounded: rocksdb.memoryBytes"),
    ("rocksdb.highPriorityPoolRatio", "memory is always bounded: rocksdb.memoryBytes"),
    ("rocksdb.memoryUpdateIntervalMs", "memory is always bounded: rocksdb.memoryBytes"),
    ("rocksdb.lockAcquireTimeoutMs", "no instance is locked between tasks"),
    ("rocksdb.resetStatsOnLoad", "metrics are counted for each batch"),
    ("rocksdb.formatVersion", "the format of an SST is the engine's"),
    ("rocksdb.allowFAllocate", "files are ingested whole"),
    ("rocksdb.mergeOperatorVersion", "values are put together before they are written"),
    ("rocksdb.fileChecksumEnabled", "every file is always checked"),
    ("rocksdb.checkpointFileChecksumEnabled", "every file is always checked"),
    ("rocksdb.fileChecksumThreadPoolSize", "every file is always checked"),
    ("rocksdb.verifyNonEmptyFilesInZip", "there are no zip files"),
    ("rocksdb.checkStaleReusedFilesInSnapshot", "files are named by version and never reused"),
)
"""Options of Spark's RocksDB provider that the rocksdb backend does not follow, and why."""


def spark_conf(options: Mapping[str, object]) -> dict[str, str]:
    """Return options as the Spark configuration that sets them, checked.

    Args:
        options: Values by field of StateStoreOptions, or by key, full or without the prefix; keys
            of IGNORED too, of which the rocksdb backend then warns.

    Returns:
        Values as Spark takes them, by full key, in the order given.

    Raises:
        InvalidArgumentError: An option does not exist (names the nearest one), or its value is out
            of range.
    """
    by_name = {name: option for option in TABLE for name in (option.field, option.key)}
    ignored = {key for key, _ in IGNORED}
    conf = {}
    for name, value in options.items():
        if name == _RETAIN_FIELD:
            StateStoreOptions.from_fields({name: value})
            conf[RETAIN_KEY] = str(value)
            continue
        key = name.removeprefix(PREFIX)
        if key in ignored:
            conf[PREFIX + key] = _as_text(value)
            continue
        option = by_name.get(key)
        if option is None:
            raise _unknown(
                name,
                [*by_name, _RETAIN_FIELD],
                "; a key of Spark's own is given to the builder: config(KEY, VALUE)",
            )
        conf[option.full_key] = _as_text(option.parse(value))
    return conf


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str, known: list[str], hint: str = "") -> InvalidArgumentError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return InvalidArgumentError(
        "unknown option",
        kind="unknown-option",
        key=name,
        nearest=nearest,
        to_fix=f"use {nearest!r}, or remove it; docs/configuration.md lists every option{hint}",
    )
