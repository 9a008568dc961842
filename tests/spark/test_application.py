"""The application that tests share goes on after a test that ran out of time."""

from __future__ import annotations

import signal
import threading
from types import FrameType

import pytest
from pyspark.sql import SparkSession

from .application import abandon_calls


def _end(number: int, frame: FrameType | None) -> None:
    pytest.fail("as a test that is out of time")


def test_answer_of_an_interrupted_call_is_not_that_of_the_next(spark: SparkSession) -> None:
    """Catches a test whose timeout makes every test after it fail."""
    jvm = spark._jvm
    assert jvm is not None
    before = signal.signal(signal.SIGUSR1, _end)
    main = threading.get_ident()
    timer = threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGUSR1))
    try:
        timer.start()
        with pytest.raises(pytest.fail.Exception) as held:
            jvm.java.lang.Thread.sleep(1500)
    finally:
        timer.join()
        signal.signal(signal.SIGUSR1, before)

    abandon_calls()

    assert jvm.java.lang.Long.parseLong("7") == 7
    assert held.tb, "as pytest keeps it, and the connection with it"
