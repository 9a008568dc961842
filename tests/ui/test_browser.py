"""Pages in a real browser: what is drawn, what stays while they renew, what is clicked."""

import json
import time
from pathlib import Path

import pytest

from statestore import Checkpoint
from statestore.testing.checkpoints import MadeCheckpoint
from tests.browser import BROWSER, open_browser
from tests.checkpoints import write_checkpoint
from tests.ui.screens import SCREENS, SHAPES, write_screen
from tests.ui.served import serve

pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
    pytest.mark.timeout(180),
]


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    """A browser."""
    with open_browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(tab):
    """The browser, which must have nothing to complain of."""
    tab.complaints.clear()
    yield tab
    # A page asks on, after its server has ended.
    assert [of for of in tab.complaints if "ERR_CONNECTION_REFUSED" not in of] == []
    tab.call("Page.navigate", url="about:blank")


@pytest.fixture(scope="session")  # the tests of a file are not dealt out in one piece
def screens(tmp_path_factory):
    """Addresses of the screens by name."""
    directory = tmp_path_factory.mktemp("screens")
    return {name: write_screen(name, directory) for name in SCREENS}


OVERLAPS = """
[...document.querySelectorAll(".chart svg")].flatMap((svg) => {
  const boxes = [...svg.querySelectorAll("text")]
    .map((of) => [of.textContent, of.getBoundingClientRect()]);
  return boxes.flatMap(([one, a], at) => boxes.slice(at + 1)
    .filter(([, b]) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
      && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3)
    .map(([other]) => `${one} on ${other}`));
})
"""
UNDRAWN = """
[...document.querySelectorAll("[data-chart]")].filter((chart) => {
  if (!(Number(chart.dataset.points) > 0)) return true;
  const layers = [...chart.querySelectorAll("canvas")];
  if (!layers.length) return !chart.querySelector("svg path");
  // Of a large chart both ends: one that is drawn in part has only one of them.
  return layers.every((canvas) => [0.1, 0.5, 0.8].some((at) => {
    const { width, height } = canvas;
    const of = canvas.getContext("2d");
    const line = of.getImageData(width * 0.2, height * at, width * 0.5, 1).data;
    const colors = new Set();
    for (let i = 0; i < line.length; i += 4) colors.add(`${line[i]},${line[i + 1]},${line[i + 2]}`);
    return colors.size < 3;
  }));
}).map((chart) => chart.dataset.chart)
"""


@pytest.mark.each_once
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", SCREENS)
def test_every_screen_is_whole(browser, screens, name, shape):
    """Catches a chart that is drawn in part, labels on each other, and what is too wide."""
    browser.open(screens[name], **SHAPES[shape])
    browser.wait(f"({UNDRAWN}).length === 0")
    assert browser.run(OVERLAPS) == []
    assert browser.run("document.documentElement.scrollWidth") <= SHAPES[shape]["width"]
    empty = browser.run(
        "[...document.querySelectorAll('figure')].filter((of) => of.innerText.trim().length < 20"
        " && !of.querySelector('[data-chart]')).length"
    )
    assert empty == 0, "a figure without a chart that does not say why"
    ground = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (ground != "rgb(255, 255, 255)") == SHAPES[shape]["dark"]


def test_a_page_renews_itself_under_whoever_reads_it(browser, tmp_path):
    """Catches a page that jumps, or loses what was selected, opened or typed."""
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    for batch in range(30):
        made.run_batch(dict.fromkeys(range(batch, batch + 5), batch))
    with serve(made.path) as server:
        browser.open(server.address, height=600)
        browser.run(
            "document.querySelectorAll('details').forEach((of) => { of.open = true; });"
            "document.querySelector('[name=sql]').value = 'SELECT 7 AS seven';"
            "getSelection().selectAllChildren(document.querySelector('h1'));"
            "window.table = document.querySelector('.spreads').parentElement;"
            "window.chart = document.querySelector('[data-chart=rows] svg');"
            "document.getElementById('versions').scrollIntoView();"
            "window.at = scrollY"
        )
        made.run_batch({1: 100, 900: 1})
        browser.wait("document.querySelector('#versions td').innerText === '31'")
        assert browser.run("document.querySelector('.tiles[data-part] b').innerText") == "31"
        assert browser.run("scrollY") == pytest.approx(browser.run("at"), abs=2)
        assert browser.run("getSelection().toString().trim()") == made.path
        assert browser.run("document.querySelector('[name=sql]').value") == "SELECT 7 AS seven"
        assert browser.run("[...document.querySelectorAll('details')].every((of) => of.open)")
        assert browser.run("table.isConnected")
        assert browser.run("chart.isConnected"), "the chart was drawn anew"
        told = browser.run("document.querySelector('[data-live=committed]').innerText")
        browser.wait(
            f"document.querySelector('[data-live=committed]').innerText !== {json.dumps(told)}"
        )
        # What is selected stays until it is let go of.
        browser.run("getSelection().selectAllChildren(document.querySelector('#versions tbody'))")
        made.run_batch({1: 101})
        browser.wait("document.querySelector('.tiles[data-part] b').innerText === '32'")
        assert browser.run("document.querySelector('#versions td').innerText") == "31"
        browser.run("getSelection().removeAllRanges()")
        browser.wait("document.querySelector('#versions td').innerText === '32'")


STILL = "(document.querySelector('#still:not([hidden])')?.innerText ?? '')"


def test_a_page_that_is_refused_says_that_it_stands_still(browser, tmp_path):
    """Catches state of yesterday that looks as if it were of now."""
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    made.run_batch({1: 1})
    with serve(made.path) as server:
        browser.open(server.address)
        assert browser.run(STILL) == ""
        Path(made.path).rename(tmp_path / "away")
        browser.wait(f"{STILL}.startsWith('This page stands still: [checkpoint-not-found]')")
        (tmp_path / "away").rename(made.path)
        browser.wait(f"{STILL} === ''")
    browser.wait(f"{STILL}.includes('the server does not answer')")
    with serve(made.path, "--port", server.port):
        browser.wait(f"{STILL}.endsWith('token.')")
    browser.complaints[:] = [of for of in browser.complaints if "Failed to load resource" not in of]


def test_a_page_comes_by_itself_when_the_query_begins(browser, tmp_path):
    """Catches a page that has to be opened again, and that leads nowhere until then."""
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    made.run_batch({1: 1})
    (tmp_path / "later").mkdir()
    with serve(made.path, tmp_path / "later") as server:
        browser.open(server.address.replace("/?", "/checkpoints/1?"))
        assert browser.run("document.querySelector('h1').innerText") == str(tmp_path / "later")
        assert "there is no checkpoint of a streaming query" in browser.run(STILL)
        assert browser.run("document.querySelector('a').innerText") == "all checkpoints"
        Path(made.path).rename(tmp_path / "moved")
        (tmp_path / "later").rmdir()
        (tmp_path / "moved").rename(tmp_path / "later")
        browser.wait("document.getElementById('operators') !== null")
    browser.complaints[:] = [of for of in browser.complaints if "status of 409" not in of]


def test_what_few_files_tell_goes_on_while_all_is_looked_at(browser, tmp_path):
    """Catches a running query that seems to stand for as long as its state is read."""
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    made.run_batch({1: 1})
    with serve(made.path) as server:
        browser.open(server.address)
        browser.run(
            "window.parts = 0; const real = fetch; window.fetch = (at, how) => at.endsWith('/part')"
            " ? new Promise(() => { parts += 1; }) : real(at, how)"
        )
        made.run_batch({2: 2})
        browser.wait("parts === 1")
        for _ in range(3):
            told = browser.run("document.querySelector('[data-live=committed]').innerText")
            browser.wait(
                f"document.querySelector('[data-live=committed]').innerText !== {json.dumps(told)}"
            )
        assert browser.run("parts") == 1


def test_focus_on_what_is_no_field_holds_nothing_up(browser, tmp_path):
    """Catches a page that stands still after a click, and a focus that is lost as it renews."""
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    made.run_batch({1: 1})
    MadeCheckpoint(str(tmp_path / "other"), tmp_path / "scratch of it").run_batch({1: 1})
    focused = "document.activeElement.innerText"
    with serve(made.path, tmp_path / "other") as server:
        browser.open(server.address)
        browser.run("document.querySelector('#index a').focus()")
        made.run_batch({2: 2})
        browser.wait("document.querySelector('#index tbody tr').cells[2].innerText === '2'")
        assert browser.run(focused) == made.path
        browser.open(server.address.replace("/?", "/checkpoints/0?"))
        browser.run("document.querySelector('.of-store summary').focus()")
        Checkpoint(made.path).rescale(8)
        browser.wait("document.getElementById('operations') !== null")
        assert browser.run(focused) == "Each state partition"


def test_what_is_asked_is_answered_as_text(browser, tmp_path):
    """Catches rows, errors and keys that become markup."""
    word = "<img src=x onerror=window.hit=1><b>"
    rows = {(word, 1): (1, "<script>window.hit=1</script>")}
    root = tmp_path / "query"
    write_checkpoint(root, [{"default": rows}, {"default": {(word, 1): (2, "</td>")}}])
    with serve(root) as server:
        browser.open(server.address)
        browser.run("document.querySelectorAll('details').forEach((of) => { of.open = true; })")
        browser.wait("document.getElementById('tables').innerText.includes('default')")

        def ask(form, **fields):
            browser.run(
                f"(() => {{ const form = document.querySelector('form[data-ask={form}]');"
                f"Object.entries({json.dumps(fields)}).forEach(([name, value]) => {{"
                "form.elements[name].value = value; });"
                "form.parentElement.querySelector('.answer').replaceChildren();"
                "form.requestSubmit(); })()"
            )
            at = f"document.querySelector('form[data-ask={form}]').parentElement"
            browser.wait(f"{at}.querySelector('.answer').innerText.trim().length > 1", 60)
            return browser.run(f"{at}.querySelector('.answer').innerText")

        found = ask("sql", sql='SELECT key.word, value.note FROM "default"')
        assert word in found
        assert "</td>" in found
        assert word in ask("sql", sql=f"SELECT {word}")
        found = ask("key", rows="default", key=json.dumps([word, 1]))
        assert "window.hit=1</script>" in found
        assert "</td>" in found
        assert browser.run("window.hit") is None
        assert browser.run("document.querySelectorAll('.answer img, .answer script').length") == 0
        browser.complaints[:] = [of for of in browser.complaints if "status of 400" not in of]


def test_a_plan_is_shown_then_done_by_a_button_after_a_confirmation(browser, tmp_path):
    """Catches a button that does nothing, or that does without having asked."""
    made = MadeCheckpoint(str(tmp_path / "query"), tmp_path / "scratch")
    made.run_batch({1: 1})
    plan = (
        "(() => { const form = document.querySelector('form[data-ask=plan]');"
        "document.getElementById('change').open = true;"
        "form.elements.operation.value = 'rescale';"
        "form.elements.operation.dispatchEvent(new Event('change'));"
        "form.elements.num_partitions.value = '8'; form.requestSubmit(); })()"
    )
    shown = "document.querySelector('#change .answer').innerText"
    with serve(made.path) as server:
        browser.open(server.address)
        browser.run(plan)
        browser.wait(f"{shown}.includes('--num-partitions 8 --yes')")
        assert browser.run("document.querySelector('button.change')") is None
        assert (
            browser.run("document.querySelector('[name=destination]').checkVisibility()") is False
        )
    with serve(made.path, "--allow-changes") as server:
        browser.open(server.address)
        browser.run(plan)
        browser.wait("document.querySelector('button.change') !== null")
        assert Checkpoint(made.path).info.num_partitions == 4
        asked = "window.asked = []; window.confirm = (text) => { asked.push(text); return %s; };"
        click = "document.querySelector('button.change').click(); asked.length"
        assert browser.run(asked % "false" + click) == 1
        assert Checkpoint(made.path).history() is not None
        assert Checkpoint(made.path).info.num_partitions == 4
        browser.run(asked % "true" + click)
        browser.wait(f"{shown}.includes('Done.')", 60)
        assert made.path in browser.run("asked[0]")
        assert Checkpoint(made.path).info.num_partitions == 8
        browser.wait("document.querySelector('#operations') !== null")


def test_the_index_sorts_and_filters(browser, tmp_path):
    """Catches a sort of numbers as text, and an order that the next look undoes."""
    paths = []
    for number in (2, 11, 3):
        made = MadeCheckpoint(str(tmp_path / f"query-{number}"), tmp_path / f"scratch-{number}")
        for batch in range(number):
            made.run_batch({1: batch})
        paths.append(made.path)
    Path(tmp_path, "none").mkdir()
    with serve(*paths, tmp_path / "none") as server:
        browser.open(server.address)
        column = (
            "[...document.querySelectorAll('#index tbody tr')].filter((of) => !of.hidden)"
            ".map((of) => of.cells[2]?.innerText ?? '-').join()"
        )
        browser.run("document.querySelectorAll('#index th button')[2].click()")
        assert browser.run(column) == "2,3,11,-"
        browser.run("document.querySelectorAll('#index th button')[2].click()")
        assert browser.run(column) == "11,3,2,-"
        browser.run(
            "window.first = document.querySelector('#index tbody tr');"
            "document.getElementById('filter').value = 'QUERY-1';"
            "document.getElementById('filter').dispatchEvent(new Event('input'))"
        )
        assert browser.run(column) == "11"
        assert browser.run("document.getElementById('shown').innerText") == "1 of 4"
        browser.wait("!first.isConnected")
        assert browser.run(column) == "11"
        time.sleep(0.1)
        browser.run("document.querySelector('#index tbody tr:not([hidden]) a').click()")
        browser.wait("document.querySelector('h1')?.innerText.endsWith('query-11')")
