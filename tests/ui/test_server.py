"""The server of the page: who is answered, what with, and what it can be made to do."""

import json
import os
import re
import shlex
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

from statestore import Checkpoint
from statestore.checkpoint.lease import Holder, Lease, QueryProgress
from statestore.core.clock import SystemClock
from statestore.core.errors import InvalidArgumentError
from statestore.core.ids import RandomIds
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.sample import make_sample
from statestore.ui import asked
from tests.checkpoints import write_checkpoint
from tests.spark.processes import descendants
from tests.ui.served import serve


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """A checkpoint of sales, which no test changes."""
    path = tmp_path_factory.mktemp("sample") / "sales"
    make_sample(path)
    return path


@pytest.fixture(scope="module")
def served(sample, tmp_path_factory):
    """The pages of it, and of one that is not there; no changes are allowed."""
    with serve(sample, tmp_path_factory.mktemp("none") / "none") as server:
        yield server


@pytest.fixture
def made(tmp_path):
    """A checkpoint of six versions, to be changed."""
    checkpoint = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    for batch in range(5):
        checkpoint.run_batch(dict.fromkeys(range(batch * 10, batch * 10 + 40), batch))
    checkpoint.run_batch({1: 7})
    return checkpoint


@pytest.fixture
def changing(made):
    """The page of it, by which it may be changed."""
    with serve(made.path, "--allow-changes") as server:
        yield server


def lease_of(made):
    """The lease of a query that runs in this process."""
    holder = Holder(find_process(), application="app", run="run", executor="driver")
    root = f"{made.path}/state"
    return Lease(LocalFileIO(), root, RandomIds().new_id(), holder, 10_000, SystemClock())


# ---- who is answered


PATHS = ("/", "/part", "/checkpoints/0", "/checkpoints/0/part", "/checkpoints/0/live",
         "/checkpoints/0/tables")  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_only_who_has_the_token_is_answered(served, path):
    """Catches state that other users of the machine can read."""
    assert served.get(f"{path}?token={served.token}")[0] == 200
    assert served.get(path, {"X-Statestore-Token": served.token})[0] == 200
    for refused in ("", f"?token=x{served.token}", "?token=", "?token=%C3%A9", "?token=%ff"):
        status, text = served.get(path + refused)
        assert status == 403
        assert "sales" not in text


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200), ("localhost:9999", 200), ("[::1]:80", 200), ("LOCALHOST", 200),
        ("evil.example", 403), ("evil.example:80", 403), ("10.0.0.1", 403), ("", 403),
        ("127.0.0.1.evil.example", 403), ("localhost.evil.example:1", 403), ("[::1", 403),
    ],
)  # fmt: skip
def test_a_name_that_was_made_to_point_here_is_refused(served, host, status):
    """Catches a page of another site that reaches this server under a name of its own."""
    assert served.get(f"/checkpoints/0?token={served.token}", {"Host": host})[0] == status


def test_only_the_pages_own_scripts_may_ask(served):
    """Catches a form or script of another site that a browser sends here."""
    good = {"X-Statestore-Token": served.token, "Content-Type": "application/json"}
    own = f"http://127.0.0.1:{served.port}"

    def send(headers, what="sql", query=""):
        body = json.dumps({"sql": "SELECT 1 AS one"}).encode()
        return served.send("POST", f"/checkpoints/0/{what}{query}", body, headers)

    assert send(good)[0] == 200
    assert send(good | {"Origin": own, "Sec-Fetch-Site": "same-origin"})[0] == 200
    for headers in (
        {"Content-Type": "application/json"},
        good | {"X-Statestore-Token": "x"},
        good | {"Origin": "http://evil.example"},
        good | {"Origin": "null"},
        good | {"Origin": f"https://127.0.0.1:{served.port}"},
        good | {"Sec-Fetch-Site": "cross-site"},
        good | {"Sec-Fetch-Site": "same-site"},
        good | {"Content-Type": "text/plain"},
        good | {"Host": "evil.example", "Origin": "http://evil.example"},
    ):
        assert send(headers)[0] == 403, headers
    assert send({"Content-Type": "application/json"}, query=f"?token={served.token}")[0] == 403
    for what in ("sql", "key", "plan"):
        assert served.get(f"/checkpoints/0/{what}?token={served.token}")[0] == 405


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"", 400), (b"[]", 400), (b"{", 400), (b"[" * 100_000, 400), (b"x" * 200_001, 413),
     (b'{"sql": 7}', 400), (b'{"sql": "\xff"}', 400)],
)  # fmt: skip
def test_a_body_that_is_none_is_refused(served, body, status):
    """Catches a request that takes memory, or ends in an error of the server's own."""
    headers = {"X-Statestore-Token": served.token, "Content-Type": "application/json"}
    assert served.send("POST", "/checkpoints/0/sql", body, headers)[0] == status


def test_there_is_no_page_of_another_number(served):
    """Catches a number that leads elsewhere."""
    for number in ("2", "99999999999999999999", "-1", "x"):
        assert served.get(f"/checkpoints/{number}?token={served.token}")[0] == 404


def test_headers_let_a_browser_run_the_pages_own_scripts_only(served):
    """Catches a script that got into a page, and runs."""
    page = served.page("/checkpoints/0")
    nonces = set(re.findall(r'<script nonce="([^"]+)"', page))
    assert len(nonces) == 1
    assert nonces.isdisjoint(re.findall(r'<script nonce="([^"]+)"', served.page("/checkpoints/0")))
    assert set(re.findall(r"<script[^>]*>", page)) == {
        f'<script nonce="{next(iter(nonces))}">',
        '<script type="application/json" id="server">',
        '<script type="application/json" id="facts-data">',
    }


# ---- what is shown


class Cells(HTMLParser):
    """The cells of a table's rows."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.text = [], None
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.text = ""

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag == "td":
            self.rows[-1].append(" ".join(self.text.split()))
            self.text = None


def test_what_is_told_follows_the_query(changing, made):
    """Catches a page that stands still, and one that reads all state to follow."""
    assert changing.live()["told"]["state"] == "stopped"
    assert changing.live()["query"]["newest_version"] == 6
    lease = lease_of(made)
    lease.take(QueryProgress("clicks", 6, 100, 12.25, 3000.0))
    made.plan()
    time.sleep(1.1)
    told = changing.live()["told"]
    assert (told["state"], told["input"], told["processed"]) == (
        "running", "12 rows/s", "3,000 rows/s",
    )  # fmt: skip
    assert re.fullmatch(r"6 for [0-9.]+ m?s", told["batch"])
    lease.drop()
    Path(made.path, "offsets", "6").unlink()
    made.run_batch({2: 2})
    time.sleep(1.1)
    live = changing.live()
    assert (live["query"]["newest_version"], live["told"]["batch"]) == (7, "none")
    for _ in range(40):
        if ">7</b>newest version" in changing.page("/checkpoints/0/part"):
            break
        time.sleep(0.25)
    assert ">7</b>newest version" in changing.page("/checkpoints/0/part")

    changing.process.send_signal(signal.SIGTERM)
    assert changing.process.wait(timeout=30) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_index_tells_a_hundred_from_small_files(tmp_path):
    """Catches an index that takes as long as all pages together."""
    made = MadeCheckpoint(str(tmp_path / "all" / "0"), tmp_path / "scratch")
    for batch in range(3):
        made.run_batch(dict.fromkeys(range(10), batch))
    for number in range(1, 100):
        other = tmp_path / "all" / str(number)
        for below in ("offsets", "commits"):
            (other / below).mkdir(parents=True)
            for entry in Path(made.path, below).glob("[0-9]*"):
                (other / below / entry.name).write_bytes(entry.read_bytes())
        (other / "metadata").write_text(json.dumps({"id": f"query-{number}"}))
    (tmp_path / "all" / "7" / "commits" / "2").unlink()
    with serve(tmp_path / "all") as server:
        rows = [row for row in Cells(server.page("/")).rows if row]
        assert len(rows) == 100
        assert {row[2] for row in rows} == {"3", "2"}
        (behind,) = [row for row in rows if row[2] == "2"]
        assert behind[0] == str(tmp_path / "all" / "7")
        assert behind[3] == "2, runs again"
        # State of the copies is not even there: no state file was looked at.
        assert {row[1] for row in rows} == {"stopped"}
        assert {row[8] for row in rows} == {"-"}
        assert server.get(f"/checkpoints/0?token={server.token}")[0] == 200
        time.sleep(1.1)


# ---- SQL


def test_sql_is_that_of_the_checkpoint(served, sample):
    """Catches an answer that is not what the command gives."""
    sql = (
        "SELECT key.shop, sum(value.count) AS sold, max(key) AS last, NULL AS none, 'é' AS text "
        "FROM state GROUP BY 1 ORDER BY 2 DESC"
    )
    status, found = served.ask("sql", sql=sql)
    expected = Checkpoint(sample).sql(sql).read().to_pylist()
    assert status == 200
    assert found["columns"] == ["shop", "sold", "last", "none", "text"]
    assert [row[:2] for row in found["rows"]] == [
        [row["shop"], str(row["sold"])] for row in expected
    ]
    assert json.loads(found["rows"][0][2]) == expected[0]["last"]
    assert {(row[3], row[4]) for row in found["rows"]} == {(None, "é")}
    assert found["about"] == "6 rows."
    assert json.loads(served.page("/checkpoints/0/tables")) == {"tables": ['"state"']}


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{file}')", "SELECT * FROM '{file}'", "FROM '{file}'",
        "SELECT * FROM read_text('{file}')", "SELECT * FROM read_blob('{file}')",
        "SELECT * FROM glob('{file}')", "SELECT content FROM read_text('{file}') AS t(content)",
        "COPY (SELECT 1) TO '{file}.out'", "ATTACH '{file}'", "INSTALL httpfs", "LOAD httpfs",
        "SET enable_external_access = true", "PRAGMA database_list", "CALL pragma_version()",
        "CREATE TABLE t AS SELECT 1", "DROP VIEW state", "DELETE FROM state", "SELECT 1; SELECT 2",
        "EXPORT DATABASE '{file}.out'", "SELECT getenv('HOME')", "SELECT * FROM duckdb_settings()",
        "SELECT * FROM sqlite_scan('{file}', 't')", "SELECT * FROM parquet_scan('{file}')",
        "SELECT * FROM query('SELECT * FROM read_text(''{file}'')')", "",
        "SELECT * FROM query_table('{file}')", "IMPORT DATABASE '{file}'", "CHECKPOINT",
        "SELECT * FROM state WHERE key.shop IN (SELECT content FROM read_text('{file}'))",
    ],
)  # fmt: skip
def test_sql_reaches_nothing_outside(served, tmp_path, sql):
    """Catches SQL of a page that reads or writes a file, the network or the environment."""
    secret = tmp_path / "secret.csv"
    secret.write_text("word\nnobody-knows-this\n")
    status, found = served.ask("sql", sql=sql.format(file=secret))
    assert status == 400, found
    assert "nobody-knows-this" not in str(found)
    assert os.listdir(tmp_path) == ["secret.csv"]  # noqa: PTH208


def test_sql_is_bounded(served):
    """Catches SQL that takes all time, memory or text that there is."""
    status, found = served.ask("sql", sql="SELECT * FROM range(1000000000000) AS t(n)")
    assert (status, len(found["rows"])) == (200, 1000)
    assert found["about"] == "The first 1,000 rows; there are more."
    status, found = served.ask("sql", sql="SELECT repeat('x', 1000000) AS wide FROM range(9)")
    assert status == 200
    assert all(len(row[0]) < 2_100 for row in found["rows"])
    for wide in (
        "SELECT repeat('x', 3000000000) AS wide",
        "SELECT repeat('x', 100000000) AS wide FROM range(2000)",
        "SELECT list(range) FROM range(200000000)",
    ):
        status, found = served.ask("sql", sql=wide)
        assert (status, "emory" in found["problem"]) == (400, True)
    assert served.ask("sql", sql="SELECT 1 AS one")[1]["rows"] == [["1"]]


def test_one_question_is_answered_at_a_time(served):
    """Catches questions that take the machine's memory together, and one that is never over."""
    forever = "SELECT count(*) FROM range(400000) a, range(400000) b WHERE a.range + b.range < 0"
    with ThreadPoolExecutor() as pool:
        first = pool.submit(served.ask, "sql", sql=forever)
        while not (asking := descendants(served.process.pid)):
            time.sleep(0.05)
        status, found = served.ask("sql", sql="SELECT 1")
        assert (status, "ask again" in found["problem"]) == (409, True)
        assert served.ask("plan", operation="repair")[0] == 409
        assert served.live()["query"]["newest_version"] == 20
        os.kill(asking[0], signal.SIGKILL)  # as the system does where memory is short
        assert first.result()[0] == 400
    assert served.ask("sql", sql="SELECT 1")[0] == 200


def test_a_question_that_takes_too_long_is_ended(sample, monkeypatch):
    """Catches a question that goes on when nobody waits for it any more."""
    monkeypatch.setattr(asked, "MOST_SECONDS", 2)
    forever = "SELECT count(*) FROM range(100000000) a, range(100000000) b WHERE a.range > 5"
    with pytest.raises(InvalidArgumentError, match="takes longer than it may"):
        asked.answer(Checkpoint(sample), {}, "sql", sql=forever)


# ---- a key over the versions


def test_a_key_is_followed_over_the_versions(changing, made):
    """Catches a version that is left out, or one that is shown for another."""
    status, found = changing.ask("key", rows="0", key="[1]")
    assert status == 200, found
    values = [(row[0], row[3] and json.loads(row[3])) for row in found["rows"]]
    assert [span for span, _ in values] == ["6", "1 to 5"]
    expected = [
        Checkpoint(made.path).rows(0, version=version).find([1]).to_pylist()[0]["value"]
        for version in (6, 5)
    ]
    assert [value for _, value in values] == expected
    assert found["about"] == "6 versions looked at, of those that can be loaded."
    status, found = changing.ask("key", rows="0", key="45")
    assert [(row[0], row[2]) for row in found["rows"]][-1] == ("1", "no row")
    for key in ("[1", "[1, 2, 3]", "not a number", "", "[" * 9000):
        assert changing.ask("key", rows="0", key=key)[0] == 400
    assert changing.ask("key", rows="nothing", key="[1]")[0] == 400


# ---- plans, and what may be done


def test_plans_are_shown_and_nothing_is_done(served, sample, tmp_path):
    """Catches a page that changes something without being allowed to."""
    before = sorted(str(path) for path in sample.rglob("*"))
    plans = {
        "savepoint": {"destination": str(tmp_path / "saved"), "form": "native"},
        "branch": {"destination": str(tmp_path / "a branch")},
        "rescale": {"num_partitions": "8"},
        "repair": {},
    }
    commands = {}
    for operation, fields in plans.items():
        status, found = served.ask("plan", operation=operation, **fields)
        assert status == 200, found
        assert found["plan"]
        assert found["confirmation"] is None
        commands[operation] = found["command"]
    assert commands == {
        "savepoint": f"statestore savepoint {sample} {tmp_path}/saved --form native",
        "branch": f"statestore branch {sample} '{tmp_path}/a branch'",
        "rescale": f"statestore rescale {sample} --num-partitions 8 --yes",
        "repair": f"statestore repair {sample} --yes",
    }
    headers = {"X-Statestore-Token": served.token, "Content-Type": "application/json"}
    body = json.dumps({"confirmation": ""}).encode()
    assert served.send("POST", "/checkpoints/0/do", body, headers)[0] == 404
    assert sorted(str(path) for path in sample.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"operation": "forget"}, {"operation": "savepoint"}, {"operation": "branch"},
        {"operation": "savepoint", "destination": "x", "form": "other"},
        {"operation": "rescale"}, {"operation": "rescale", "num_partitions": "0"},
        {"operation": "rescale", "num_partitions": "-4"},
        {"operation": "rescale", "num_partitions": "1e3"},
        {"operation": "rescale", "num_partitions": "9" * 30},
        {"operation": "rescale", "num_partitions": "٤"},
        {"operation": "savepoint", "destination": "nowhere://x/y"},
    ],
)  # fmt: skip
def test_a_form_that_asks_for_nothing_is_refused(served, fields):
    """Catches a field that becomes something else."""
    status, found = served.ask("plan", **fields)
    assert (status, "To fix:" in found["problem"]) == (400, True)


def test_what_was_planned_is_done_once(changing, made, tmp_path):
    """Catches a button that does something else, or twice."""

    def plan(operation, **fields):
        status, found = changing.ask("plan", operation=operation, **fields)
        assert status == 200, found
        return found["confirmation"]

    def do(confirmation):
        return changing.ask("do", confirmation=confirmation)

    confirmation = plan("savepoint", destination=str(tmp_path / "saved"))
    assert not (tmp_path / "saved").exists()
    status, found = do(confirmation)
    assert status == 200, found
    assert Checkpoint(made.path).savepoints(tmp_path)[0].info.version == 6
    assert do(confirmation)[0] == 400

    assert do(plan("branch", destination=str(tmp_path / "branch")))[0] == 200
    assert Checkpoint(tmp_path / "branch").info.branch_of.version == 6

    assert do(plan("rescale", num_partitions="8"))[0] == 200
    assert Checkpoint(made.path).info.num_partitions == 8
    assert plan("repair") is None  # nothing is to repair
    history = [entry.operation for entry in Checkpoint(made.path).history()]
    assert history == ["rescale"]
    for nothing in ("", "x", confirmation):
        assert do(nothing)[0] == 400


def test_what_has_changed_since_it_was_planned_is_planned_again(changing, made, tmp_path):
    """Catches a button that does to a checkpoint what its page did not say."""
    _, rescale = changing.ask("plan", operation="rescale", num_partitions="8")
    _, savepoint = changing.ask("plan", operation="savepoint", destination=str(tmp_path / "saved"))
    Checkpoint(made.path).rescale(2)

    status, found = changing.ask("do", confirmation=rescale["confirmation"])

    assert (status, "has changed since" in found["problem"]) == (400, True)
    assert Checkpoint(made.path).info.num_partitions == 2
    assert changing.ask("do", confirmation=savepoint["confirmation"])[0] == 200  # of what there is
    _, again = changing.ask("plan", operation="rescale", num_partitions="8")
    assert changing.ask("do", confirmation=again["confirmation"])[0] == 200
    assert Checkpoint(made.path).info.num_partitions == 8


def test_a_running_query_is_left_alone(changing, made):
    """Catches a change under a query that runs."""
    lease = lease_of(made)
    lease.take()
    status, found = changing.ask("plan", operation="rescale", num_partitions="8")
    assert status == 200
    status, told = changing.ask("do", confirmation=found["confirmation"])
    assert status == 409
    assert "[checkpoint-in-use]" in told["problem"]
    assert Checkpoint(made.path).info.num_partitions == 4
    lease.drop()


def test_a_confirmation_is_that_of_one_checkpoint(tmp_path):
    """Catches a plan of one checkpoint that is done to another."""
    paths = []
    for name in ("one", "other"):
        made = MadeCheckpoint(str(tmp_path / name), tmp_path / f"scratch-{name}")
        made.run_batch({1: 1})
        paths.append(made.path)
    with serve(*paths, "--allow-changes") as server:
        _, found = server.ask("plan", 0, operation="rescale", num_partitions="8")
        assert server.ask("do", 1, confirmation=found["confirmation"])[0] == 400
        good = {"X-Statestore-Token": server.token, "Content-Type": "application/json"}
        _, found = server.ask("plan", 0, operation="rescale", num_partitions="8")
        body = json.dumps({"confirmation": found["confirmation"]}).encode()
        for headers in (good | {"X-Statestore-Token": "x"}, good | {"Origin": "http://evil"}):
            assert server.send("POST", "/checkpoints/0/do", body, headers)[0] == 403
        assert [Checkpoint(path).info.num_partitions for path in paths] == [4, 4]
        assert server.send("POST", "/checkpoints/0/do", body, good)[0] == 200
        assert [Checkpoint(path).info.num_partitions for path in paths] == [8, 4]


# ---- text of users

PIECES = (
    "<script>window.hit=1</script>", "<img src=x onerror=window.hit=1>", "</script>", "</textarea>",
    "<!--", "]]>", '"', "'", "`", "${hit}", "{{ 7 * 7 }}", "{% raw %}", "&lt;b&gt;", "&", "\\u003c",
    "\u202e", "\u2028", "\U0001f600", "é", "--", "/*", "%00", "\t", "javascript:window.hit=1", " ",
)  # fmt: skip


def hostile_text(random):
    """Return text that wants to be markup, a script, a template or SQL."""
    return "".join(random.choices(PIECES, k=random.randint(1, 5)))


@pytest.mark.parametrize("seed", range(3))
def test_text_of_users_stays_text(tmp_path, seed):
    """Catches a name, a key, a value or SQL that becomes markup, a script, or another text."""
    random = Random(seed)
    root = tmp_path / f"{hostile_text(random).replace('/', '|')}#?"
    words = [hostile_text(random) for _ in range(6)]
    notes = [hostile_text(random) for _ in words]
    rows = {(word, 1): (1, note) for word, note in zip(words, notes, strict=True)}
    write_checkpoint(root, [{"default": rows}, {"default": {(words[0], 1): (2, notes[0])}}])
    name = hostile_text(random)
    holder = Holder(find_process(), application="app", run="run", executor="driver")
    ids = RandomIds().new_id()
    lease = Lease(LocalFileIO(), f"{root}/state", ids, holder, 10_000, SystemClock())
    lease.take(QueryProgress(name))
    with serve(root, tmp_path / "<b>none</b>") as server:
        for path in ("/", "/part", "/checkpoints/0", "/checkpoints/0/part"):
            page = server.page(path).replace("<script>\n", "")
            assert name not in page or not set(name) & set("<>&'\"")
            assert not re.search(r"<(script>window|img|b>none)", page.partition("echarts")[0])
        assert server.live()["query"]["name"] == name
        (text,) = re.findall(
            r'<script type="application/json" id="facts-data">(.*?)</script>',
            server.page("/checkpoints/0/part"), re.DOTALL,
        )  # fmt: skip
        facts = json.loads(text)
        assert facts["uri"] == str(root)
        assert facts["query"]["name"] == name

        word = random.choice(words)
        status, found = server.ask("key", rows="default", key=json.dumps([word, 1]))
        assert status == 200, found
        assert json.loads(found["rows"][0][2])["word"] == word
        quoted = word.replace("'", "''")
        sql = f"SELECT key.word, value.note FROM \"0/default\" WHERE key.word = '{quoted}'"
        status, found = server.ask("sql", sql=sql)
        assert status == 200, found
        assert found["rows"] == [[word, dict(zip(words, notes, strict=True))[word]]]
        assert server.ask("sql", sql=word)[0] == 400
        assert server.ask("plan", operation=word)[0] == 400
        status, found = server.ask("plan", operation="branch", destination=f"{tmp_path}/{word}")
        assert status in (200, 400)
        if status == 200:
            assert shlex.split(found["command"])[2:] == [str(root), f"{tmp_path}/{word}".strip()]
    lease.drop()
