"""Editing: rows of a stopped query's checkpoint changed where they are, and keys forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statestore.api.state import State
from statestore.operations.forget.certificate import CertificateFile
from statestore.operations.forget.forget import Forgetting
from statestore.operations.forget.search import KeySearch, search
from statestore.operations.forget.wanted import Wanted
from statestore.operations.result import Progress, no_progress
from statestore.operations.writing.decide import decide_edit

if TYPE_CHECKING:
    from datetime import datetime, timedelta
    from os import PathLike

    from statestore.operations.forget.result import Forget
    from statestore.operations.writing.edit import Edit


class Editing(State):
    """State of which rows are changed in place; the query must not run."""

    def edit(
        self,
        *,
        operator: int = 0,
        name: str | None = None,
        delete: Any = None,
        upsert: Any = None,
        watermark_ms: int | None = None,
        expire: str | None = None,
        older_than: timedelta | datetime | None = None,
        all_rows: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Edit:
        """Make the next version of the checkpoint itself, without some keys and with some rows.

        The version is a batch of the query that reads nothing. Versions before it keep their rows
        until they expire: `forget` is what takes a key out of them.

        Args:
            operator: Operator ID.
            name: Of a join the store, of transformWithState the state variable; None for the only
                one.
            upsert: Rows, in place of those that their keys have, as Arrow data or the path of a
                file. Of a state variable that is a list a row an element.
            delete: Keys whose rows go, as Arrow data or the path of a file; or a condition in SQL
                that their rows fulfil, such as `"user_id = 'x'"`. They and `upsert` are held in
                memory.
            watermark_ms: Watermark from now on, milliseconds since the Unix epoch, not before that
                of now: later rows are dropped, and what has ended by it is evicted, from the next
                batch on.
            expire: In place of `delete`: a timestamp or date of the key or value, such as
                `value.max`; rows go for which it is earlier than a limit. Only of an operator with
                one store that is not transformWithState.
            older_than: The limit: how old, by this machine's clock; or a time, in UTC where it has
                no zone.
            all_rows: Whether all rows of the store may go.
            dry_run: Whether to return what it would do, and change nothing. It reads a stream of
                rows, too.
            progress: Called with the stores done and their number.

        Guarantee: on return the query goes on from the edited rows. After a raise, or a kill at any
        moment, it goes on from those or from the ones before, whole; the same call again is safe.

        Raises:
            InUseError: A query, or another operation, is writing the checkpoint.
            InvalidArgumentError: A batch is planned but not committed (kind unfinished-batch); the
                watermark would go back; there is nothing to edit, or no row in `delete` or
                `upsert`; all rows would go and `all_rows` is not given; or rows do not fit, or a
                key is there twice (kind duplicate-key).
            IncompatibleError: Another provider wrote the checkpoint; or rows are not where their
                keys belong (kind not-rescalable).
            NotFoundError: No row is there to delete (kind keys-not-found), and none is put; where
                rows expire that is fine. Or a file is not there.
            CorruptionError, FencedError, StorageError: A file cannot be read, or a storage failed.
        """
        with self._opened() as checkpoint:
            edit = decide_edit(
                checkpoint,
                operator=operator,
                name=name,
                delete=delete,
                upsert=upsert,
                watermark_ms=watermark_ms,
                expire=expire,
                older_than=older_than,
                all_rows=all_rows,
            )
            return edit.result if dry_run else edit.run(progress or no_progress)

    def forget(
        self,
        where: str | None = None,
        *,
        keys: Any = None,
        operator: int = 0,
        all_rows: bool = False,
        certificate: str | PathLike[str] | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> Forget:
        """Take keys out of every version of an operator, and search every file for them.

        The newest version is written whole, without the rows of the keys in any store or column
        family of the operator. Every other state file of the operator is deleted: its older
        versions cannot be loaded any more. This is not undone.

        Args:
            where: A condition in SQL over the columns of the grouping key, such as
                `"user_id = 'x'"`.
            keys: In place of it, grouping keys as Arrow data or the path of a file, columns
                `key.NAME`; held in memory.
            operator: Operator ID.
            all_rows: Whether every row of the operator may go.
            certificate: Local file for the certificate. It is written first, and says `begun`; at
                the end a whole one takes its place. The same call completes one that was begun.
            dry_run: Whether to return what it would do, and change nothing. It reads every state
                file, and a stream of keys.
            progress: Called with the state partitions written and their number.

        Returns:
            What was found; and once done `certificate`: files written and removed, with their
            checksums, and for each operator whether the keys are forgotten there, were found, or
            could not be looked for. It does not hold the keys, but salted fingerprints of them.

        Guarantee: on return the query goes on from all other rows, and no state file of the
        operator has a row of the keys. After a raise or a kill the query goes on from the rows of
        before or from those without the keys, whole; older files may be left, and the same call
        again deletes them. Savepoints and branches keep what they have.

        Raises:
            InUseError: A query or another operation is writing the checkpoint, or a savepoint of it
                is being taken.
            InvalidArgumentError: A batch is planned but not committed (kind unfinished-batch); what
                is given is no key of the operator, or nothing; every row is of the keys and
                `all_rows` is not given; or another file is where the certificate goes (kind
                file-exists).
            IncompatibleError: Another provider wrote the checkpoint.
            NotFoundError: No row of the keys is there (kind keys-not-found); or a file is not.
            CorruptionError, FencedError, StorageError: A file cannot be read; a storage failed; or
                the certificate cannot be written, before which nothing is changed.
        """
        wanted = Wanted(where, keys)
        to = None if certificate is None else CertificateFile(certificate)
        with self._opened() as checkpoint:
            forget = Forgetting(checkpoint, operator, wanted, all_rows, to)
            return forget.result if dry_run else forget.run(progress or no_progress)

    def search_keys(
        self, keys: Any, *, operator: int = 0, certificate: str | PathLike[str] | None = None
    ) -> KeySearch:
        """Look for keys in every file of the checkpoint; the query may run, if files stay.

        Rows of every state file are decoded, whatever version names them, deleted ones too, and
        each column is compared with the columns of the keys; bytes of rows and files are searched
        for the keys as they are stored, and Spark's own files as text.

        Args:
            keys: Grouping keys as `forget` takes them. There is no condition: it would find nothing
                after the rows are gone.
            operator: Operator ID, of which these are keys.
            certificate: Local file with a certificate, to be compared with the keys.

        Returns:
            What was found of each operator, and whether the certificate is of these very keys.
            Nothing is changed.

        Raises:
            InvalidArgumentError: The file is no certificate; or as `forget`, like all others.
        """
        is_of = None if certificate is None else CertificateFile(certificate).is_of
        with self._opened() as checkpoint:
            return search(checkpoint, operator, Wanted(keys=keys), is_of)
