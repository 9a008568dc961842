"""The tests of machines: how many random histories each has, and that they are of something."""

from hypothesis import settings

FEWEST = 4
"""The first history is the simplest that there is: one rule, again and again."""


def case_of(machine, *, divisor, steps):
    """Return the test of a machine, with a part of the profile's examples.

    `num_lived` of the machine is how many of its histories have committed a version.
    """

    class Histories(machine.TestCase):
        def runTest(self):
            machine.num_lived = 0
            super().runTest()
            assert machine.num_lived > 1, "no history but the simplest has committed"

    Histories.settings = settings(
        max_examples=max(settings.default.max_examples // divisor, FEWEST),
        stateful_step_count=steps,
        deadline=None,
    )
    return Histories
