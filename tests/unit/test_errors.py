"""Errors: the tree, the text, and the form in which they cross to the shim."""

import pickle

import pytest

from statestore.core import errors
from statestore.core.errors import CorruptionError, InvalidArgumentError, StateStoreError


def test_tree_is_the_one_the_shim_maps():
    """Catches a class that ShimErrors would not know; of a supervised query it never hears."""
    classes = {cls.__name__ for cls in StateStoreError.__subclasses__()}
    assert classes - {"QueryFailedError"} == {
        "InvalidArgumentError",
        "NotFoundError",
        "IncompatibleError",
        "FencedError",
        "InUseError",
        "StoreClosedError",
        "CorruptionError",
        "StorageError",
        "ProtocolError",
        "InternalError",
    }
    assert issubclass(InvalidArgumentError, ValueError)
    assert issubclass(errors.NotFoundError, LookupError)


def test_text_says_what_failed_with_which_values_and_what_to_do():
    """Catches a message that leaves the reader without the next step."""
    error = CorruptionError("a block is damaged", file="/x", offset=8, to_fix="restore it")

    assert str(error) == (
        "[corruption] a block is damaged: file='/x', offset=8. To fix: restore it"
    )
    assert error.to_json()["fields"] == {"file": "/x", "offset": 8}


def test_error_survives_pickling():
    """Catches an error that would come out of a process pool as another one."""
    error = CorruptionError("x", kind="truncated", file="/x", to_fix="y")

    copy = pickle.loads(pickle.dumps(error))  # noqa: S301

    assert (type(copy), str(copy)) == (CorruptionError, str(error))


def test_unknown_kind_is_a_bug():
    """Catches a kind that docs and shim do not list."""
    with pytest.raises(AssertionError):
        StateStoreError("x", kind="no-such-kind", to_fix="y")
