"""Options: one class, and what a user is told about a wrong key."""

import json

import pytest

from statestore.core.errors import InvalidArgumentError
from statestore.core.options import IGNORED, PREFIX, TABLE, StateStoreOptions
from tools.option_table import reference, table_json


def test_unknown_key_is_refused_with_the_nearest_name():
    """Catches a typo that would silently leave the default in force."""
    with pytest.raises(InvalidArgumentError, match=r"nearest='\S+\.fsync\.enabled'") as caught:
        StateStoreOptions.from_spark_conf({PREFIX + "fsync.enable": "true"})

    assert caught.value.kind == "unknown-option"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("maxParallelism", "32769"),
        ("maxParallelism", "many"),
        ("file.compression", "lz4"),
        ("fsync.enabled", "yes"),
        ("snapshot.replayRatio", "0"),
        ("snapshot.replayRatio", "nan"),
        ("overlay.maxBytes", "-2"),
        ("orphan.ageMs", "-1"),
        ("engine.callTimeoutMs", "9223372036854775807"),
        ("s3.timeoutMs", "2147483648"),
        ("engine.otlpEndpoint", "collector:4318"),
        ("engine.otlpEndpoint", "http://"),
        ("engine.otlpEndpoint", "grpc://collector:4317"),
        ("s3.endpoint", "s3://bucket"),
        ("s3.endpoint", "http://two words"),
    ],
)
def test_value_out_of_range_is_refused_by_key_and_value(key, value):
    """Catches a value that would be used or cut off instead."""
    with pytest.raises(InvalidArgumentError) as caught:
        StateStoreOptions.from_spark_conf({key: value})

    assert PREFIX + key in str(caught.value)
    assert repr(value) in str(caught.value)


def test_fix_of_a_choice_that_may_be_empty_is_no_word_that_is_refused():
    """Catches a fix that says `empty`, which is refused in its turn."""
    with pytest.raises(InvalidArgumentError, match=r'set it to "" or AES256 or aws:kms, or .* ""$'):
        StateStoreOptions.from_spark_conf({"s3.sse": "empty"})

    assert StateStoreOptions.from_spark_conf({"s3.sse": ""}).s3_sse == ""


def test_url_is_taken_as_it_is_written():
    """Catches a check of URLs that refuses a path, IPv6, or none; and a fix that is refused."""
    key = "engine.otlpEndpoint"
    for url in ("", "http://[::1]:4318/", "https://collector.example/otlp", "http://c:1"):
        assert StateStoreOptions.from_spark_conf({key: url}).engine_otlp_endpoint == url
    with pytest.raises(InvalidArgumentError, match=r"set it to http://HOST:PORT or https://HOST"):
        StateStoreOptions.from_spark_conf({key: "collector:4318"})


def test_options_of_a_call_are_read_by_field_name():
    """Catches shim and engine naming the same option differently."""
    options = StateStoreOptions.from_fields({"fsync_enabled": False, "min_versions_to_retain": 2})

    assert options.fsync_enabled is False
    assert options.min_versions_to_retain == 2
    with pytest.raises(InvalidArgumentError, match="minBatchesToRetain"):
        StateStoreOptions.from_fields({"min_versions_to_retain": 0})
    with pytest.raises(InvalidArgumentError, match="unknown option"):
        StateStoreOptions.from_fields({"fsync": True})


def test_table_is_printed_for_shim_and_docs():
    """Catches a table the jar cannot embed, or a page that misses an option."""
    rows = json.loads(table_json())
    page = reference()

    ignored = [row for row in rows if row["type"] == "ignored"]
    assert {row["scope"] for row in rows if row not in ignored} == {"shim", "engine", "both"}
    assert all(row["key"].removeprefix(PREFIX) in page and row["doc"] in page for row in ignored)
    assert all(f"`{option.key}`" in page for option in TABLE)


def test_what_a_query_has_no_use_for_is_left_out() -> None:
    """Catches one dict of options that a query takes and a command on its checkpoint refuses."""
    key, _ = IGNORED[0]

    assert StateStoreOptions.from_options({key: "64"}) == StateStoreOptions()
