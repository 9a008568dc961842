"""`statestore sql` on a small checkpoint: queries, files, listings, the shell."""

import csv
import json
import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from statestore.cli.commands import cli
from tests.checkpoints import contents, write_checkpoint

VERSIONS = [
    {
        "default": {(f"user-{n}", n): (n, f"[{n}]") for n in range(30)},
        "lists": {("a", 1): [(1, "")]},
    },
    {"default": {("user-3", 3): None, ("user-4", 4): (400, None), ("new", 0): (0, "")}},
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("cli") / "checkpoint", VERSIONS)


def _run(*arguments, status=0, given=None):
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments], input=given)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == status, result.output
    return result.output


def _json(*arguments, **how):
    return json.loads(_run(*arguments, "--output", "json", **how))


def test_numbers_are_aligned_to_the_right_also_sums_and_beside_null(checkpoint):
    """Catches a column of numbers that begins at the left, since DuckDB's sums are decimals."""
    sql = """SELECT sum(value.total) AS sum_of_all, NULL::INT AS n FROM "default"
             UNION ALL SELECT 7, 12 ORDER BY 1"""

    assert _run("sql", checkpoint, sql).splitlines() == [
        "sum_of_all   n",
        "         7  12",
        "       828   -",
    ]


# Larger than what DuckDB does at once: a statement that is not stopped ends never.
SLOW = "SELECT count(*) FROM range(1000000) a, range(1000000) b WHERE a.range % 7 = b.range % 5"


def _shell(checkpoint):
    """Start a shell on a terminal; returns the process, and the end of the terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "statestore.cli", "sql", str(checkpoint)],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    return process, ours


def _read_until(terminal, text):
    """Read what a terminal shows, until a text."""
    shown = ""
    while text not in shown:
        shown += os.read(terminal, 4096).decode()
    return shown


@pytest.mark.timeout(60)
def test_ctrl_c_stops_a_statement_and_sigterm_the_shell(checkpoint):
    """Catches a shell that ends with a traceback of DuckDB's, and one that nothing ends."""
    process, terminal = _shell(checkpoint)
    try:
        _read_until(terminal, "sql> ")
        os.write(terminal, f"{SLOW};\n".encode())
        _read_until(terminal, "\n")
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        _read_until(terminal, "stopped")
        os.write(terminal, b"SELECT upper('again');\n")
        _read_until(terminal, "AGAIN")
        os.write(terminal, f"{SLOW};\n".encode())
        time.sleep(2)
        process.terminate()
        assert process.wait(20) == 143
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)])
def test_signal_ends_sql_with_its_status(checkpoint, number, status):
    """Catches a traceback, and a status by which a scheduler takes its own signal for a fault."""
    command = [sys.executable, "-m", "statestore.cli", "sql", str(checkpoint), SLOW]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(6)
        process.send_signal(number)
        try:
            _, shown = process.communicate(timeout=30)
        finally:
            process.kill()

    assert process.returncode == status, shown
    assert "Traceback" not in shown


def test_rows_are_printed_up_to_a_limit(checkpoint):
    """Catches rows left out without a word, and SQL of the input that is not run."""
    sql = 'SELECT key.word, value.total FROM "default" ORDER BY value.total DESC'

    assert _json("sql", checkpoint, sql, "--limit", 1) == {
        "schema_version": 1,
        "rows": [{"word": "user-4", "total": 400}],
        "more": True,
    }
    text = _run("sql", checkpoint, "--limit", 2, given=sql)
    assert "user-4" in text
    assert "The first 2 rows" in text
    counted = 'SELECT count(*) AS n FROM "default@1" a JOIN old."default" b ON a.key = b.key'
    found = _json("sql", checkpoint, counted, "--attach", f"old={checkpoint}")
    assert found["rows"] == [{"n": 29}]


def test_sum_is_a_number(checkpoint):
    """Catches a sum that `jq` takes for a text, or that `grep` does not find by its digits."""
    sql = 'SELECT sum(value.total) * 10 AS n, 1.50::DECIMAL(9, 2) AS d FROM "default"'

    assert _json("sql", checkpoint, sql)["rows"] == [{"n": 8280, "d": "1.50"}]
    assert _run("sql", checkpoint, sql).splitlines()[1].split() == ["8280", "1.50"]


def test_files_have_the_rows_whatever_their_form(checkpoint, tmp_path):
    """Catches a null that is an empty text, and a form that lacks rows."""
    sql = 'SELECT key.word, key.number, value.note, value FROM "default"'
    expected = {(word, number): note for (word, number), (_, note) in contents(VERSIONS).items()}
    found = {}
    for form in ("csv", "json", "jsonl", "arrow", "parquet"):
        path = tmp_path / f"rows.{form}"
        assert _json("sql", checkpoint, sql, "--to", path)["rows"] == len(expected)
        if form == "csv":
            with path.open(newline="") as file:
                rows = list(csv.DictReader(file))
            assert {(row["word"], int(row["number"])) for row in rows} == expected.keys()
            assert json.loads(rows[0]["value"]).keys() == {"total", "note"}
            assert min(line.split(",")[2] for line in path.read_text().splitlines()[1:]) == ""
            continue
        if form.startswith("json"):
            rows = [json.loads(line) for line in path.read_text().splitlines()]
        else:
            table = pq.read_table(path) if form == "parquet" else pa.ipc.open_file(path).read_all()
            rows = table.to_pylist()
        found[form] = {(row["word"], row["number"]): row["note"] for row in rows}
    assert all(rows == expected for rows in found.values())
    path = tmp_path / "READ.CSV"
    assert _json("read", checkpoint, "--rows", "lists", "--to", path)["rows"] == 1
    assert path.read_text().startswith('"key"')


def test_tables_are_listed(checkpoint):
    """Catches a table of an attached checkpoint that is missing, or another name than SQL takes."""
    listed = _json("sql", checkpoint, "--tables", "--attach", f"old={checkpoint}")["tables"]

    names = [(table["alias"], table["name"]) for table in listed]
    assert names == [(alias, name) for alias in (None, "old") for name in ('"default"', '"lists"')]
    text = _run("sql", checkpoint, "--tables", "--attach", f"old={checkpoint}")
    assert 'old."lists"' in text
    assert "struct<word: string" in text


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["SELECT * FROM nothing"], 1, '"default", "lists"'),
        (["SELECT nothing FROM lists"], 1, "key.word"),
        (["SELECT 1", "--tables"], 2, "exclude"),
        (["--tables", "--to", "x.csv"], 2, "--to goes with SQL"),
        (["SELECT 1", "--attach", "old"], 2, "ALIAS=CHECKPOINT"),
        (["SELECT 1", "--attach", "temp=/none"], 1, "no checkpoint"),
        (["SELECT 1", "--memory-limit", "much"], 1, "1GB"),
        (["COPY (SELECT 1) TO '/tmp/x'"], 1, "not one SELECT"),
    ],
)
def test_what_cannot_be_run_says_why(checkpoint, arguments, status, says):
    """Catches a traceback, and an error of the engine's own."""
    assert says in _run("sql", checkpoint, *arguments, status=status)


def test_the_shell_runs_statements_and_keeps_a_history(checkpoint, tmp_path):
    """Catches a shell that ends with an error, and a history that everybody can read."""
    typed = (
        "SELECT 6 *\n7 AS x;\nSELECT nope;\n.tables\n.what\nSELECT count(*) FROM lists;\n.exit\n"
    )
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "statestore.cli", "sql", checkpoint]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "TERM": "dumb"}
    os.write(ours, typed.encode())
    done = subprocess.run(
        command, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=env, timeout=120,
        check=True,
    )  # fmt: skip
    os.close(theirs)
    shown = ""
    with suppress(OSError):  # the other side is closed
        while part := os.read(ours, 4096):
            shown += part.decode()
    os.close(ours)

    assert "42" in shown
    assert '"lists"' in shown
    assert b"nope" in done.stderr
    history = Path(tmp_path, "statestore", "sql_history")
    assert history.stat().st_mode & 0o077 == 0
