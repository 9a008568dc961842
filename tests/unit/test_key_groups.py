"""Key groups: the arithmetic that routing and rescaling stand on."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statestore.core.errors import InvalidArgumentError
from statestore.core.key_groups import (
    default_max_parallelism,
    rank,
    rank_table,
    resolve_max_parallelism,
)


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
