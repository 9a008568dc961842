"""Rows by key group: what a rescaled state partition is told to have, without a row being read."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from statestore.checkpoint.commit import Body, delta_trailer
from statestore.checkpoint.key_group_rows import NUM_CLASSES, class_of, grown, rescaled
from statestore.codec.references import StoreName
from statestore.codec.trailer import RowCounts
from statestore.testing.deltas import new_version

G = 4 * 3 * 512
LAYOUTS = (1, 2, 3, 4, 6, 8, 12, 48, 256)
key_groups = st.lists(st.integers(0, G - 1), max_size=30)


def told(partition, num_partitions, rows):
    """The trailer of a state partition's version that tells of rows, or does not."""
    new = new_version(
        1, None, "0" * 32, [], 0, max_parallelism=G, num_partitions=num_partitions
    )  # fmt: skip
    store = StoreName(0, partition, "default")
    body = Body("", (), RowCounts(), "")
    return delta_trailer(store, replace(new, key_group_growth=rows), None, (), body)


def growth_of(added, removed, partition, num_partitions):
    """What a commit that adds and removes rows of these key groups says of a state partition."""
    growth = [0] * NUM_CLASSES
    for sign, groups in ((1, added), (-1, removed)):
        for group in groups:
            if group % num_partitions == partition:
                growth[class_of(group, num_partitions)] += sign
    return growth


@given(
    layouts=st.lists(st.sampled_from(LAYOUTS), min_size=1, max_size=5),
    data=st.data(),
)
def test_rows_told_are_those_there_are(layouts, data):
    """Catches rows counted for another state partition, and rows told of that nobody counted."""
    there = Counter()
    known = dict.fromkeys(range(layouts[0]), ())
    for now, then in pairwise([*layouts, 1]):
        added = data.draw(key_groups)
        removed = data.draw(st.lists(st.sampled_from(sorted({*there, *added, 0}))))
        removed = list((Counter(removed) & (there + Counter(added))).elements())
        there = there + Counter(added) - Counter(removed)
        for partition, rows in known.items():
            known[partition] = grown(rows, growth_of(added, removed, partition, now))
        trailers = [told(partition, now, rows) for partition, rows in known.items()]
        is_known = known[0] is not None
        modulus = now * len(known[0] or ())

        known = {partition: rescaled(trailers, then, partition) for partition in range(then)}

        for partition, rows in known.items():
            assert (rows is not None) == (is_known and modulus % then == 0)
            if rows is not None:
                groups = there.elements()
                assert sum(rows) == sum(group % then == partition for group in groups)
                assert 1 <= len(rows) <= NUM_CLASSES
