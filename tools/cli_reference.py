"""Writes docs/cli.md from the commands themselves: `python -m tools.cli_reference`."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

import click

from statestore.cli.commands import cli
from tools.json_reference import json_section

PATH = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
LINE = 120
"""Longest line of prose, in characters."""

BRACKET = r"\["
"""One that begins no link."""

_HEAD = """\
# Command line

`pip install 'statestore[cli]'`. Exit status of every command: 0 all is well, 1 an error or
something to fix, 2 wrong usage, 143 ended by SIGTERM, 129 by SIGHUP, as where its terminal is
closed. `list` and `report` of a directory say which checkpoints below it cannot be read, and end
with 0. A command that changes a checkpoint where it is shows its plan, and does it with `--yes`. A
command that makes a new directory does so at once, and shows its plan with `--dry-run`. Written by
`python -m tools.cli_reference`.

An error is printed with its kind in brackets: `statestore explain KIND` says what it means.

Commands and options may be written in singular or plural. The shell completes them after one line
in its start-up file:

```sh
eval "$(_STATESTORE_COMPLETE=bash_source statestore)"     # ~/.bashrc
eval "$(_STATESTORE_COMPLETE=zsh_source statestore)"      # ~/.zshrc
_STATESTORE_COMPLETE=fish_source statestore | source      # ~/.config/fish/config.fish
```
"""


def reference() -> str:
    """Return the text of docs/cli.md."""
    context = click.Context(cli, info_name="statestore", **cli.context_settings)
    commands = [(name, cli.get_command(context, name)) for name in cli.list_commands(context)]
    known = [(name, command) for name, command in commands if command is not None]
    rows = [
        f"| [`statestore {name}`](#{name}) | {_first_line(command)} |" for name, command in known
    ]
    parts = [_HEAD, "\n".join(["| command | |", "|---|---|", *rows]) + "\n"]
    parts += [_section(name, command, context) for name, command in known]
    parts.append(json_section())
    return "\n".join(parts)


def _first_line(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").split("\n", 1)[0]


def _section(name: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
    usage = command.get_usage(context).removeprefix("Usage: ")
    lines = [f"## {name}", "", "```", usage, "```", "", *_help(command), ""]
    options = [
        record
        for parameter in command.get_params(context)
        if (record := parameter.get_help_record(context)) is not None
    ]
    if options:
        lines += ["| option | |", "|---|---|"]
        lines += [
            f"| `{_escape(names)}` | {_escape(text).replace('[', BRACKET)} |"
            for names, text in options
        ]
        lines.append("")
    return "\n".join(lines)


def _help(command: click.Command) -> list[str]:
    """Return the help as Markdown: a paragraph marked as it stands becomes a code block."""
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        text = paragraph.lstrip("\n")
        if text.startswith("\b"):
            lines += ["```", text.removeprefix("\b").strip("\n"), "```", ""]
        else:
            lines += [*textwrap.wrap(_plain(text), LINE, break_on_hyphens=False), ""]
    return lines[:-1]


def _escape(text: str) -> str:
    return _plain(text).replace("|", "\\|")


def _plain(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PATH.write_text(reference())
