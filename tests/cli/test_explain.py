"""`statestore explain` leads from a message to the page of its kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore.cli.commands import cli
from statestore.core.errors import KINDS

PAGES = Path(__file__).resolve().parents[2] / "docs" / "errors"


def test_message_of_a_command_leads_to_its_page(tmp_path: Path) -> None:
    """Catches a kind in a message that the next command does not take as it was copied."""
    refused = CliRunner().invoke(cli, ["list", str(tmp_path)])
    found = re.search(r"\[[a-z-]+\]", refused.output)
    assert found
    command = refused.output.splitlines()[-1].removeprefix("More: statestore ")

    for arguments in (["explain", found[0]], command.split()):
        result = CliRunner().invoke(cli, arguments)

        assert (result.exit_code, result.output) == (
            0,
            (PAGES / "checkpoint-not-found.md").read_text(),
        )


def test_help_says_how_to_learn_what_a_message_means() -> None:
    """Catches a newcomer with a message who does not find the command for it."""
    help_of_all = " ".join(CliRunner().invoke(cli, ["--help"]).output.split())

    assert "statestore explain KIND" in help_of_all


def test_machines_read_no_hint(tmp_path: Path) -> None:
    """Catches text among JSON: the error goes to the other stream, with its hint."""
    refused = CliRunner().invoke(cli, ["list", str(tmp_path), "--output", "json"])

    assert refused.stdout == ""
    assert "More: statestore explain" in refused.stderr


def test_all_kinds_are_named_when_none_is_asked_for() -> None:
    """Catches a list that lacks kinds."""
    result = CliRunner().invoke(cli, ["explain"])

    assert result.exit_code == 0
    assert set(result.output.split()) >= KINDS.keys()


@pytest.mark.parametrize(
    ("asked", "hint"),
    [("version-not-fuond", "use 'version-not-found'"), ("qqqq", "`statestore explain` names all")],
)
def test_nearest_kind_is_named_when_there_is_none(asked: str, hint: str) -> None:
    """Catches a typing error that ends without a way on."""
    result = CliRunner().invoke(cli, ["explain", asked])

    assert result.exit_code == 1
    assert f"kind_asked='{asked}'. To fix: {hint}" in result.output
