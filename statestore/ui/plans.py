"""Operations from a page: planned for whoever asks, done only where that was allowed.

What is done is what was planned: a plan comes with a word that does it, once.
"""

from __future__ import annotations

import logging
import secrets
import shlex
import threading
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from statestore.core.errors import InvalidArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from statestore.api.checkpoint import Checkpoint
    from statestore.operations.result import Result

logger = logging.getLogger(__name__)

Operation = Literal["savepoint", "branch", "rescale", "repair"]

_MOST_PLANS = 100
"""That may still be done; older ones are planned again."""


class BusyError(Exception):
    """The server does one thing of a kind at a time, and is at it."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """An operation with its arguments.

    Attributes:
        operation: Its name.
        arguments: Words of the command behind the checkpoint.
        run: Does it, or with True returns what it would do.
        planned: The plan as it was shown; empty where the checkpoint stays as it is.
    """

    checkpoint: Checkpoint
    operation: Operation
    arguments: tuple[str, ...]
    run: Callable[[bool], Result]
    planned: str = ""

    def command(self, storage_options: Sequence[str]) -> str:
        """Return the command; options of the storage by name alone, for they may be secret."""
        words = ["statestore", self.operation, self.checkpoint.uri, *self.arguments]
        options = "".join(f" --storage-option {shlex.quote(key)}=…" for key in storage_options)
        return shlex.join(words) + options


class Plans:
    """The plans of all pages. Thread-safe.

    Args:
        allows_changes: Whether they may be done.
        storage_options: Names of the options by which checkpoints are reached.
    """

    def __init__(self, *, allows_changes: bool, storage_options: Sequence[str]) -> None:
        self._allows_changes = allows_changes
        self._storage_options = storage_options
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Plan] = OrderedDict()
        self._doing = threading.Lock()

    def plan(self, checkpoint: Checkpoint, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Plan an operation; nothing is changed.

        Args:
            checkpoint: The checkpoint.
            fields: Of the form: `operation`, and as text its arguments.

        Returns:
            The plan as text, the command, and what has to be shown to have it done: None where
            changes are not allowed, or there is nothing to do.

        Raises:
            StateStoreError: As a dry run of the operation; or the form is not filled in.
        """
        made = _read(checkpoint, fields)
        result = made.run(True)
        confirmation = None
        if self._allows_changes and result.changes:
            confirmation = secrets.token_urlsafe(16)
            planned = "" if result.makes_new else str(result)
            with self._lock:
                self._kept[confirmation] = replace(made, planned=planned)
                while len(self._kept) > _MOST_PLANS:
                    self._kept.popitem(last=False)
        return {
            "operation": made.operation,
            "uri": checkpoint.uri,
            "plan": str(result),
            "command": made.command(self._storage_options),
            "confirmation": confirmation,
        }

    def finish(self) -> None:
        """Wait for the operation that is under way, if one is, and say so."""
        if self._doing.locked():
            logger.warning("an operation is under way, and is waited for")
        with self._doing:
            pass

    def do(self, checkpoint: Checkpoint, confirmation: str) -> dict[str, Any]:
        """Do what was planned.

        Raises:
            InvalidArgumentError: Nothing was planned by that word, or it was done before; or it
                would do something else to the checkpoint by now.
            BusyError: Another operation of these pages is under way.
            StateStoreError: As the operation.
        """
        if not self._doing.acquire(blocking=False):
            raise BusyError("Another operation of these pages is under way: wait for its end.")
        try:
            with self._lock:
                made = self._kept.pop(confirmation, None)
            if made is None or made.checkpoint is not checkpoint:
                raise InvalidArgumentError(
                    "there is no such plan: it was never shown, is done, or is too old",
                    to_fix="show the plan again",
                )
            if made.planned and str(made.run(True)) != made.planned:
                raise InvalidArgumentError(
                    "the checkpoint has changed since this was planned",
                    checkpoint=checkpoint.uri,
                    to_fix="show the plan again",
                )
            return {"done": str(made.run(False))}
        finally:
            self._doing.release()


def _read(checkpoint: Checkpoint, fields: Mapping[str, Any]) -> _Plan:
    """Return the operation that a form asks for."""
    operation = fields.get("operation")
    match operation:
        case "savepoint":
            destination = _text(fields, "destination")
            form: Any = fields.get("form") or "canonical"
            options = () if form == "canonical" else ("--form", str(form))
            return _Plan(
                checkpoint,
                operation,
                (destination, *options),
                lambda dry: checkpoint.savepoint(destination, form=form, dry_run=dry),
            )
        case "branch":
            destination = _text(fields, "destination")
            return _Plan(
                checkpoint,
                operation,
                (destination,),
                lambda dry: checkpoint.branch(destination, dry_run=dry),
            )
        case "rescale":
            text = _text(fields, "num_partitions")
            if not (text.isascii() and text.isdigit() and len(text) < 10):
                raise InvalidArgumentError(
                    "the number of state partitions is not a whole number below 1,000,000,000",
                    num_partitions=text,
                    to_fix="write a whole number, such as 8",
                )
            return _Plan(
                checkpoint,
                operation,
                ("--num-partitions", text, "--yes"),
                lambda dry: checkpoint.rescale(int(text), dry_run=dry),
            )
        case "repair":
            return _Plan(
                checkpoint, operation, ("--yes",), lambda dry: checkpoint.repair(dry_run=dry)
            )
    raise _unknown("operation", operation, get_args(Operation))


def _unknown(field: str, found: object, known: Sequence[str]) -> InvalidArgumentError:
    return InvalidArgumentError(
        "a field of the form has an unknown value",
        field=field,
        found=found,
        known=", ".join(known),
        to_fix="name one of these",
    )


def _text(fields: Mapping[str, Any], name: str) -> str:
    found = fields.get(name)
    if not isinstance(found, str) or not found.strip():
        raise InvalidArgumentError(
            "a field of the form is empty", field=name, to_fix="fill it in, and ask again"
        )
    return found.strip()
