"""Sparks whose real-time mode has no stateful operators, in a session that is made for the mode."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import EXTENDED, PROVIDER
from .helper_jar import compile_test_jar
from .job_process import Job
from .test_real_time import KEYS, totals

pytestmark = [
    pytest.mark.ours,
    pytest.mark.needs("real-time-trigger"),
    pytest.mark.lacks("real-time"),
]


@EXTENDED
@pytest.mark.each_spark
@pytest.mark.timeout(400)
def test_queries_without_state_run_in_real_time_and_others_in_micro_batches(
    start_job: Callable[..., Job],
) -> None:
    """Catches a session that is good for one of both only, and a query on another provider."""
    job = start_job(
        "older",
        module="tests.spark.real_time_job",
        more_jars=[compile_test_jar("realtime")],
        provider=PROVIDER,
    )

    report = job.report(350)

    assert report["plain"] == {f"{i % KEYS},{i}": 1 for i in range(len(report["plain"]))}
    assert len(report["plain"]) == report["rows"] // 2
    assert report["provider"] == PROVIDER
    assert report["counted"] == totals(report["rows"])
    assert "OPERATOR_OR_SINK_NOT_IN_ALLOWLIST" in report["refused"]
