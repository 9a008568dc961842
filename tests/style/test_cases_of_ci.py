"""Which cases of a test are tests of CI."""

from hypothesis import given
from hypothesis import strategies as st

from tests.cases_of_ci import cover

OPERATORS = ["aggregation", "join", "session", "limit"]


def test_each_operator_comes_once_and_backends_and_formats_take_turns():
    """Catches a choice that leaves one out, or gives all operators to the first backend."""
    cases = [[one, backend, form] for backend in "fhr" for form in "12" for one in OPERATORS]

    kept = [cases[number] for number in cover(cases)]

    assert [one for one, _, _ in kept] == OPERATORS
    assert [backend for _, backend, _ in kept] == ["f", "h", "r", "f"]
    assert [form for _, _, form in kept] == ["1", "2", "1", "2"]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=40))
def test_every_value_is_in_a_case_and_no_case_is_for_nothing(cases):
    """Catches a value that no test of CI has, and one more case than there are values."""
    kept = [cases[number] for number in cover(cases)]

    for column in range(3):
        assert {case[column] for case in kept} == {case[column] for case in cases}
    for number, case in enumerate(kept):
        before = kept[:number]
        assert any(case[column] not in {one[column] for one in before} for column in range(3))
