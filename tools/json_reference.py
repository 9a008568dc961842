"""Describes what commands print with `--output json`, from the docstrings of what they print."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable

from statestore.checkpoint.history import HistoryEntry
from statestore.checkpoint.operator_metadata import OperatorInfo, StateVariable, StoreInfo
from statestore.cli.cluster_diagnosis import ExecutorChecks
from statestore.cli.diagnosis import Check
from statestore.cli.output import SCHEMA_VERSION
from statestore.codec.commit_times import CommitTimes
from statestore.codec.references import StoreName
from statestore.operations.copy_result import CopyResult, FamilyChange
from statestore.operations.forget.certificate import Certificate, FileRecord, Fingerprints
from statestore.operations.forget.result import Forget
from statestore.operations.forget.search import Hit, KeySearch, Outcome
from statestore.operations.reading.inspection import FamilyDescription, StoreDescription
from statestore.operations.reading.tables import TableInfo
from statestore.operations.rescale.results import Rescale, StoreRescale, UndoRescale
from statestore.operations.savepoint.savepoint import SavepointInfo
from statestore.operations.trial.record import Compared
from statestore.operations.trial.results import Drop, Promote, TrialReport
from statestore.operations.upkeep.compact import Compact, StoreCompact
from statestore.operations.upkeep.expire import Expire, StoreExpire, StoreStay
from statestore.operations.upkeep.query_info import InputPosition, InputRates, QueryInfo
from statestore.operations.upkeep.repair import Repair
from statestore.operations.upkeep.retained_savepoints import RetainedSavepoints
from statestore.operations.upkeep.survey import CheckpointInfo, VersionInfo
from statestore.operations.upkeep.verification import Finding, Verification
from statestore.operations.writing.edit_result import Edit
from statestore.report.facts import Advice, Facts, HeavyKey, PartitionFacts, Spread, StoreFacts

_DONE = {"done": "whether it was done; else nothing was changed"}
_SUMS = {"num_files, num_bytes": "sums over all stores"}
_UNREADABLE = "of one that cannot be read `uri` and `problem`"
_ROWS = {
    "rows": "rows by column; bytes in hexadecimal, a map as a list of pairs",
    "more": "whether there are more rows than --limit",
}

COMMANDS: dict[str, tuple[dict[str, str], tuple[type, ...]]] = {
    "branch": (_DONE, (CopyResult,)),
    "compact": (_DONE | _SUMS, (Compact, StoreCompact)),
    "convert": (
        _DONE
        | {
            "source, target": "URIs of the checkpoint and of the new one",
            "backend": "state backend of the checkpoint",
            "provider": "name of Spark's own provider that the new one is for",
            "version": "state version that is converted",
            "checkpoint_format": "1 or 2",
            "is_begun": "whether an unfinished conversion is at `target`, which is done anew",
            "state_bytes": "bytes of the state files that are read; null where they cannot be read "
            "from here",
            "unseen": "the newest batches, where an operation made them and no sink was given them",
            "stores": "`operator`, `name`, `store`, `num_partitions` of each, and once done `rows`",
        },
        (),
    ),
    "diff": (_ROWS | {"added, removed, changed": "with --counts, in place of rows"}, ()),
    "doctor": (
        {
            "ok": "whether nothing failed",
            "checks": "a `Check` each",
            "executors": "with --spark-submit, in place of checks: an `ExecutorChecks` each",
        },
        (Check, ExecutorChecks),
    ),
    "drop": (_DONE, (Drop,)),
    "edit": (_DONE, (Edit, FamilyChange)),
    "expire": (_DONE | _SUMS, (Expire, StoreExpire, StoreStay)),
    "forget": (
        _DONE
        | {
            "certificate": "once done, a `Certificate`, with `schema_version` and `operation`: "
            "what --certificate writes",
            "is_forgotten": "with --verify: whether everything was searched, and nothing found",
            "certificate_is_of_keys": "with --verify and --certificate: whether it is of these "
            "keys; else null",
            "search": "with --verify, a `KeySearch`",
        },
        (Forget, Certificate, Fingerprints, FileRecord, KeySearch, Outcome, Hit),
    ),
    "history": (
        {
            "entries": "a `HistoryEntry` each, newest first",
            "more": "whether there are more than --limit",
        },
        (HistoryEntry,),
    ),
    "inspect": (
        {
            "stores": "a `StoreDescription` each",
            **_ROWS,
            "key_groups": "with --key-groups: `key_group`, `partition_id`, `num_rows`, "
            "`key_bytes`, `value_bytes`",
        },
        (StoreDescription, FamilyDescription),
    ),
    "list": (
        {
            "versions": "a `VersionInfo` each, newest first",
            "more": "whether there are more than --limit",
            "savepoints": "with --savepoints: `uri` and `savepoint`, a `SavepointInfo`",
            "checkpoints": "of a directory with several, in place of all else: the fields of a "
            f"checkpoint each; {_UNREADABLE}",
        },
        (CheckpointInfo, VersionInfo, CommitTimes, OperatorInfo, StoreInfo, StateVariable),
    ),
    "promote": (_DONE, (Promote,)),
    "read": (_ROWS | {"file": "with --to, where rows is their number"}, ()),
    "repair": (_DONE | {"is_needed": "whether anything is to repair"}, (Repair,)),
    "report": (
        {"checkpoints": f"of a directory with several, alone: these fields each; {_UNREADABLE}"},
        (
            Facts,
            QueryInfo,
            InputPosition,
            InputRates,
            StoreFacts,
            PartitionFacts,
            Spread,
            HeavyKey,
            Advice,
        ),
    ),
    "rescale": (_DONE, (Rescale, StoreRescale, UndoRescale)),
    "restore": (_DONE, (CopyResult,)),
    "savepoint": (
        _DONE
        | {
            "savepoint": "once done, a `SavepointInfo`; with --keep and the like the fields are "
            "those of `RetainedSavepoints`"
        },
        (CopyResult, SavepointInfo, RetainedSavepoints),
    ),
    "sql": (
        _ROWS
        | {
            "file": "with --to, where rows is their number",
            "tables": "with --tables, alone: a `TableInfo` each, and its `alias`, null of the "
            "checkpoint itself",
        },
        (TableInfo,),
    ),
    "transform": (_DONE, (CopyResult, FamilyChange)),
    "try": ({"result": "what came of it, in words"}, (TrialReport, Compared)),
    "verify": (
        {
            "ok": "whether nothing is wrong",
            "to_fix": "what to do, null where nothing is wrong",
            "checkpoints": "of a directory with several, beside `ok`: these fields of each; of one "
            "that cannot be read `ok`, `checkpoint` and `problem`",
        },
        (Verification, Finding, StoreName),
    ),
}
"""What each command prints: fields of its own, and classes whose fields it has; the first one's are
in the object itself, the others' in its fields."""

_PRINTED: dict[type, dict[str, str]] = {
    StoreDescription: {
        "name": "",
        "store": "Store name.",
        "num_keys": "Rows; null where only reading them tells.",
        "num_keys_by_partition": "The same by state partition, of those that hold state.",
    },
}
"""Of classes that are printed by `fields()` otherwise than by their attributes: what it has in
their place; of an attribute that it lacks nothing."""

_ATTRIBUTE = re.compile(r"(\w+(?:, \w+)*): (.*)")


def json_section() -> str:
    """Return the section of docs/cli.md."""
    lines = [
        "## JSON",
        "",
        "With `--output json` a command prints one object. `schema_version` is in each; it is "
        f"{SCHEMA_VERSION} here.",
        "It goes up where a field goes or means something else. It stays where a field is added.",
        "",
    ]
    described: set[type] = set()
    for command, (own, classes) in COMMANDS.items():
        title = f" has the fields of `{classes[0].__name__}`" if _is_flat(command) else ""
        lines += [f"### {command} in JSON", "", f"`statestore {command}`{title}:", ""]
        lines += [*_table(own), ""] if own else []
        for kind in classes:
            if kind not in described:
                described.add(kind)
                lines += [f"`{kind.__name__}`:", "", *_table(attributes(kind)), ""]
    return "\n".join(lines[:-1]) + "\n"


_OTHERWISE = {"rescale": UndoRescale, "savepoint": RetainedSavepoints}
"""Classes whose fields an object has with some of the command's options."""


def _is_flat(command: str) -> bool:
    own, classes = COMMANDS[command]
    return bool(classes) and not any(f"`{classes[0].__name__}`" in text for text in own.values())


def fields(command: str) -> set[str]:
    """Return the names of the fields that the object of a command may have."""
    own, classes = COMMANDS[command]
    texts = [*own, *(attributes(classes[0]) if _is_flat(command) else ())]
    texts += attributes(_OTHERWISE[command]) if command in _OTHERWISE else ()
    return {"schema_version", *names_of(texts)}


def names_of(texts: Iterable[str]) -> set[str]:
    """Return the names of fields that are described together, several with commas."""
    return {name for text in texts for name in text.split(", ")}


def attributes(kind: type) -> dict[str, str]:
    """Return what a class's docstring says of what is printed of it, by names.

    Raises:
        ValueError: It says nothing.
    """
    text = inspect.getdoc(kind) or ""
    found: dict[str, str] = {}
    for line in text.partition("Attributes:\n")[2].split("\n\n")[0].splitlines():
        match = _ATTRIBUTE.fullmatch(line.strip())
        if match and not line.startswith("     "):
            found[match[1]] = match[2]
        elif found:
            found[[*found][-1]] += f" {line.strip()}"
    if not found:
        raise ValueError(f"the docstring describes no attribute: {kind.__name__}")
    return {name: told for name, told in (found | _PRINTED.get(kind, {})).items() if told}


def _table(rows: dict[str, str]) -> list[str]:
    names = (", ".join(f"`{name}`" for name in names.split(", ")) for names in rows)
    cells = (text.replace("|", "\\|") for text in rows.values())
    return [
        "| field | |",
        "|---|---|",
        *(f"| {n} | {c} |" for n, c in zip(names, cells, strict=True)),
    ]
