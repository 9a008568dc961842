"""Facts of pages with many state partitions, made of those of a small checkpoint; pictures of all.

`.venv/bin/python -m tests.ui.screens DIRECTORY` writes every screen that is tested as a picture,
and `--documents` those of docs/images.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from statestore import Checkpoint
from statestore.operations.upkeep.query_info import InputRates
from statestore.report.facts import Spread
from statestore.report.page import IndexRow, render, render_index
from statestore.testing.checkpoints import MadeCheckpoint
from statestore.testing.sample import make_sample
from tests.browser import open_browser
from tests.damaged import flip
from tests.ui.served import serve

if TYPE_CHECKING:
    from collections.abc import Callable

    from statestore.report.facts import Facts

ROOT = Path(__file__).resolve().parents[2]
SPARK = ROOT / "tests" / "golden" / "spark" / "rocksdb-no-changelog"


def with_partitions(facts: Facts, num_partitions: int) -> Facts:
    """Return facts as those of so many state partitions, whose sizes differ."""
    random = Random(num_partitions)
    stores = []
    for store in facts.stores:
        partitions, groups = [], []
        for number in range(num_partitions):
            of = store.partitions[number % len(store.partitions)]
            size = int(random.lognormvariate(9, 0.4))
            factor = random.uniform(0.5, 2)
            times = {
                name: (getattr(of, name) or 1) * factor
                for name in ("write_ms", "checksum_ms", "publish_ms", "sync_ms", "commit_ms")
            }
            partitions.append(
                replace(of, partition=number, num_rows=size, full_bytes=90 * size, **times)
            )
            groups.append(tuple(random.randint(0, size // 8) for _ in range(16)))
        spreads = {
            name: spread
            for name in store.spreads
            if (spread := Spread.of(getattr(of, name) for of in partitions)) is not None
        }
        stores.append(
            replace(
                store,
                num_partitions=num_partitions,
                partitions=tuple(partitions),
                spreads=spreads,
                key_groups=tuple(groups),
                num_rows=sum(of.num_rows or 0 for of in partitions),
                full_bytes=sum(of.full_bytes for of in partitions),
            )
        )
    return replace(facts, num_partitions=num_partitions, stores=tuple(stores))


def facts_of_sample(directory: Path) -> Facts:
    """Return the facts of a small checkpoint."""
    return Checkpoint(_sample(directory)).report()


def _sample(directory: Path) -> Path:
    """Return the small checkpoint, made once."""
    path = directory / "sales"
    if not path.exists():
        make_sample(path)
    return path


def facts_without_data(directory: Path) -> Facts:
    """Return those of a query that has committed one batch, without a row."""
    made = MadeCheckpoint(str(directory / "empty"), directory / "scratch-empty")
    made.run_batch({})
    return Checkpoint(made.path).report()


def facts_of_damage(directory: Path) -> Facts:
    """Return those of a checkpoint with a flipped bit in its newest version."""
    shutil.copytree(_sample(directory), directory / "damaged")
    newest = max((directory / "damaged" / "state").rglob("20_*.delta*"))
    flip(newest, offset=-30)
    return Checkpoint(directory / "damaged").report(deep=True)


def facts_of_spark(directory: Path) -> Facts:
    """Return those of a checkpoint of Spark's own provider."""
    del directory
    return Checkpoint(SPARK / "checkpoint").report()


SCREENS: dict[str, Callable[[Path], Facts]] = {
    "small": facts_of_sample,
    "200": lambda directory: with_partitions(facts_of_sample(directory), 200),
    "2000": lambda directory: with_partitions(facts_of_sample(directory), 2000),
    "without-data": facts_without_data,
    "damaged": facts_of_damage,
    "spark": facts_of_spark,
}
SHAPES = {
    "wide": {"width": 1200, "height": 900, "dark": False},
    "narrow": {"width": 390, "height": 800, "dark": False},
    "dark": {"width": 1000, "height": 900, "dark": True},
}


def write_screen(name: str, directory: Path) -> str:
    """Write the page of a screen into a directory; return its address."""
    page = directory / f"{name}.html"
    page.write_text(render(SCREENS[name](directory)), encoding="utf-8")
    return page.as_uri()


def write_documents(to: Path) -> None:
    """Write the pictures of docs/images."""
    with tempfile.TemporaryDirectory() as scratch, open_browser(Path(scratch)) as browser:
        facts = facts_of_sample(Path(scratch))
        running = replace(
            facts.query,
            uri="/data/sales",
            name="sales by shop",
            is_running=True,
            uncommitted_batch=20,
            planned_ms=facts.query.looked_ms - 1_300,
            committed_ms=facts.query.looked_ms - 2_100,
            batch_ms=1_840,
            watermark_ms=facts.query.looked_ms - 64_200,
            lag_ms=64_200,
            rates=InputRates(19, 2_412, 1_206.4, 1_310.8, "progress"),
        )
        page = Path(scratch, "page.html")
        facts = replace(facts, uri="/data/sales", query=running)
        page.write_text(render(facts), encoding="utf-8")
        browser.open(page.as_uri(), width=1100)
        browser.picture(to / "page.png", height=1300)

        rows = []
        for number, (name, lag_ms, rate) in enumerate(
            [("clicks", 1_200, 8_402.0), ("orders", 64_200, 1_206.0), ("payments", 912_000, 37.5)]
        ):
            rates = InputRates(7, 100, rate, 1.4 * rate, "progress")
            query = replace(
                running, uri=f"/data/{name}", name=f"{name} by shop", lag_ms=lag_ms,
                newest_version=1_000 - 7 * number, rates=rates,
            )  # fmt: skip
            rows.append(IndexRow(query.uri, f"{number}.html", query, facts, None))
        stopped = replace(rows[0].query or running, is_running=False, name=None, rates=None)
        stopped = replace(stopped, uri="/data/returns", uncommitted_batch=None, lag_ms=None)
        rows.append(IndexRow(stopped.uri, "3.html", stopped, None, None))
        page.write_text(render_index(rows), encoding="utf-8")
        browser.open(page.as_uri(), width=1100)
        browser.picture(to / "index.png", height=390)

        with serve(Path(scratch, "sales"), "--allow-changes") as server:
            browser.open(server.address, width=1100)
            browser.run(
                "document.querySelectorAll('#tools details').forEach((of) => { of.open = true; });"
                "const [sql, key, plan] = document.querySelectorAll('form[data-ask]');"
                "sql.elements.sql.value = 'SELECT key.shop, count(*) AS products, sum(value.count)"
                " AS sold\\nFROM state GROUP BY 1 ORDER BY 3 DESC LIMIT 3'; sql.requestSubmit();"
            )
            answers = "[...document.querySelectorAll('.answer')].filter((of) => of.innerText.length"
            browser.wait(f"{answers} > 1).length === 1", 60)
            browser.run(
                "plan.elements.operation.value = 'rescale';"
                "plan.elements.operation.dispatchEvent(new Event('change'));"
                "plan.elements.num_partitions.value = '8'; plan.requestSubmit();"
            )
            browser.wait(f"{answers} > 1).length === 2", 60)
            browser.run('key.elements.key.value = \'["Lyon", "product-003"]\'; key.requestSubmit()')
            browser.wait(f"{answers} > 1).length === 3", 60)
            browser.run(
                f"document.querySelectorAll('pre').forEach((of) => {{ of.textContent ="
                f" of.textContent.replaceAll('{scratch}', '/data'); }})"
            )
            browser.picture(to / "tools.png", of="#tools")


def main() -> None:
    """Write pictures of all screens, or those of the documents."""
    if "--documents" in sys.argv:
        write_documents(ROOT / "docs" / "images")
        return
    to = Path(sys.argv[1])
    to.mkdir(parents=True, exist_ok=True)
    for name in SCREENS:
        with tempfile.TemporaryDirectory() as directory, open_browser(Path(directory)) as browser:
            address = write_screen(name, Path(directory))
            for shape, of in SHAPES.items():
                browser.open(address, **of)
                browser.picture(to / f"{name}-{shape}.png")


if __name__ == "__main__":
    main()
