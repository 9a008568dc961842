"""The search for keys in every file of a checkpoint, and what it found of each operator.

Three ways, since none finds all: rows of state files are decoded, whatever compresses them, deleted
ones too, and their columns compared; their bytes are searched as they are, and those of a file that
cannot be read; and Spark's own files are searched as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa

from statestore.checkpoint.layout import parse_state_file_name
from statestore.checkpoint.trailers import read_trailer
from statestore.codec.byte_ranges import unpack
from statestore.codec.key_bytes import decode_keys
from statestore.codec.rows import from_numpy, rows_by_family
from statestore.codec.sealed_file import read_file
from statestore.core.errors import CorruptionError, IncompatibleError, NotFoundError
from statestore.core.text import Shown, format_bytes, format_count
from statestore.operations.forget.elsewhere import Elsewhere
from statestore.operations.forget.files import (
    below_root,
    files_of,
    files_of_operator,
    rows_of_file,
)
from statestore.operations.forget.needles import MIN_BYTES, Needles, ShortNeedles
from statestore.operations.forget.values import Certainty, ValueSearch, is_part_of, key_columns
from statestore.operations.forget.wanted import grouping_family, grouping_paths
from statestore.operations.reading.read import decode_by_key
from statestore.operations.result import no_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.codec.column_family import ColumnFamily
    from statestore.codec.references import StoreName
    from statestore.codec.trailer import Trailer
    from statestore.operations.checkpoint import OpenCheckpoint
    from statestore.operations.forget.files import StoreFile
    from statestore.operations.forget.wanted import Wanted
    from statestore.operations.result import Progress

Verdict = Literal["forgotten", "found", "not searched"]
SPARKS_FILES = "Spark's files"
"""Name of all other files: logs of offsets, commits and sources, metadata, schemas."""
_MOST_LINES = 20
_MIN_DISTINCT = 3
"""Different bytes, beside those that are padding anywhere, of a key that is looked for as bytes."""
_END_OF_NAME = r"""(?=["'/&?,;)}\]\s\\]|$)"""
"""What ends the value of the directory of a partition: `ann` of `user=ann`, but not `ann-marie`."""
_QUOTE = re.compile(rb"[\\%]")
_ESCAPES = re.compile(rb'(?:\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])+')


@dataclass(frozen=True, slots=True)
class Hit:
    """Where a key was found.

    Attributes:
        file: Path of the file.
        path: `row` for a row of the key, a column such as `key.user_id` or `value.seen[]`, or
            `bytes`.
        certainty: found, or maybe: an equal value that may be something else.
    """

    file: str
    path: str
    certainty: Certainty

    def describe(self) -> str:
        """Return it in words."""
        return f"{self.certainty}: {self.path} in {self.file}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The verdict on an operator, or on Spark's files.

    Attributes:
        operator: Operator ID; None for Spark's files.
        name: Spark's name of the operator.
        verdict: forgotten, found, or not searched: some of it could not be read.
        hits: Where it was found, then where it may be, each file and place once.
        reasons: Why something was not searched.
    """

    operator: int | None
    name: str
    verdict: Verdict
    hits: tuple[Hit, ...]
    reasons: tuple[str, ...]

    def describe(self) -> str:
        """Return it in words."""
        place = self.name if self.operator is None else f"operator {self.operator} ({self.name})"
        maybe = sum(hit.certainty == "maybe" for hit in self.hits)
        judged = f", but for {format_count(maybe, 'place')} to be judged" if maybe else ""
        lines = [f"{place}: {self.verdict}{judged}"]
        lines += [f"  {hit.describe()}" for hit in self.hits[:_MOST_LINES]]
        if len(self.hits) > _MOST_LINES:
            lines.append(f"  and {len(self.hits) - _MOST_LINES} more")
        return "\n".join([*lines, *(f"  not searched: {reason}" for reason in self.reasons)])


@dataclass(frozen=True, slots=True)
class KeySearch(Shown):
    """The result of a search.

    Attributes:
        num_keys: Keys that were looked for.
        num_files: Files that were searched: every file of the checkpoint.
        num_bytes: Their bytes.
        num_rows: Rows of state files that were read, in whatever version.
        num_row_bytes: Bytes of those rows' keys and values, decompressed.
        outcomes: The verdict on each operator, and on Spark's files.
        certificate_is_of_keys: Whether each of these keys is one that the certificate that was
            named is of, by its fingerprints; where it has one of all its keys together, whether
            these are all of them. None where none was named.
    """

    num_keys: int
    num_files: int
    num_bytes: int
    num_rows: int
    num_row_bytes: int
    outcomes: tuple[Outcome, ...]
    certificate_is_of_keys: bool | None = None

    @property
    def hits(self) -> tuple[Hit, ...]:
        """Where a key was found for certain."""
        every = (hit for outcome in self.outcomes for hit in outcome.hits)
        return tuple(hit for hit in every if hit.certainty == "found")

    @property
    def is_forgotten(self) -> bool:
        """Whether everything was searched, and no key found."""
        return all(outcome.verdict == "forgotten" for outcome in self.outcomes)

    def __str__(self) -> str:
        searched = (
            f"{format_count(self.num_keys, 'key')} searched in "
            f"{format_count(self.num_files, 'file')}, {format_bytes(self.num_bytes)}, and "
            f"{format_count(self.num_rows, 'row')} of them, "
            f"{format_bytes(self.num_row_bytes)}"
        )
        lines = [searched, *(outcome.describe() for outcome in self.outcomes)]
        if self.certificate_is_of_keys is not None:
            lines.append(
                "The certificate is of these keys."
                if self.certificate_is_of_keys
                else "The certificate is not of these keys, or not of each of them."
            )
        return "\n".join(lines)

    def fields(self) -> dict[str, Any]:
        """Return the attributes by name, for JSON and for a certificate."""
        found = asdict(self)
        del found["certificate_is_of_keys"]
        return found

    def brief(self) -> dict[str, Any]:
        """Return the same with the first hits and reasons of each outcome, and their numbers."""
        found = self.fields()
        for outcome in found["outcomes"]:
            for name in ("hits", "reasons"):
                every = outcome[name]
                outcome |= {name: every[:_MOST_LINES], f"num_{name}": len(every)}
        return found


def search(
    checkpoint: OpenCheckpoint,
    operator: int,
    wanted: Wanted,
    certificate: Callable[[Wanted], bool] | None = None,
) -> KeySearch:
    """Look for keys in every file of a checkpoint; result and errors as `Checkpoint.search_keys`.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        wanted: The keys, as given.
        certificate: Tells whether a certificate is of the keys; None where there is none.
    """
    newest = checkpoint.newest_version
    versions = {
        file: name.version
        for file in files_of_operator(checkpoint, operator)
        if (name := parse_state_file_name(file.info.name)) is not None
    }
    # Those of later versions were taken back.
    for file in sorted(versions, key=lambda one: (versions[one] > newest, -versions[one])):
        try:
            trailer = read_trailer(file.location, file.info.name).trailer
        except (CorruptionError, IncompatibleError):
            continue  # the search gives the reason
        wanted.prepare(file.location.store.name, trailer)
    is_of_keys = None if certificate is None else certificate(wanted)
    found = _Search(checkpoint, operator, wanted).run()
    return replace(found, certificate_is_of_keys=is_of_keys)


def find_rows(
    checkpoint: OpenCheckpoint,
    operator: int,
    wanted: Wanted,
    found: set[bytes],
    damaged: dict[str, CorruptionError],
    progress: Progress = no_progress,
) -> Iterator[tuple[str, int]]:
    """Yield the state files of an operator that have rows of keys, and how many.

    Args:
        checkpoint: The checkpoint.
        operator: Operator ID.
        wanted: The keys.
        found: Gets those of them that a row has, as bytes.
        damaged: Gets the files that cannot be read to their end, as a version that was taken back
            may have left them.
        progress: Called with the files read and their number.

    Raises:
        InvalidArgumentError: There is no such operator, or what is given is no key of it.
        IncompatibleError, NotFoundError, StorageError: A file cannot be read.
    """
    files = [file for file in files_of_operator(checkpoint, operator) if file.is_state]
    for number, file in enumerate(files):
        num_found = 0
        local_path = file.location.io.fetch(file.path)
        try:
            for trailer, batch in rows_of_file(checkpoint, file.path, local_path):
                num_found += len(wanted.find(batch, file.location.store.name, trailer, found))
        except CorruptionError as error:
            damaged[file.path] = error
        progress(number + 1, len(files))
        if num_found:
            yield file.path, num_found


@dataclass
class _Found:
    """Hits in the files of an operator, or in Spark's."""

    hits: dict[Hit, None] = field(default_factory=dict)
    reasons: dict[str, None] = field(default_factory=dict)

    def outcome(self, operator: int | None, name: str) -> Outcome:
        verdict: Verdict = "not searched" if self.reasons else "forgotten"
        if any(hit.certainty == "found" for hit in self.hits):
            verdict = "found"
        hits = sorted(self.hits, key=lambda hit: hit.certainty != "found")
        return Outcome(operator, name, verdict, tuple(hits), tuple(self.reasons))


class _Search:
    """One search; counts what it reads."""

    def __init__(self, checkpoint: OpenCheckpoint, operator: int, wanted: Wanted) -> None:
        self._checkpoint = checkpoint
        self._operator = operator
        self._wanted = wanted
        keys = wanted.decoded()
        self._columns = () if keys is None else key_columns(keys)
        self._values = ValueSearch(self._columns)
        self._elsewhere = Elsewhere(keys, wanted.grouping, wanted.condition)
        self._values_elsewhere = ValueSearch(self._elsewhere.columns)
        telling = {text for column in self._columns for text in column.telling}
        self._words = Needles(telling, are_words=True)
        # The directory of a partition: user=ann.
        self._named = [
            ShortNeedles(column.short, f"(?i:{re.escape(column.name)})=", _END_OF_NAME)
            for column in self._columns
        ]
        self._short_words = ShortNeedles(
            text for column in self._columns for text in column.short_words
        )
        texts = {text for column in self._columns if column.is_binary for text in column.telling}
        self._texts = Needles(filter(_is_text_or_distinct, texts))
        self._rows = Needles(filter(_is_distinct, wanted.encoded) if telling else ())
        self._num_rows = self._num_row_bytes = 0

    def run(self) -> KeySearch:
        checkpoint = self._checkpoint
        names = {info.id: info.name for info in checkpoint.operators}
        files = {
            file.path: file
            for operator in names
            for file in files_of_operator(checkpoint, operator)
            if file.is_state
        }
        found = {operator: _Found() for operator in names}
        of_spark = _Found()
        num_files = num_bytes = 0
        for io, path in files_of(checkpoint):
            local_path = io.fetch(path)
            num_files += 1
            file = files.pop(path, None)
            of = of_spark if file is None else found[file.location.store.operator]
            try:
                data = memoryview(read_file(local_path))
            except CorruptionError as error:
                of.reasons[f"{error.problem}: {path}"] = None
                continue
            num_bytes += len(data)
            if file is not None:
                self._search_rows(file, local_path, data, of)
            elif parse_state_file_name(path.rpartition("/")[2]) is not None:
                of_spark.reasons[f"a state file of no operator that is known: {path}"] = None
            elif (certainty := self._in_log(data, below_root(checkpoint, path))) is not None:
                of_spark.hits[Hit(path, "bytes", certainty)] = None
        for path, file in files.items():
            reason = f"a state file that came meanwhile, or that no listing shows: {path}"
            found[file.location.store.operator].reasons[reason] = None
        outcomes = [of.outcome(operator, names[operator]) for operator, of in found.items()]
        return KeySearch(
            num_keys=len(self._wanted.encoded),
            num_files=num_files,
            num_bytes=num_bytes,
            num_rows=self._num_rows,
            num_row_bytes=self._num_row_bytes,
            outcomes=(*outcomes, of_spark.outcome(None, SPARKS_FILES)),
        )

    def _in_log(self, data: memoryview, name: str) -> Certainty | None:
        """Return how certain it is that a file of Spark's has a key; None where it has none."""
        readings = [*_readings(data)]
        places = [*readings, *_readings(memoryview(name.encode()))]
        if any(map(self._words.is_in, places)):
            return "found"
        if any(named.is_in(place) for named in self._named for place in places):
            # Of a key of several columns one alone may be another's: a country, a month.
            return "found" if len(self._columns) == 1 else "maybe"
        # In names are numbers of batches.
        return "maybe" if any(map(self._short_words.is_in, readings)) else None

    def _search_rows(
        self, file: StoreFile, local_path: str, data: memoryview, found: _Found
    ) -> None:
        """Search the rows of a state file; its own bytes where they cannot all be read.

        Those of a whole file say no more: beside the rows they have words of their own, such as the
        names of columns, and compressed ones have any four bytes by chance.
        """
        own: dict[Hit, None] = {}
        try:
            for trailer, batch in rows_of_file(self._checkpoint, file.path, local_path):
                self._search_batch(file, trailer, batch, own, found)
        except (CorruptionError, IncompatibleError, NotFoundError) as error:
            found.reasons[f"{error.problem}: {file.path}"] = None
            self._search_bytes(file, data, own)
        found.hits |= own

    def _search_batch(
        self,
        file: StoreFile,
        trailer: Trailer,
        batch: pa.RecordBatch,
        own: dict[Hit, None],
        found: _Found,
    ) -> None:
        store = file.location.store
        self._num_rows += batch.num_rows
        if store.operator == self._operator and len(self._wanted.find(batch, store.name, trailer)):
            own[Hit(file.path, "row", "found")] = None
        for family, rows in rows_by_family(batch, trailer.column_families):
            of_family = batch.take(from_numpy(rows, pa.int64()))
            try:
                for path, certainty in self._in_columns(of_family, store, family):
                    own[Hit(file.path, path, certainty)] = None
            except (CorruptionError, IncompatibleError) as error:
                of = f"column family {family.name} of store {store.name}"
                found.reasons[f"rows cannot be decoded, {of}: {error.problem}"] = None
        for column in (batch.column(3), batch.column(4)):
            held = _bytes_of(column)
            self._num_row_bytes += len(held)
            self._search_bytes(file, held, own)

    def _search_bytes(self, file: StoreFile, data: memoryview, own: dict[Hit, None]) -> None:
        """Search bytes for keys as they are stored, and for texts, which may be part of others."""
        if any(hit.certainty == "found" for hit in own):
            return  # a column tells more than bytes do
        if self._rows.is_in(data):
            own[Hit(file.path, "bytes", "found")] = None
        elif self._texts.is_in(data):
            own[Hit(file.path, "bytes", "maybe")] = None

    def _in_columns(
        self, batch: pa.RecordBatch, store: StoreName, family: ColumnFamily
    ) -> Iterator[tuple[str, Certainty]]:
        """Yield the columns of a column family's rows in which a value of a key is."""
        is_other = store.operator != self._operator
        paths: list[str] = []
        # The columns of a grouping key together: one alone is somebody else's as well.
        alone: Certainty | None = None
        if grouping_family(store.name, family) is not None:
            paths = grouping_paths(store.name, family)
            if is_other:
                is_there, alone = self._elsewhere.find(batch.column(3), store.name, family)
                if is_there:
                    yield "row", "found"
        keys = decode_keys(batch.column(3), family)
        skipped = () if alone else paths
        for path, certainty in self._values_in(keys, "key", skipped, is_other=is_other):
            is_doubtful = alone == "maybe" and is_part_of(path, paths)
            yield path, "maybe" if is_doubtful else certainty
        has_value = np.flatnonzero(~unpack(batch.column(4).is_null()))
        stored = batch.column(4).take(from_numpy(has_value, pa.int64()))
        if len(stored):
            yield from self._values_in(decode_by_key(stored, family), "value", is_other=is_other)

    def _values_in(
        self, columns: Any, root: str, skipped: Sequence[str] = (), *, is_other: bool
    ) -> Iterator[tuple[str, Certainty]]:
        """Yield as `ValueSearch.find`; of another operator `maybe` what no condition names."""
        has_keys = is_other and root == "key"
        every = self._values.find(columns, root, skipped, is_other=has_keys)
        if not is_other or self._wanted.condition is None:
            yield from every
            return
        named = dict(self._values_elsewhere.find(columns, root, skipped, is_other=has_keys))
        yield from named.items()
        for path, _ in every:
            if path not in named:
                yield path, "maybe"


def _is_distinct(key: bytes) -> bool:
    """Tell whether a key is more than the padding, small numbers and end marks of every file."""
    return len(key) >= MIN_BYTES and len({*key} - {0, 255}) >= _MIN_DISTINCT


def _is_text_or_distinct(value: bytes) -> bool:
    """Tell whether a value is printable text, or distinct as a key: four bytes of ones are not."""
    try:
        return value.decode().isprintable() or _is_distinct(value)
    except UnicodeDecodeError:
        return _is_distinct(value)


def _readings(data: memoryview) -> Iterator[memoryview]:
    """Yield the bytes of a log as they are, and as JSON and URIs mean them.

    A directory's name quotes what a name cannot have, and the URI of its path quotes that again.
    """
    yield data
    if _QUOTE.search(data) is None:
        return
    read = _ESCAPES.sub(_unescaped, bytes(data))
    yield memoryview(read)
    for _ in range(2):
        read = unquote_to_bytes(read)
        yield memoryview(read)


def _unescaped(escapes: re.Match[bytes]) -> bytes:
    text: str = json.loads(b'"' + escapes[0] + b'"')
    return text.encode(errors="surrogatepass")


def _bytes_of(column: pa.Array[Any]) -> memoryview:
    """Return the bytes of a binary column's values, one after the other."""
    _, offsets, data = column.buffers()
    if data is None or offsets is None or not len(column):
        return memoryview(b"")
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[column.offset] : ends[column.offset + len(column)]]
