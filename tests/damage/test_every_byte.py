"""No damaged byte of a state file goes unnoticed, wherever it is."""

import pytest

from statestore.codec.state_file import StateFile
from statestore.core.errors import CorruptionError, IncompatibleError
from tests.state_files import write_sealed


@pytest.fixture(params=["none", "zstd"])
def sealed(request, tmp_path):
    """A whole state file of several blocks."""
    path = tmp_path / "7.delta.arrows"
    write_sealed(path, request.param)
    return path


def test_every_flipped_bit_is_detected(sealed):
    """Catches a byte that no checksum covers: a wrong row would be believed."""
    original = sealed.read_bytes()
    for position in range(len(original)):
        damaged = bytearray(original)
        damaged[position] ^= 1 << (position % 8)
        sealed.write_bytes(damaged)

        with pytest.raises((CorruptionError, IncompatibleError)) as caught:
            StateFile(str(sealed)).verify()

        assert str(sealed) in str(caught.value)


def test_every_truncation_is_detected(sealed):
    """Catches half a file taken for a whole one."""
    original = sealed.read_bytes()
    for size in range(0, len(original), 7):
        sealed.write_bytes(original[:size])

        with pytest.raises((CorruptionError, IncompatibleError)):
            StateFile(str(sealed)).verify()
