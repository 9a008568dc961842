"""Which cases of a test are tests of CI; `test-all` has the others, too: they become `extended`.

A test says it by a mark, over `parametrize`. A case that is marked `extended` is of neither.

`each_once(*names)`: as few cases as have each value of these parameters, of all of them where none
is named: each operator once, and each backend and format with as many operators as the next one.
`few(count)`: so many cases, spread over all of them, where no parameter has values of its own.
`IS_LONG` says whether a test that does something at random, or at each of many moments, does it as
often as in `test-all`.
"""

import os
from collections import defaultdict

import pytest

IS_LONG = os.environ.get("HYPOTHESIS_PROFILE") == "long"


def leave_most_to_test_all(items: list[pytest.Item]) -> None:
    """Mark as extended what the marks of these tests leave out."""
    of_tests = defaultdict(list)
    for item in items:
        if _choice(item) and not item.get_closest_marker("extended"):
            of_tests[item.nodeid.partition("[")[0]].append(item)
    for cases in of_tests.values():
        choice = _choice(cases[0])
        if choice.name == "few":
            cases.sort(key=lambda item: item.nodeid)
            kept = _spread(choice.args[0], len(cases))
        else:
            cases.sort(key=lambda item: tuple(item.callspec.indices.values()))
            names = choice.args or tuple(cases[0].callspec.params)
            kept = cover([[case.callspec.params[name] for name in names] for case in cases])
        for number, case in enumerate(cases):
            if number not in kept:
                case.add_marker(pytest.mark.extended)


def _choice(item):
    return item.get_closest_marker("each_once") or item.get_closest_marker("few")


def _spread(count, of):
    return {round(n * (of - 1) / max(1, count - 1)) for n in range(count)}


def cover(cases: list[list[object]]) -> list[int]:
    """Return positions of cases that together have each value of each column.

    The next one has most values that were not there. Of several, it is the one whose other values
    were there least often, and then the first.
    """
    counts = [_Counts(column) for column in zip(*cases, strict=True)]
    kept = []
    while any(0 in column.times for column in counts):
        times = [[of.times[of.kinds[case]] for of in counts] for case in range(len(cases))]
        best = min(range(len(cases)), key=lambda case: (-times[case].count(0), sum(times[case])))
        for of in counts:
            of.times[of.kinds[best]] += 1
        kept.append(best)
    return kept


class _Counts:
    """How often each value of a column was taken; values are compared, and need no hash."""

    def __init__(self, values) -> None:
        distinct = []
        for value in values:
            if value not in distinct:
                distinct.append(value)
        self.kinds = [distinct.index(value) for value in values]
        self.times = [0] * len(distinct)
