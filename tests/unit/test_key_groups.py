"""Key groups: the arithmetic that routing and rescaling stand on."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.codec.column_family import ColumnFamily
from statestore.codec.partition_key import grouped_otherwise
from statestore.core.errors import InvalidArgumentError
from statestore.core.key_groups import (
    KeyGroupSet,
    default_max_parallelism,
    join_sets,
    rank_table,
    resolve_max_parallelism,
)
from tests.models import rank
from tests.operations.given import array, struct


@pytest.mark.parametrize(
    ("num_partitions", "expected"),
    [(1, 32768), (3, 24576), (4, 32768), (200, 25600), (16385, 16385), (32768, 32768)],
)
def test_default_is_the_largest_doubling_up_to_32768(num_partitions, expected):
    """Catches a G that Spark's routing does not divide."""
    assert default_max_parallelism(num_partitions) == expected


@pytest.mark.parametrize("num_partitions", [0, -1, 32769])
def test_number_of_partitions_out_of_range_is_refused(num_partitions):
    """Catches a division by zero or a key group that does not fit uint16."""
    with pytest.raises(InvalidArgumentError, match="To fix"):
        default_max_parallelism(num_partitions)


def test_option_that_is_no_multiple_of_the_partitions_is_refused():
    """Catches key groups that would not follow Spark's routing."""
    assert resolve_max_parallelism(0, 4) == 32768
    assert resolve_max_parallelism(12, 4) == 12

    with pytest.raises(InvalidArgumentError, match="max_parallelism=10, num_partitions=4"):
        resolve_max_parallelism(10, 4)


@given(st.integers(1, 4096))
def test_rank_is_a_bijection_and_table_agrees(max_parallelism):
    """Catches two key groups in one place, which would mix up sorted files."""
    table = rank_table(max_parallelism)

    assert sorted(table.tolist()) == list(range(max_parallelism))
    assert table.tolist() == [rank(group, max_parallelism) for group in range(max_parallelism)]


@given(st.integers(0, 5), st.integers(0, 5), st.sampled_from([1, 3, 5]))
def test_key_groups_of_a_future_partition_lie_together(doublings, more_doublings, odd):
    """Catches a rank under which a split would have to read scattered slices."""
    num_partitions = odd * 2**doublings
    max_parallelism = num_partitions * 2**more_doublings
    table = rank_table(max_parallelism)

    for num_bits in range(doublings + more_doublings + 1):
        after_split = 2**num_bits
        for partition in range(after_split):
            ranks = np.sort(table[np.arange(max_parallelism) % after_split == partition])

            assert ranks[-1] - ranks[0] + 1 == len(ranks)


SETS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]).flatmap(
    lambda modulus: st.builds(KeyGroupSet, st.just(modulus), st.integers(0, modulus - 1))
)


def groups_in(*sets):
    """Key groups of 24 that are in any of some sets."""
    return [group for group in range(24) if any(group in of for of in sets)]


@given(SETS, SETS)
def test_intersection_of_key_group_sets_is_a_set(first, second):
    """Catches a clip that lets rows of others by, or none of one's own."""
    both = first & second

    expected = [group for group in range(24) if group in first and group in second]
    assert groups_in(*([] if both is None else [both])) == expected


@given(st.lists(SETS, min_size=1, max_size=4))
def test_joined_sets_are_what_they_were_apart(sets):
    """Catches a file taken over with more, or less, than the chains that named it."""
    disjoint = [of for n, of in enumerate(sets) if all((of & other) is None for other in sets[:n])]

    assert groups_in(*join_sets(disjoint)) == groups_in(*disjoint)


def test_halves_are_joined():
    """Catches a file read twice after a split and a merge."""
    assert join_sets([KeyGroupSet(8, 5), KeyGroupSet(8, 1)]) == (KeyGroupSet(4, 1),)


MADE_OF_TWO = [("a", "integer"), ("b", "string")]


@pytest.mark.parametrize(
    ("key", "columns", "is_alike"),
    [
        ([("value", "long")], [("n", "long")], True),
        ([("value", "long")], [("n", "integer")], False),
        ([("value", "decimal(38,18)")], [("n", "decimal(10,2)")], False),
        (MADE_OF_TWO, [("A", "integer"), ("B", "string")], True),
        (MADE_OF_TWO, [("_1", "integer"), ("_2", "string")], True),
        (MADE_OF_TWO, [("b", "string"), ("a", "integer")], False),
        (MADE_OF_TWO, [*MADE_OF_TWO, ("c", "string")], False),
        ([("a", "long"), ("b", "long")], [("b", "long"), ("a", "long")], False),
        ([("_1", "long"), ("_2", "long")], [("b", "long"), ("a", "long")], True),
        ([("k", struct(x="long", y="long"))], [("k", struct(y="long", x="long"))], False),
        ([("k", struct(x="long", y="long"))], [("k", struct(x="long", y="long"))], True),
        ([("k", array("long"))], [("k", array("integer"))], False),
    ],
)
def test_key_hashes_as_the_columns_that_spark_groups_by_or_not(key, columns, is_alike):
    """Catches state dealt out where Spark does not look, and state kept that could be."""

    def schema(*fields, nullable=True):
        described = [
            {"name": name, "type": kind, "nullable": nullable, "metadata": {}}
            for name, kind in fields
        ]
        return {"type": "struct", "fields": described}

    grouping, text = schema(*key, nullable=False), json.dumps
    families = [
        ColumnFamily(0, "default", text(schema(*columns))),
        ColumnFamily(0, "count", text(grouping)),
        ColumnFamily(0, "totals", text(schema(("key", grouping), ("userKey", grouping))), None,
                     "prefix", 1),
        ColumnFamily(0, "$ttl_count", text(schema(("expirationMs", "long"), ("key", grouping))),
                     None, "range"),
    ]  # fmt: skip

    for family in families[1:]:
        found = grouped_otherwise("default", [families[0], family])
        assert (found is None) == is_alike, family.name
    assert grouped_otherwise("default", families[1:]) is None  # as PySpark writes them
