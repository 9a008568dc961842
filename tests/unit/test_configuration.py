"""Configuring a session from Python says the same as the plain configuration lines."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

import statestore
from statestore import Checkpoint
from statestore.core.errors import IncompatibleError, InvalidArgumentError, NotFoundError
from statestore.core.options import IGNORED, PREFIX, spark_conf
from statestore.io.shim_jar import JAR_VARIABLE
from statestore.testing.sample import make_sample

SHOWN = (
    "spark.sql.streaming.ui.enabledCustomMetricList",
    "spark.metrics.conf.*.sink.prometheusServlet.class",
    "spark.metrics.conf.*.sink.prometheusServlet.path",
)


JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
IS_4_3 = pyspark.__version__ >= "4.3"


@pytest.fixture
def jar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file that is found as the jar, where no JVM runs yet."""
    monkeypatch.setattr(pyspark.SparkContext, "_jvm", None)
    path = tmp_path / "shim.jar"
    path.touch()
    monkeypatch.setenv(JAR_VARIABLE, str(path))
    return str(path.resolve())


def name_other_spark(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SPARK_HOME name a Spark of another minor than pyspark."""
    other = "4.1.4" if not pyspark.__version__.startswith("4.1.") else "4.2.1"
    (path / "jars").mkdir()
    (path / "jars" / f"spark-core_2.13-{other}.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(path))


def test_builder_has_jar_provider_and_options(jar: str) -> None:
    """Catches an option that is dropped, or written as Spark does not read it."""
    builder = SparkSession.builder

    returned = statestore.configure(
        builder,
        backend="rocksdb",
        fsync_enabled=False,
        min_versions_to_retain=7,
        **{"snapshot.maxChainLength": "8", "rocksdb.compression": "zstd"},
    )

    assert returned is builder
    shown = {key: builder._options.pop(key) for key in SHOWN}
    assert all(shown.values())
    assert builder._options.pop(JOIN_FORMAT, None) == ("4" if IS_4_3 else None)
    assert builder._options == {
        "spark.jars": jar,
        f"{PREFIX}providerClass": "io.statestore.RocksDBStateStoreProvider",
        f"{PREFIX}checkpointFormatVersion": "2",
        f"{PREFIX}fsync.enabled": "false",
        "spark.sql.streaming.minBatchesToRetain": "7",
        f"{PREFIX}snapshot.maxChainLength": "8",
        f"{PREFIX}rocksdb.compression": "zstd",
    }


def test_session_of_two_sparks_is_refused(
    jar: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a program that hangs when it makes its session."""
    del jar
    name_other_spark(tmp_path, monkeypatch)
    builder = SparkSession.Builder()

    with pytest.raises(IncompatibleError, match=r"wrong-spark.*pyspark==4\.\d\.\*'"):
        statestore.configure(builder)

    assert builder._options == {}


@pytest.mark.parametrize("dry_run", [True, False])
def test_conversion_by_two_sparks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, dry_run: bool
) -> None:
    """Catches a command that hangs when it makes its session, and a plan that says it would not."""
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda _: pytest.fail("hangs"))
    make_sample(tmp_path / "sales")
    name_other_spark(tmp_path, monkeypatch)

    with pytest.raises(IncompatibleError, match=r"wrong-spark.*pyspark==4\.\d\.\*'"):
        Checkpoint(tmp_path / "sales").convert(tmp_path / "new", "spark-hdfs", dry_run=dry_run)

    assert not (tmp_path / "new").exists()


def test_what_is_shown_where_stays_as_the_builder_says(jar: str) -> None:
    """Catches a sink of the user's that is replaced."""
    builder = SparkSession.Builder().config(map=dict.fromkeys(SHOWN, "mine"))

    statestore.configure(builder)

    assert {builder._options[key] for key in SHOWN} == {"mine"}


def test_joins_have_the_state_format_that_the_builder_says(jar: str) -> None:
    """Catches a format that is asked for and not given."""
    builder = SparkSession.Builder().config(JOIN_FORMAT, 2)

    assert statestore.configure(builder)._options[JOIN_FORMAT] == "2"


def test_session_of_real_time_queries_has_the_provider_under_our_key(jar: str) -> None:
    """Catches Spark's key, with which it refuses the mode, and a key that stands beside it."""
    provider, form = f"{PREFIX}providerClass", f"{PREFIX}checkpointFormatVersion"

    options = statestore.configure(SparkSession.Builder(), "rocksdb", real_time=True)._options

    assert options["spark.statestore.providerClass"] == "io.statestore.RocksDBStateStoreProvider"
    if IS_4_3:
        assert options["spark.sql.streaming.realTimeMode.allowlistCheck"] == "false"
    assert options[form] == "2"
    assert provider not in options
    for key, value in ((provider, "any"), (form, "1")):
        builder = SparkSession.Builder().config(key, value)
        with pytest.raises(InvalidArgumentError, match=key):
            statestore.configure(builder, real_time=True)
        assert builder._options == {key: value}


@pytest.mark.parametrize("named", ["builder", "environment"])
def test_builder_has_no_jar_when_the_server_runs_elsewhere(
    monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    """Catches a client of Spark Connect that needs a jar, or asks its server for one in vain."""
    monkeypatch.setenv(JAR_VARIABLE, "not/there.jar")
    builder = SparkSession.Builder()
    if named == "builder":
        builder.config("spark.remote", "sc://server")
    else:
        monkeypatch.setenv("SPARK_REMOTE", "sc://server")

    statestore.configure(builder, backend="rocksdb")

    assert not {"spark.jars", *SHOWN} & builder._options.keys()
    key = f"{PREFIX}providerClass"
    assert builder._options[key] == "io.statestore.RocksDBStateStoreProvider"


def test_builder_has_the_jar_when_it_starts_its_own_server(jar: str) -> None:
    """Catches a server of Spark Connect within this process that lacks the provider."""
    builder = SparkSession.Builder().config("spark.remote", "local[2]")

    assert statestore.configure(builder)._options["spark.jars"] == jar


def test_checkpoint_format_is_v2_unless_told_otherwise(jar: str) -> None:
    """Catches new checkpoints in which attempts share files, and a wish that is overruled."""
    key = f"{PREFIX}checkpointFormatVersion"

    def configured(builder: SparkSession.Builder, **arguments: int) -> object:
        return statestore.configure(builder, **arguments)._options[key]  # type: ignore[arg-type]

    assert configured(SparkSession.Builder()) == "2"
    assert configured(SparkSession.Builder(), checkpoint_format=1) == "1"
    assert configured(SparkSession.Builder().config(key, "1")) == "1"
    assert configured(SparkSession.Builder().config(key, "1"), checkpoint_format=2) == "2"
    with pytest.raises(InvalidArgumentError, match="checkpointFormatVersion"):
        configured(SparkSession.Builder(), checkpoint_format=3)


def test_every_ignored_option_of_the_page_is_an_argument(jar: str) -> None:
    """Catches a session that cannot keep the options it has for Spark's own RocksDB provider."""
    ignored = {key: 64 for key, _ in IGNORED}

    builder = statestore.configure(
        SparkSession.builder, "rocksdb", **{**ignored, "rocksdb.boundedMemoryUsage": True}
    )

    found = {key: builder._options[PREFIX + key] for key in ignored}
    assert found == dict.fromkeys(ignored, "64") | {"rocksdb.boundedMemoryUsage": "true"}


def test_jars_of_the_builder_stay_and_ours_comes_once(jar: str) -> None:
    """Catches a program that loses its own jars, or gains one at every call."""
    builder = SparkSession.builder.config("spark.jars", "mine.jar,hdfs://host/other.jar")

    for _ in range(2):
        builder = statestore.configure(builder)

    assert builder._options["spark.jars"] == f"mine.jar,hdfs://host/other.jar,{jar}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "rocks"}, r"backend='rocks', nearest='rocksdb'"),
        ({"fsync_enable": True}, r"key='fsync_enable', nearest='fsync_enabled'"),
        ({"fsync.enable": True}, r"key='fsync.enable', nearest='fsync.enabled'"),
        ({"rocksdb.writeBufferSize": 5}, r"key='rocksdb.writeBufferSize', nearest='rocksdb\."),
        ({"min_batches_to_retain": 5}, r"nearest='min_versions_to_retain'"),
        ({"min_versions_to_retain": 0}, r"key='spark.sql.streaming.minBatchesToRetain', value=0"),
        ({"snapshot_max_chain_length": 0}, r"stateStore.snapshot.maxChainLength', value=0"),
    ],
)
def test_wrong_argument_is_refused_and_the_builder_stays(
    jar: str, arguments: dict[str, object], message: str
) -> None:
    """Catches a typo that Spark would only report from the first batch, or not at all."""
    builder = SparkSession.builder

    with pytest.raises(InvalidArgumentError, match=message):
        statestore.configure(builder, **arguments)

    assert builder._options == {}


def test_missing_jar_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Catches an application that starts without the provider's class."""
    monkeypatch.setenv(JAR_VARIABLE, str(tmp_path / "missing.jar"))

    with pytest.raises(NotFoundError, match=f"To fix: correct or unset {JAR_VARIABLE}"):
        statestore.configure(SparkSession.builder)


def test_options_by_full_key_mean_the_same() -> None:
    """Catches a key that is taken in one spelling only."""
    assert spark_conf({f"{PREFIX}s3.pathStyle": "TRUE"}) == spark_conf({"s3_path_style": True})
