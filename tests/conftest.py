"""Settings shared by every lane: of every JVM, and of hypothesis, chosen by HYPOTHESIS_PROFILE."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.cases_of_ci import leave_most_to_test_all
from tests.class_archive import archive_options
from tests.s3_server import S3Server
from tests.seaweed import IS_CHOSEN, KEY, Seaweed

settings.register_profile(
    "dev", max_examples=30, stateful_step_count=30, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.register_profile(
    "long", max_examples=200, stateful_step_count=75, deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# Most JVMs of tests live for seconds: this halves the time that processors work for one. Of a small
# room for classes, a collection of the whole heap makes a larger one, again and again.
os.environ.setdefault(
    "JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
)
os.environ.setdefault("SPARK_SUBMIT_OPTS", archive_options("submit"))


def pytest_make_parametrize_id(val, argname):
    """Name long values by their length: pytest puts the name into the environment of what starts.

    Where it is longer than 128 KiB, Linux starts no process.
    """
    return f"{argname}-{len(val)}" if isinstance(val, str | bytes) and len(val) > 300 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Begin with the longest tests: so two processes end at about the same time."""
    leave_most_to_test_all(items)
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory):
    """A server of S3 over HTTP; credentials that it takes are in the environment.

    STATESTORE_S3_SERVER=seaweedfs has SeaweedFS behind it, in place of moto.
    """
    seaweed = None
    if IS_CHOSEN:
        seaweed = Seaweed(tmp_path_factory.mktemp("seaweed"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
        server = S3Server(seaweed)
        yield server
        server.stop()
    if seaweed:
        seaweed.stop()


@pytest.fixture
def bucket(s3_server):
    """A new bucket of that server."""
    return s3_server.make_bucket()
