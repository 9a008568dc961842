"""Checkpoints and savepoints with IDs, at times and beside others, as a test chooses."""

from statestore import Checkpoint
from statestore.io.place import Place


def place_of(path, *, options=None, io=None, ids=None, clock=None, memory=None):
    """Return a place; what is left out is as users have it."""
    given = {"options": options, "io": io, "ids": ids, "clock": clock, "memory": memory}
    return Place(str(path), **{name: value for name, value in given.items() if value is not None})


def at(path, *, kind=Checkpoint, **seams):
    """Return the checkpoint at a place, or the savepoint where that is the kind."""
    return kind._at(place_of(path, **seams))


class Meanwhile:
    """A report of progress that does something else at its first call."""

    def __init__(self, act):
        self.act = act

    def __call__(self, _done, _total):
        act, self.act = self.act, lambda: None
        act()
