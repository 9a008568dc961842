"""What a benchmark that compares stores is made of: queries, input, and words for its page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pyspark.sql import DataFrame, SparkSession

from benchmarks.comparison.check import Expected


class Query(Protocol):
    """A query of a benchmark; the number in its name says where it stands in tables."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def output_mode(self) -> str:
        """As Spark calls it."""

    @property
    def needs_families(self) -> bool:
        """Whether it runs only on a store with column families."""


Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True, slots=True)
class Page:
    """Words of the page of results.

    Attributes:
        title: Its heading.
        about: What the benchmark is.
        origin: Who computes the rows that must come out, and from what.
        notes: What a reader of the figures must know.
        end: Blocks of Markdown below the figures.
    """

    title: str
    about: str
    origin: str
    notes: str
    end: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark(Generic[Q]):
    """A benchmark.

    Attributes:
        name: Of its module, its results and its files.
        rows: What a row of the input is called, in the plural.
        choice: What is chosen of it, in the plural.
        column: What is chosen, as the first column of a table.
        num_rows: Of the input, where nothing else is asked for.
        rows_per_file: Likewise; a file is a batch.
        queries: Names of those that run where nothing else is asked for.
        find_query: The query of a name; raises `LookupError`.
        input_files: Makes so many rows in so many files, or returns those there are.
        stream: The results of a query over the files of a directory, one a batch.
        expect: What a query over these files, with so many rows, must have left.
        page: Words of its page.
    """

    name: str
    rows: str
    choice: str
    column: str
    num_rows: int
    rows_per_file: int
    queries: tuple[str, ...]
    find_query: Callable[[str], Q]
    input_files: Callable[[int, int], list[Path]]
    stream: Callable[[SparkSession, Q, Path], DataFrame]
    expect: Callable[[SparkSession, Q, Sequence[Path], int], Expected]
    page: Page
