"""Pages: what they show is what the commands say, in a real browser too, and only to its user."""

import html
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
from click.testing import CliRunner

from statestore import Checkpoint
from statestore.cli.commands import cli
from statestore.codec.commit_times import MemoryUse
from statestore.core.text import format_bytes
from statestore.engine.memory import EngineMemory
from statestore.report import advice as advice_module
from statestore.testing.checkpoints import MadeCheckpoint
from tests.browser import BROWSER
from tests.checkpoints import query_of
from tests.damaged import NOW, deltas, flip, make_with_snapshots
from tests.seams import at

CHARTS = resources.files("statestore.report") / "assets" / "echarts.min.js"
SPARK = Path(__file__).resolve().parents[1] / "golden" / "spark"


@pytest.fixture
def made(tmp_path):
    """A checkpoint of six versions, the fifth of which has snapshots."""
    (tmp_path / "scratch").mkdir()
    checkpoint = MadeCheckpoint(str(tmp_path / "checkpoint"), tmp_path / "scratch")
    for batch in range(5):
        checkpoint.run_batch(dict.fromkeys(range(batch * 10, batch * 10 + 40), batch))
    checkpoint.take_snapshots()
    checkpoint.run_batch({1: 1})
    return checkpoint


def run(*arguments):
    """Run a command; return what it prints."""
    result = CliRunner().invoke(cli, [*map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


class Cells(HTMLParser):
    """The rows of a page's tables by the section they are in."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.section, self.text = {}, "", None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "section":
            self.section = dict(attrs).get("id", "")
        elif tag == "tr":
            self.rows.setdefault(self.section, []).append([])
        elif tag == "td":
            self.text = ""

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag == "td":
            self.rows[self.section][-1].append(self.text.strip())
            self.text = None


def test_numbers_are_those_of_list(made, tmp_path):
    """Catches a page that counts for itself, and counts otherwise."""
    page = tmp_path / "page.html"
    run("report", made.path, "--to", page)
    listed = json.loads(run("list", made.path, "--output", "json"))
    told = json.loads(run("report", made.path, "--output", "json"))

    assert told["versions"] == listed["versions"]
    assert told["stored_bytes"] == listed["stored_bytes"]
    rows = [row for row in Cells(page.read_text()).rows["versions"] if row]
    assert [row[0] for row in rows] == [str(of["version"]) for of in listed["versions"]]
    for row, of in zip(rows, listed["versions"], strict=True):
        assert row[5] == f"{of['num_rows']:,}"
        assert row[6:8] == [format_bytes(of["incremental_bytes"]), format_bytes(of["full_bytes"])]
        assert (row[10] == "-") == (of["commit"] is None)


def test_a_page_is_replaced_when_it_is_whole(made, tmp_path):
    """Catches half a page that a server of files shows, and one that others can read since."""
    page, before = tmp_path / "page.html", tmp_path / "before.html"
    page.write_text("before")
    page.chmod(0o600)
    before.hardlink_to(page)

    run("report", made.path, "--to", page)

    assert before.stat().st_size == len("before")
    assert page.read_text()[-20:].endswith("</html>")
    assert page.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in tmp_path.glob("*.html")) == ["before.html", "page.html"]


def test_a_page_goes_into_a_pipe(made):
    """Catches a pipe that is taken for a file to replace."""
    command = [sys.executable, "-m", "statestore.cli", "report", made.path, "--to", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    told = done.stdout.rpartition("</html>")[2]
    assert told.startswith("/dev/stdout: version 6")


def test_state_partitions_add_up_to_the_version(made):
    """Catches state that a page leaves out, or shows twice."""
    told = json.loads(run("report", made.path, "--output", "json"))
    newest = told["versions"][0]

    assert {(store["operator"], store["name"]) for store in told["stores"]} == set(made.expected())
    for field in ("num_rows", "full_bytes"):
        assert sum(store[field] for store in told["stores"]) == newest[field]
    for store in told["stores"]:
        rows = made.expected()[store["operator"], store["name"]]
        assert store["num_rows"] == len(rows)
        if store["key_groups"] is not None:
            assert sum(map(sum, store["key_groups"])) == len(rows)
        assert [part["num_rows"] for part in store["partitions"]]
        assert all(part["num_commits"] == 5 for part in store["partitions"])
        assert len(store["heaviest"]) == min(10, len(rows))
        assert len(store["hottest"]) >= len(store["heaviest"])
        assert all(0 < key["num_changes"] <= key["num_versions"] for key in store["hottest"])


def dom(page, tmp_path):
    """The document that a browser makes of a page, which must have no error to tell."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
               "--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'browser'}",
               "--dump-dom", page.as_uri()]  # fmt: skip
    shown = subprocess.run(command, capture_output=True, text=True, timeout=50, check=True)
    assert [line for line in shown.stderr.splitlines() if "CONSOLE" in line] == []
    return shown.stdout


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")
def test_browser_draws_every_chart_without_an_error(made, tmp_path):
    """Catches a script that fails where no test of text sees it."""
    page = tmp_path / "page.html"
    run("report", made.path, "--to", page)

    shown = dom(page, tmp_path)

    charts = re.findall(r'class="chart" data-chart="(\w+)"[^>]*data-points="(\d+)"', shown)
    assert {name for name, _ in charts} == {"sizes", "commits", "rows", "phases", "groups"}
    assert len(charts) == page.read_text().count('class="chart"')
    assert all(int(points) > 0 for _, points in charts)
    assert shown.count("<svg") == len(charts)


def test_page_needs_nothing_from_elsewhere_and_text_stays_text(tmp_path):
    """Catches a page that is blank without a network, and a name that becomes markup."""
    (tmp_path / "scratch").mkdir()
    made = MadeCheckpoint(str(tmp_path / "<script>alert(1)<"), tmp_path / "scratch")
    made.run_batch({1: 1})
    page = tmp_path / "page.html"
    run("report", made.path, "--to", page)

    text = page.read_text().replace(CHARTS.read_text(), "")
    assert "<script>alert(1)" not in text
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=[\"'](?!data:)", text)


def test_branches_are_shown_where_they_began_and_of_what_they_are(made, tmp_path):
    """Catches an experiment that nobody finds again, or one of another query's."""
    others = tmp_path / "others"
    others.mkdir()
    run("branch", made.path, others / "later")
    run("branch", made.path, others / "early", "--version", "5")
    run("branch", others / "later", others / "of-branch")
    page = tmp_path / "page.html"

    run("report", made.path, "--savepoints", others, "--to", page)
    rows = [row for row in Cells(page.read_text()).rows["retained"] if row]
    assert rows == [[f"{others}/early", "5"], [f"{others}/later", "6"]]

    told = json.loads(run("list", others / "early", "--output", "json"))
    origin = json.loads(Path(made.path, "metadata").read_text())["id"]
    assert told["branch_of"] == {"checkpoint": made.path, "query_id": origin, "version": 5}
    run("report", others / "early", "--to", page)
    assert f"version\n5 of {made.path}" in page.read_text()
    assert "branch_of" in (others / "of-branch" / "metadata").read_text()


@pytest.mark.parametrize("name", sorted(path.name for path in SPARK.iterdir()))
def test_checkpoints_of_spark_have_pages_too(name, tmp_path):
    """Catches what a page takes for granted, and only this package's checkpoints have."""
    path = SPARK / name / "checkpoint"
    page = tmp_path / "page.html"
    run("report", path, "--to", page)

    told = json.loads(run("report", path, "--output", "json"))
    assert told["backend"] in ("spark-hdfs", "spark-rocksdb")
    assert told["stores"]
    assert told["advice"] == []
    assert "<h2>Versions</h2>" in page.read_text()


def test_versions_of_spark_add_only_what_the_one_before_has_not(tmp_path):
    """Catches the size of the whole state shown as what each version added."""
    path = SPARK / "rocksdb-no-changelog" / "checkpoint"
    versions = json.loads(run("list", path, "--output", "json"))["versions"]
    newest_two = json.loads(run("list", path, "--limit", "2", "--output", "json"))["versions"]

    assert versions[-1]["incremental_bytes"] == versions[-1]["full_bytes"]
    assert any(one["incremental_bytes"] < one["full_bytes"] for one in versions)
    assert newest_two == versions[:2]
    of_files = {
        file: file.stat().st_size
        for file in (path / "state").rglob("*")
        if file.suffix in (".sst", ".zip")
    }
    assert sum(one["incremental_bytes"] for one in versions) <= sum(of_files.values())


def test_chart_without_data_says_why(made, tmp_path):
    """Catches axes and a legend around nothing."""
    page = tmp_path / "page.html"
    run("report", SPARK / "rocksdb-no-changelog" / "checkpoint", "--to", page)
    assert "Checkpoints of Spark's own providers have no commit times" in html.unescape(
        page.read_text()
    )
    run("savepoint", made.path, tmp_path / "savepoint")
    run("restore", tmp_path / "savepoint", tmp_path / "restored")
    run("report", tmp_path / "restored", "--to", page)
    assert "No commit times yet" in page.read_text()
    for name in ("commits", "phases"):
        assert f'data-chart="{name}"' not in page.read_text()


def test_expired_versions_have_no_size(tmp_path):
    """Catches a version that is gone shown as one of 0 bytes, and joined to others by a line."""
    query, _ = make_with_snapshots(tmp_path, "filesystem")
    for number in range(5):
        query.run_batch({f"more {number}": number}, snapshot=number == 2)
    at(query.path, options=NOW).expire(2)
    page = tmp_path / "page.html"
    run("report", query.path, "--to", page)

    rows = [row for row in Cells(page.read_text()).rows["versions"] if row]
    expired = [row for row in rows if row[2] == "expired"]
    assert expired
    assert {(row[5], row[6]) for row in expired} == {("-", "-")}
    if BROWSER is not None:
        (points,) = re.findall(r'data-chart="sizes"[^>]*data-points="(\d+)"', dom(page, tmp_path))
        assert int(points) == 2 * (len(rows) - len(expired))


def test_a_newest_version_that_cannot_be_read_has_no_sizes(made, tmp_path):
    """Catches a page that says that there is no state yet, in 0 bytes, where it is damaged."""
    (newest,) = deltas(made, 6)
    flip(newest, offset=-30)
    page = tmp_path / "page.html"

    run("report", made.path, "--to", page)

    text = page.read_text()
    for label in ("rows", "a restore reads", "the newest version added"):
        assert f"<b>-</b>{label}</div>" in text
    assert "Not known: the newest version cannot be read." in text
    assert "No state yet." not in text


def test_a_rescale_is_advised_once(tmp_path, monkeypatch):
    """Catches a page that orders the same rescale again when it is done."""
    query = query_of(tmp_path / "query", num_partitions=2)
    query.run_batch({f"key {number}": number for number in range(1000)})
    checkpoint = Checkpoint(query.path)
    parts = checkpoint.report().stores[0].partitions
    monkeypatch.setattr(advice_module, "LARGE_BYTES", min(part.full_bytes for part in parts) - 1)
    assert [advice.kind for advice in checkpoint.report().advice] == ["partitions-too-large"]

    checkpoint.rescale(4)

    assert checkpoint.report().advice == ()


@pytest.mark.parametrize("form", ["canonical", "native"])
def test_nothing_is_advised_to_a_savepoint(tmp_path, form):
    """Catches the command for a rescale, which a savepoint refuses."""
    query = query_of(tmp_path / "query", num_partitions=16)
    query.run_batch({"one": 1, "two": 2})
    checkpoint = Checkpoint(query.path)
    assert [advice.kind for advice in checkpoint.report().advice] == ["partitions-too-small"]

    savepoint = checkpoint.savepoint(tmp_path / "savepoint", form=form).made

    assert savepoint.report().advice == ()


def test_memory_is_that_under_the_present_limit(tmp_path, monkeypatch):
    """Catches advice to give executors more memory that stays when they have it."""
    query = query_of(tmp_path / "query", num_partitions=2)
    for limit_bytes, kinds in ((1_000, ["engine-memory"]), (2_000, [])):
        use = MemoryUse(100, 950, limit_bytes)
        monkeypatch.setattr(EngineMemory, "use", lambda _, use=use: use)
        for number in range(3):
            query.run_batch({"one": number})
        found = Checkpoint(query.path).report()
        assert ([one.kind for one in found.advice], found.memory) == (kinds, use)


def test_damage_is_shown_with_the_command_that_helps(made, tmp_path):
    """Catches a page that does not open where it is needed most, or says that all is well."""
    (newest,) = deltas(made, 6)
    flip(newest, offset=-30)

    page = tmp_path / "page.html"
    text = run("report", made.path, "--to", page)

    assert f"statestore repair {made.path}" in text
    assert newest.name in page.read_text()
    told = json.loads(run("report", made.path, "--output", "json"))
    assert [advice["kind"] for advice in told["advice"] if advice["severity"] == "problem"] == [
        "damage"
    ]


def test_page_says_what_it_did_not_check(made, tmp_path):
    """Catches a page that says that all is well of rows that nobody has read."""
    (damaged,) = deltas(made, 2, partition=3)
    flip(damaged)
    page = tmp_path / "page.html"

    printed = run("report", made.path, "--to", page)
    told = json.loads(run("report", made.path, "--output", "json"))

    assert (told["advice"], told["is_deep"]) == ([], False)
    for text in (printed, page.read_text()):
        assert "rows were not checked: --deep does that" in text
        assert "is whole" not in text

    printed = run("report", made.path, "--deep", "--to", page)
    findings = [row for row in Cells(page.read_text()).rows["findings"] if row]

    assert {row[2] for row in findings} == {"3"}
    for text in (printed, page.read_text()):
        assert "State partition 3 of store" in text
        assert f"file {damaged}" in text
        assert f"statestore repair {made.path}" in text

    for number in (1, 2):
        fresh = MadeCheckpoint(str(tmp_path / f"fresh-{number}"), tmp_path / "scratch")
        fresh.run_batch({1: 1})
        printed = run("report", fresh.path, "--to", page, *["--deep"] * (number - 1))
        assert ("every row of the newest version was checked" in printed) == (number == 2)
