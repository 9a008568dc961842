"""The server of the page: who is answered, what is shown, and how text of users is."""

import http.client
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest

from statestore.checkpoint.lease import Holder, Lease, QueryProgress
from statestore.core.clock import ManualClock, SystemClock
from statestore.core.ids import RandomIds
from statestore.core.process import find_process
from statestore.io.local import LocalFileIO
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.ui.looks import Kept
from tests.checkpoints import make_query, write_checkpoint
from tests.ui.served import lease_of, serve, until

# ---- who is answered


def has_ipv6():
    """Whether the loopback has an address of IPv6."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


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


def test_a_change_waits_for_no_look_and_none_of_before_is_kept():
    """Catches an answer that waits until all state was read, and a page of before the change."""
    begun, may_end, looks = threading.Event(), threading.Event(), []

    def look():
        looks.append(len(looks))
        begun.set()
        assert may_end.wait(60)
        return looks[-1]

    kept = Kept(look, ManualClock())
    asking = threading.Thread(target=kept.get)
    asking.start()
    assert begun.wait(60)
    changing = threading.Thread(target=kept.forget)
    changing.start()
    changing.join(10)
    is_waiting = changing.is_alive()
    may_end.set()
    asking.join()

    assert not is_waiting
    assert kept.get() == kept.get() == 1
    kept.forget()
    assert kept.get() == 2


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


def test_page_of_a_query_that_comes_later(tmp_path):
    """Catches a server that waits for a checkpoint and does not say so, or never sees it."""
    with serve(tmp_path, stderr=subprocess.PIPE) as served:
        warning = served.process.stderr.readline()
        assert f"no checkpoint at or below {tmp_path}" in warning
        page = served.page("/checkpoints/0")
        assert "there is no checkpoint of a streaming query" in page
        assert (
            re.findall(r"<script[^>]*>", page)[0] == '<script type="application/json" id="server">'
        )
        assert re.search(r'<script nonce="[^"]+">', page)

        make_query(tmp_path, 2)

        for _ in range(40):
            if "<h2>Operators" in served.page("/checkpoints/0"):
                break
            time.sleep(0.25)
        assert "<h2>Operators" in served.page("/checkpoints/0")


def test_a_name_that_is_not_utf8_hides_no_other(tmp_path):
    """Catches an index that fails as a whole, by one name."""
    make_query(tmp_path / "query", 1)
    make_query(tmp_path / "odd", 1)
    (tmp_path / "odd").rename(tmp_path / os.fsdecode(b"\xff"))
    with serve(tmp_path) as served:
        page = served.page("/")
        assert str(tmp_path / "query") in page
        assert "a name in a path is not UTF-8" in page
        assert "a name in a path is not UTF-8" in served.page("/checkpoints/1")


def test_what_is_told_follows_the_query(changing, made):
    """Catches a page that stands still, and one that reads all state to follow."""
    assert changing.live()["told"]["state"] == "stopped"
    assert changing.live()["query"]["newest_version"] == 6
    lease = lease_of(made)
    lease.take(QueryProgress("clicks", 6, 100, 12.25, 3000.0))
    made.plan()
    until(lambda: changing.live()["told"]["state"] == "running")
    told = changing.live()["told"]
    assert (told["state"], told["input"], told["processed"]) == (
        "running", "12 rows/s", "3,000 rows/s",
    )  # fmt: skip
    assert re.fullmatch(r"6 for [0-9.]+ m?s", told["batch"])
    lease.drop()
    Path(made.path, "offsets", "6").unlink()
    made.run_batch({2: 2})
    until(lambda: changing.live()["query"]["newest_version"] == 7)
    assert changing.live()["told"]["batch"] == "none"
    until(lambda: ">7</b>newest version" in changing.page("/checkpoints/0/part"))

    changing.process.send_signal(signal.SIGTERM)
    assert changing.process.wait(timeout=30) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)


def test_ctrl_c_is_the_usual_end(made):
    """Catches a server whose end is told as a failure."""
    with serve(made.path, stderr=subprocess.PIPE) as server:
        assert server.process.stdout.readline() == "Ctrl-C ends it.\n"
        assert server.live()["query"]["uri"] == made.path
        server.process.send_signal(signal.SIGINT)
        assert server.process.communicate() == ("", "")
        assert server.process.returncode == 0


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_look_that_goes_on_is_ended(tmp_path, monkeypatch, number, status):
    """Catches a server that nothing ends before state of many terabytes is read."""
    made = MadeCheckpoint(str(tmp_path / "checkpoint"), tmp_path / "scratch")
    made.run_batch({1: 1})
    file = min(Path(made.path, "state").rglob("1.delta*"))
    file.unlink()
    os.mkfifo(file)  # whoever opens it waits
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with serve(made.path, stderr=subprocess.PIPE) as server:
        server.process.stdout.readline()
        page = f"/checkpoints/0?token={server.token}"
        threading.Thread(target=_get_in_vain, args=(server, page), daemon=True).start()
        while not any(temporary.iterdir()):
            time.sleep(0.05)
        time.sleep(1.0)  # for it to be at the file
        server.process.send_signal(number)
        assert server.process.communicate(timeout=20) == ("", "")
        assert server.process.returncode == status
    assert not any(temporary.iterdir())


def _get_in_vain(server, page):
    with suppress(OSError, http.client.HTTPException):
        server.get(page)


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
    (tmp_path / "<b>none</b>").mkdir(parents=True)
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


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6 here")
def test_address_of_ipv6_is_listened_at(made):
    """Catches an address that is shown as one to open, and cannot be listened at."""
    with serve(made.path, "--host", "::1") as server:
        assert server.address.startswith("http://[::1]:")
        connection = http.client.HTTPConnection("::1", server.port, timeout=60)
        connection.request("GET", f"/checkpoints/0?token={server.token}")
        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("host", ["", " "])
def test_address_that_is_empty_is_refused(made, host):
    """Catches a variable of the shell that is not set, and state shown to the whole network."""
    with serve(made.path, "--host", host, stderr=subprocess.PIPE) as server:
        assert server.address == ""
        text = server.process.stderr.read()

    assert f"cannot listen at the address: host='{host}'" in text
