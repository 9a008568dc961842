"""Writing rows to a Parquet file that is whole or not there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from statestore.core.errors import IncompatibleError, InvalidArgumentError, StorageError
from statestore.core.ids import RandomIds
from statestore.io.local import TEMPORARY_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa


def write_parquet(batches: Iterator[pa.RecordBatch], path: str) -> int:
    """Write rows to a local Parquet file.

    Args:
        batches: At least one record batch, all of one schema; read to their end.
        path: The file; where it is a link, what it points to is written.

    Returns:
        Number of rows.

    Guarantee: the file appears, or is replaced, once all rows are in it; after a raise it is as it
    was. It is not synced to the disk.

    Raises:
        InvalidArgumentError: The path is something else than a file.
        IncompatibleError: Parquet has no type for a column.
        StorageError: The file cannot be written; also whatever the batches raise.
    """
    from pyarrow import parquet

    num_rows = 0
    schema = next(batches).schema
    with _written_beside(path) as temporary, parquet.ParquetWriter(temporary, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            num_rows += batch.num_rows
    return num_rows


@contextmanager
def _written_beside(path: str) -> Iterator[str]:
    """Yield a path to write to, which takes its name when the block does not raise."""
    from pyarrow import ArrowException

    # Where a link points, which stays one.
    target = Path(path).resolve()
    temporary = target.parent / f"{TEMPORARY_PREFIX}{RandomIds().new_id()}"
    try:
        if target.exists() and not target.is_file():
            raise InvalidArgumentError(
                "rows cannot be written to what is no regular file",
                file=path,
                to_fix="name a file, which may be a new one",
            )
        yield str(temporary)
        temporary.replace(target)
    except OSError as error:
        raise StorageError(
            "cannot write rows to a file",
            file=path,
            reason=os.strerror(error.errno) if error.errno else str(error),
            to_fix="name a local file, in a directory that exists, that may be written to and has "
            "space left",
        ) from error
    except ArrowException as error:
        raise IncompatibleError(
            "Parquet has no type for a column of these rows",
            file=path,
            reason=str(error),
            to_fix="print them with --output json, or read them in Python: Checkpoint.read",
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()
