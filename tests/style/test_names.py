"""Tests say in their names what is so, and in their docstrings what they would catch."""

from __future__ import annotations

import ast

from .test_repo_style import ROOT, committed_files

MIN_WORDS = 3
"""Of a name, without `test`: a thing, a verb and what it does."""


def test_every_test_is_named_by_behaviour_and_says_what_it_catches() -> None:
    """Catches a test named after a function or a number, and one that nobody can judge."""
    tests = [
        (path.relative_to(ROOT), node)
        for path in committed_files(".py")
        if path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]

    assert len(tests) > 1_000
    assert [
        f"{path}: {node.name}" for path, node in tests if node.name.count("_") < MIN_WORDS
    ] == [], "name what is so, and when: rows_of_a_rescale_are_those_before"
    assert [
        f"{path}: {node.name}"
        for path, node in tests
        if "Catches" not in (ast.get_docstring(node) or "")
    ] == [], "say in the docstring what the test catches"
