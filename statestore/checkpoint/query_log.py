"""The two logs of a query, Spark's files, read and written without Spark.

A batch is planned by `offsets/<batch>` and done by `commits/<batch>`; batch b makes state version b
+ 1. Source: Spark's OffsetSeqLog and CommitLog, releases 4.0 to 4.3. Text that a newer Spark adds
is kept as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from statestore.checkpoint.text_files import (
    compact,
    damaged,
    delete_file,
    lines_of,
    read_text,
    write_text,
)
from statestore.core.errors import FencedError, IncompatibleError
from statestore.core.json_fields import (
    Fields,
    MalformedError,
    parse_fields,
    to_integer,
    to_items,
    to_text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from statestore.io.file_io import FileIO

NUM_PARTITIONS_KEY = "spark.sql.shuffle.partitions"
ENCODING_KEY = "spark.sql.streaming.stateStore.encodingFormat"
STRICT_DISTRIBUTION_KEY = "spark.sql.streaming.statefulOperator.useStrictDistribution"
JOIN_FORMAT_KEY = "spark.sql.streaming.join.stateFormatVersion"
NO_OFFSET = "-"
"""Stands in an entry of the offset log for a source of which nothing is read yet."""
LogName = Literal["offsets", "commits"]

_MAX_INT = (1 << 31) - 1
_IDS_FIELD = "stateUniqueIds"
_NUMBER = re.compile("0|[1-9][0-9]{0,9}")
_ID = re.compile("[0-9A-Za-z-]+")


@dataclass(frozen=True, slots=True)
class QueryLog:
    """One of the two logs of a query: a file a batch, named by its number.

    Attributes:
        io: Storage of the checkpoint.
        checkpoint: Its directory there.
        name: Which log.
    """

    io: FileIO
    checkpoint: str
    name: LogName

    @property
    def directory(self) -> str:
        """Directory of the log."""
        return f"{self.checkpoint}/{self.name}"

    def path(self, batch: int) -> str:
        """Return the path of a batch's entry."""
        return f"{self.directory}/{batch}"

    def batches(self) -> list[int]:
        """Return the batches that have an entry, ascending; one listing."""
        names = (info.name for info in self.io.list(self.directory))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def newest(self) -> int:
        """Return the newest batch that has an entry, -1 without any; one listing."""
        return max(self.batches(), default=-1)

    def read(self, batch: int) -> str:
        """Return the text of an entry; errors as `read_text`."""
        return read_text(self.io, self.path(batch))

    def add(self, batch: int, text: str) -> None:
        """Add the entry of a batch; durable on return.

        Raises:
            FencedError: The batch has one: another writer was first.
            StorageError: The storage failed.
        """
        try:
            write_text(self.io, self.path(batch), text, overwrite=False)
        except FencedError as error:
            raise FencedError(
                f"a query or another operation added the batch to the log of {self.name} first",
                batch=batch,
                file=self.path(batch),
                to_fix="run one operation at a time; repeat this one if it is still wanted",
            ) from error

    def replace(self, batch: int, text: str) -> None:
        """Write the entry of a batch whether it has one or not; durable on return."""
        write_text(self.io, self.path(batch), text, overwrite=True)

    def delete(self, batch: int) -> None:
        """Delete the entry of a batch, as `delete_file`."""
        delete_file(self.io, self.path(batch))


def is_avro(conf: Mapping[str, str]) -> bool:
    """Return whether rows of state variables are encoded in Avro."""
    return conf.get(ENCODING_KEY, "").lower() == "avro"


def is_on(conf: Mapping[str, str], key: str) -> bool:
    """Return whether a boolean setting that is off by default is on, read as Spark reads texts."""
    return conf.get(key, "false").strip().lower() == "true"


@dataclass(frozen=True, slots=True)
class OffsetsEntry:
    """An entry of the offset log: input and configuration of a batch.

    Attributes:
        version: First line, such as `v1`.
        metadata: Second line: watermark, timestamp and `conf`, which is pinned for the query.
        sources: The lines after it, the sources' offsets.
    """

    version: str
    metadata: Mapping[str, Any]
    sources: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, path: str) -> OffsetsEntry:
        """Take an entry apart.

        Raises:
            CorruptionError: It is not one.
            IncompatibleError: It does not say the number of state partitions.
        """
        version, line, *sources = lines_of(text, path)
        try:
            fields = parse_fields(line)
            conf = fields.object("conf")
            for key in conf.all:
                conf.text(key)
            if version == "v2" and not conf.has(NUM_PARTITIONS_KEY):
                raise IncompatibleError(
                    "Spark 4.2.0 does not write the number of state partitions into an offset log "
                    "of format 2",
                    kind="newer-format",
                    file=path,
                    to_fix="run two batches of the query with Spark 4.2.1 or later, and the same "
                    f"{NUM_PARTITIONS_KEY}: they write it",
                )
            number = conf.text(NUM_PARTITIONS_KEY, _NUMBER)
            to_integer(int(number), 1, _MAX_INT, NUM_PARTITIONS_KEY)
        except MalformedError as error:
            raise damaged(path, line) from error
        return cls(version, fields.all, tuple(sources))

    @property
    def conf(self) -> Mapping[str, str]:
        """The configuration that a restart takes from here: texts as the user wrote them."""
        found: Mapping[str, str] = self.metadata["conf"]
        return found

    @property
    def num_partitions(self) -> int:
        """Number of state partitions of the batch, at least 1."""
        return int(self.conf[NUM_PARTITIONS_KEY])

    def with_conf(self, changes: Mapping[str, str]) -> OffsetsEntry:
        """Return the entry with some of its configuration changed."""
        return replace(self, metadata={**self.metadata, "conf": {**self.conf, **changes}})

    def encode(self) -> str:
        """Return the text of the entry."""
        return "\n".join([self.version, compact(self.metadata), *self.sources])


@dataclass(frozen=True, slots=True)
class CommitEntry:
    """An entry of the commit log: a batch is done.

    Attributes:
        version: First line: `v1`, in checkpoint format v2 `v2`; in either `v3` if it names sinks.
        fields: Second line: the next watermark and, in format v2, `stateUniqueIds`.
    """

    version: str
    fields: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str, path: str) -> CommitEntry:
        """Take an entry apart.

        Raises:
            CorruptionError: It is not one.
        """
        version, line, *others = lines_of(text, path)
        if others:
            raise damaged(path, text)
        try:
            fields = parse_fields(line)
            if fields.has(_IDS_FIELD):
                _check_ids(fields.object(_IDS_FIELD))
        except MalformedError as error:
            raise damaged(path, line) from error
        return cls(version, fields.all)

    @property
    def checkpoint_ids(self) -> Mapping[str, list[list[str]]]:
        """Checkpoint IDs by operator: for each state partition one a store; empty in format v1.

        The stores of a partition come in the order of the operator's metadata.
        """
        return self.fields.get(_IDS_FIELD) or {}

    @property
    def names_operators(self) -> bool:
        """Whether it names the operators with state, even if there are none: in format v2."""
        return self.fields.get(_IDS_FIELD) is not None

    @property
    def checkpoint_format(self) -> int:
        """1 or 2, Spark's checkpointFormatVersion: 2 if it is v2, or names checkpoint IDs."""
        return 2 if self.checkpoint_ids or self.version == "v2" else 1

    def with_checkpoint_ids(self, ids: Mapping[str, list[list[str]]]) -> CommitEntry:
        """Return the entry with other checkpoint IDs."""
        return replace(self, fields={**self.fields, _IDS_FIELD: dict(ids)})

    def in_format_1(self) -> CommitEntry:
        """Return the entry as one of checkpoint format v1, which names no checkpoint IDs.

        One of v3 stays so: Spark reads sinks in no other.
        """
        fields = {name: value for name, value in self.fields.items() if name != _IDS_FIELD}
        return CommitEntry("v1" if self.version == "v2" else self.version, fields)

    def encode(self) -> str:
        """Return the text of the entry."""
        return f"{self.version}\n{compact(self.fields)}"


def _check_ids(found: Fields) -> None:
    """Check that these are checkpoint IDs: by operator, state partition and store."""
    for operator in found.all:
        to_integer(int(to_text(operator, _NUMBER)), 0, _MAX_INT)
        for ids in map(to_items, found.items(operator)):
            if not ids:
                raise MalformedError("a state partition without a checkpoint ID")
            for one in ids:
                to_text(one, _ID)
