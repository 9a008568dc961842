"""Cells of the notebook that need no Spark are run as they are, on a checkpoint that is made."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import statestore
from statestore.codec.column_family import ColumnFamily
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.stores import schema_of
from tests.checkpoints import WordStore

NOTEBOOK = Path(__file__).resolve().parents[2] / "examples" / "checkpoint.ipynb"
MILES = {"N14228": 2162, "N24211": 2135, "N619AA": 1089}


def shown_by(cell: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last expression, which a notebook shows."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)  # noqa: S102
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)  # noqa: S307


def test_cells_without_spark_run(tmp_path: Path) -> None:
    """Catches a cell that names what a class does not have, without a start of Spark."""
    pytest.importorskip("pandas")
    family = ColumnFamily(0, "default", schema_of(aircraft="string"), schema_of(sum="long"))
    store = WordStore((family,), columns=("aircraft",))
    query = MadeCheckpoint(
        str(tmp_path / "checkpoint"), operators=(("stateStoreSave", (store,)),), num_partitions=4
    )
    query.run_batch({("default", (aircraft,)): (sum_,) for aircraft, sum_ in MILES.items()})
    (tmp_path / "flights").mkdir()
    names = {
        "statestore": statestore,
        "checkpoint": query.path,
        "work": tmp_path,
        "flights": tmp_path / "flights",
        "run": lambda: None,  # the query, which is Spark's
    }

    cells = [
        "".join(cell["source"])
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    shown = [shown_by(cell, names) for cell in cells if "spark" not in cell]

    versions, frame, page_bytes, plan, last = shown
    assert len(versions) == 1
    assert list(frame["key.aircraft"]) == sorted(MILES)
    assert page_bytes > 100_000
    assert not plan.done
    assert last == (8, MILES)
