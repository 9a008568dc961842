"""What a page asks: SQL, a key over the versions, plans, and what may be done by them."""

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from statestore import Checkpoint
from statestore.core.errors import InvalidArgumentError, StateStoreError
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.ui import asked
from statestore.ui.answers import run_sql
from statestore.ui.plans import BusyError, Plans
from tests.checkpoints import write_checkpoint
from tests.spark.processes import descendants
from tests.ui.served import lease_of, serve

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
    followed = served.ask("key", rows="state", key="Lyon")
    assert followed[0] == 200
    assert followed == served.ask("key", rows="", key="Lyon")
    assert "known='state'" in served.ask("key", rows="nothing", key="Lyon")[1]["problem"]


FROM_OUTSIDE = pytest.mark.parametrize(
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


@pytest.fixture
def secret(tmp_path):
    """A file that no SQL may read, and the only one of its directory."""
    path = tmp_path / "secret.csv"
    path.write_text("word\nnobody-knows-this\n")
    yield path
    assert os.listdir(tmp_path) == ["secret.csv"]  # noqa: PTH208


@FROM_OUTSIDE
@pytest.mark.few(4)
def test_sql_of_a_page_reaches_nothing_outside(served, secret, sql):
    """Catches a page that runs SQL in another way than the next test does."""
    status, found = served.ask("sql", sql=sql.format(file=secret))
    assert status == 400, found
    assert "nobody-knows-this" not in str(found)


@FROM_OUTSIDE
def test_sql_reaches_nothing_outside(sample, secret, sql):
    """Catches SQL that reads or writes a file, the network or the environment.

    It is run as the process of a question does, without starting one.
    """
    with pytest.raises(StateStoreError) as raised:
        run_sql(Checkpoint(sample), sql=sql.format(file=secret))
    assert "nobody-knows-this" not in str(raised.value)


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
    before = set(descendants(served.process.pid))  # of a question that is just over
    with ThreadPoolExecutor() as pool:
        first = pool.submit(served.ask, "sql", sql=forever)
        while not (asking := set(descendants(served.process.pid)) - before):
            time.sleep(0.05)
        status, found = served.ask("sql", sql="SELECT 1")
        assert (status, "ask again" in found["problem"]) == (409, True)
        assert served.ask("plan", operation="repair")[0] == 200
        assert served.live()["query"]["newest_version"] == 20
        os.kill(asking.pop(), signal.SIGKILL)  # as the system does where memory is short
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


def test_a_key_of_many_rows_is_compared_whole(tmp_path):
    """Catches rows that are left out unsaid, and versions that differ in one of these."""
    counts = {"lists": (25, 25, 26), "default": (30, 30, 30)}
    versions = [
        {
            "lists": {("a", 1): [(value, None) for value in range(counts["lists"][at])]},
            "default": {("b", key): (key if key < 29 else at // 2, "") for key in range(30)},
        }
        for at in range(3)
    ]
    path = write_checkpoint(tmp_path / "lists", versions)

    with serve(path) as served:
        for rows, key, more in (("lists", '["a", 1]', (6, 5)), ("default", '["b"]', (10, 10))):
            status, found = served.ask("key", rows=rows, key=key)
            assert status == 200, found
            lines = [(row[0], row[2]) for row in found["rows"]]
            expected = [
                ("3", f"… and {more[0]} rows more"),
                ("1 to 2", f"… and {more[1]} rows more"),
            ]
            assert [line for line in lines if "more" in line[1]] == expected
            assert len(lines) == 42


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
    assert fields.get("num_partitions", "") in found["problem"]


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


def test_question_runs_no_code_of_the_directory_it_is_asked_in(sample, tmp_path, monkeypatch):
    """Catches a module of a directory of somebody else's that runs as the user."""
    (tmp_path / "statestore" / "ui").mkdir(parents=True)
    for name in ("statestore/__init__.py", "statestore/ui/__init__.py", "resource.py"):
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.chdir(tmp_path)

    found = asked.answer(Checkpoint(sample), {}, "sql", sql="SELECT 1 AS one")

    assert found["rows"] == [["1"]]
    assert not (tmp_path / "ran").exists()


def test_process_of_a_question_that_fails_says_why(sample, tmp_path, monkeypatch):
    """Catches every failure that is called a lack of memory."""
    (tmp_path / "pyarrow").mkdir()
    (tmp_path / "pyarrow" / "__init__.py").write_text("raise ImportError('a broken install')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(InvalidArgumentError, match="a broken install") as error:
        asked.answer(Checkpoint(sample), {}, "sql", sql="SELECT 1 AS one")

    assert "memory" not in str(error.value)


def test_plan_that_is_refused_while_another_is_done_may_be_done_later(made, tmp_path):
    """Catches a confirmation that is used up by who was told to wait."""
    ck = Checkpoint(made.path)
    plans = Plans(allows_changes=True, storage_options=())
    fields = {"operation": "savepoint", "destination": str(tmp_path / "saved")}
    confirmation = plans.plan(ck, fields)["confirmation"]

    with plans._doing, pytest.raises(BusyError):
        plans.do(ck, confirmation)

    assert "done" in plans.do(ck, confirmation)
