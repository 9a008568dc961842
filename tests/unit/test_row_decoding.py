"""Rows that Spark wrote are decoded, and hashed, to the last bit. See tests/golden/row_cases.py."""

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from statestore.codec.byte_ranges import ByteRanges
from statestore.codec.column_family import ColumnFamily
from statestore.codec.key_bytes import decode_keys, split_values
from statestore.codec.murmur3 import hash_columns
from statestore.codec.partition_key import partition_key_columns
from statestore.codec.spark_types import parse_schema
from statestore.codec.unsafe_row import decode_column, decode_rows
from statestore.core.errors import CorruptionError, IncompatibleError
from tests.golden.row_cases import CASES, KEYS, NOT_HASHED, ROWS_PATH, WIDE_COLUMNS, with_null

GOLDEN = json.loads(ROWS_PATH.read_text())


def _decoded(rows, schema):
    return decode_column(rows, partial(decode_rows, schema=schema))


def _binary(rows):
    return pa.array([None if row is None else bytes.fromhex(row) for row in rows], pa.binary())


def _same(found, expected):
    """Compare bit by bit where it matters: -0.0 is not 0.0, NaN is NaN."""
    if isinstance(expected, float):
        return repr(found) == repr(expected)
    return found == expected


def _plain(value):
    """Return a value with pandas' nanosecond types, which Arrow makes, as the standard ones."""
    return value.to_pytimedelta() if type(value).__module__.startswith("pandas") else value


@pytest.mark.parametrize(("name", "values"), [(case[0], case[2]) for case in CASES])
def test_every_type_is_decoded_as_spark_wrote_it(name, values):
    """Catches a type read at the wrong place or width, and nulls that shift what follows."""
    golden = GOLDEN["rows"][name]
    schema = parse_schema(golden["schema"])
    expected = [value for _, value in with_null(values)]

    column = _decoded(_binary(golden["bytes"]), schema)
    column.validate(full=True)

    assert column.type == schema.arrow
    found = [_plain(row["c"]) for row in column.to_pylist()]
    assert all(map(_same, found, expected)), (found, expected)
    assert len(found) == len(expected)


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_decoding_does_not_depend_on_where_rows_lie(name):
    """Catches alignment and slices taken for granted: rows out of order, sliced, shifted a byte."""
    golden = GOLDEN["rows"][name]
    schema = parse_schema(golden["schema"])
    rows = golden["bytes"]
    straight = _decoded(_binary(rows), schema)
    backwards = pa.array(range(len(rows) - 1, -1, -1))

    shifted = _binary(["ff", *rows, None, *rows]).slice(1)
    found = _decoded(shifted, schema)
    found.validate(full=True)

    assert found.slice(0, len(rows)).equals(straight) or "nan" in name
    assert found[len(rows)].as_py() is None
    assert found.slice(len(rows) + 1).equals(straight) or "nan" in name
    ranges = ByteRanges.of_column(_binary(rows))
    turned = decode_rows(ranges.at(ranges.starts[::-1], ranges.sizes[::-1]), schema)
    turned.validate(full=True)
    assert turned.equals(straight.take(backwards)) or "nan" in name


@pytest.mark.parametrize("name", [case[0] for case in CASES if case[0] not in NOT_HASHED])
def test_every_type_is_hashed_as_spark_does(name):
    """Catches a key that would be looked for in another state partition after a rescale."""
    golden = GOLDEN["rows"][name]
    schema = parse_schema(golden["schema"])
    column = _decoded(_binary(golden["bytes"]), schema)

    hashes = hash_columns([(column.field(0), schema.types[0])], len(column))
    sliced = column.slice(1)
    hashes_of_slice = hash_columns([(sliced.field(0), schema.types[0])], len(sliced))

    assert hashes.dtype == np.int32
    assert hashes.tolist() == golden["hashes"]
    assert hashes_of_slice.tolist() == golden["hashes"][1:]
    assert hash_columns([(column, schema)], len(column)).tolist() == golden["hashes"]


def test_a_row_of_more_than_64_columns_has_two_words_of_null_bits():
    """Catches columns behind the 64th read a word too early, or their null bits not at all."""
    golden = GOLDEN["rows"]["wide"]
    schema = parse_schema(golden["schema"])

    column = _decoded(_binary(golden["bytes"]), schema)

    row = column[0].as_py()
    assert row == {
        f"c{n}": None if n % 3 == 0 else str(n) if n % 2 else n for n in range(WIDE_COLUMNS)
    }
    columns = [(column.field(n), kind) for n, kind in enumerate(schema.types)]
    assert hash_columns(columns, 1).tolist() == golden["hashes"]


def _family(encoder, schema, argument):
    family = ColumnFamily(1, "timers", schema, schema, encoder)
    if encoder == "prefix":
        return replace(family, num_prefix_columns=argument)
    return replace(family, ordering_ordinals=tuple(argument) if argument else None)


@pytest.mark.parametrize("number", range(len(KEYS)))
def test_keys_of_every_encoder_are_decoded(number):
    """Catches an ordered key decoded to another value, a lost sign or a null."""
    encoder, _, argument, rows = KEYS[number]
    golden = GOLDEN["keys"][number]
    family = _family(encoder, golden["schema"], argument)

    column = decode_keys(_binary(golden["bytes"]), family)
    column.validate(full=True)

    assert [tuple(row.values()) for row in column.to_pylist()] == [row for _, row in rows]


def test_no_rows_of_any_type_are_an_empty_column():
    """Catches arithmetic that needs a first row."""
    for golden in GOLDEN["rows"].values():
        schema = parse_schema(golden["schema"])
        column = _decoded(_binary([]), schema)
        assert (len(column), column.type) == (0, schema.arrow)
        if schema.types[0].kind not in NOT_HASHED:
            assert hash_columns([(column.field(0), schema.types[0])], 0).tolist() == []


def test_rows_without_columns_are_counted():
    """Catches the zero-byte key of a global aggregation taken for no row."""
    schema = parse_schema('{"type":"struct","fields":[]}')

    column = _decoded(_binary(["", ""]), schema)

    assert column.to_pylist() == [{}, {}]
    assert hash_columns([(column, schema)], 2).tolist() == [42, 42]


@pytest.mark.parametrize("name", [case[0] for case in CASES])
def test_bytes_of_another_schema_are_refused(name):
    """Catches reads beyond the end of the buffer and sizes believed."""
    golden = GOLDEN["rows"][name]
    schema = parse_schema(golden["schema"])
    with pytest.raises(CorruptionError, match="do not fit their schema"):
        _decoded(_binary([golden["bytes"][0][:16]]), schema)
    is_variable = schema.types[0].kind in ("string", "binary", "array", "map", "struct", "variant")
    if is_variable or name == "decimal-large":
        beyond = "00" * 8 + "ffffff7f" + "ffffff7f"
        with pytest.raises(CorruptionError, match="do not fit their schema"):
            _decoded(_binary([beyond]), schema)


def test_unknown_types_are_refused_by_name():
    """Catches a column silently read as bytes."""
    with pytest.raises(IncompatibleError, match="type='geometry'"):
        parse_schema('{"type":"struct","fields":[{"name":"a","type":"geometry"}]}')


def test_a_user_defined_type_is_read_as_what_it_is_made_of():
    """Catches a user-defined type that hides readable columns."""
    described = {
        "type": "struct",
        "fields": [
            {
                "name": "p",
                "nullable": True,
                "metadata": {},
                "type": {"type": "udt", "class": "a.B", "pyClass": None, "sqlType": {
                    "type": "array", "elementType": "double", "containsNull": False}},
            }
        ],
    }  # fmt: skip
    assert parse_schema(json.dumps(described)).arrow == pa.struct({"p": pa.list_(pa.float64())})


def test_fields_of_one_name_are_told_apart():
    """Catches a struct that cannot become a dict or a data frame, as after two sums."""
    names = ["sum", "valueSet", "sum", "sum_2", "sum"]
    described = {
        "type": "struct",
        "fields": [{"name": name, "type": "long"} for name in names],
    }

    schema = parse_schema(json.dumps(described))

    assert schema.names == tuple(names)
    assert schema.arrow.names == ["sum", "valueSet", "sum_3", "sum_2", "sum_4"]


def test_values_of_a_multi_value_family_are_told_apart():
    """Catches the order of values lost, or a value of another key taken in."""
    parts = [[b"a" * 8, b"b" * 16], [b"c" * 8], [b"d" * 24, b"e" * 8, b"f" * 8]]
    joined = [b"".join(len(row).to_bytes(4) + row for row in rows) for rows in parts]

    ranges, owners = split_values(pa.array(joined, pa.binary()))

    assert ranges.to_arrow(pa.binary()).to_pylist() == [row for rows in parts for row in rows]
    assert owners.tolist() == [0, 0, 1, 2, 2, 2]
    for cut in (1, 15, 17):
        with pytest.raises(CorruptionError):
            split_values(pa.array([joined[0][:-cut]], pa.binary()))


def test_passes_of_a_split_do_not_depend_on_the_longest_list(monkeypatch):
    """Catches a pass over all lists for each element of the longest one."""
    reads = []
    read = ByteRanges.read
    monkeypatch.setattr(ByteRanges, "read", lambda *given: reads.append(1) or read(*given))
    lengths = [20_000, *[3] * 40]
    values = pa.array([(b"\0\0\0\x08" + bytes(8)) * length for length in lengths], pa.binary())

    ranges, owners = split_values(values)

    assert np.bincount(owners).tolist() == lengths
    assert (np.diff(ranges.starts) == 12).all()
    assert len(reads) < 10


def test_a_float_that_is_no_number_hashes_alike_whatever_its_bits():
    """Catches two NaNs in two state partitions."""
    bits = np.array([0x7FF8000000000000, 0xFFF8000000000001], np.uint64)
    column = pa.array(bits.view(np.float64))
    assert math.isnan(column[1].as_py())
    kind = parse_schema(GOLDEN["rows"]["double"]["schema"]).types[0]

    assert len(set(hash_columns([(column, kind)], 2).tolist())) == 1


def _struct(**fields):
    return {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in fields.items()
        ],
    }


GROUPING = _struct(a="string", b="long")
LAYOUTS = [
    ("aggregation", "default", "default", "no-prefix", GROUPING, {}, ((0,), (1,))),
    ("global", "default", "default", "no-prefix", _struct(), {}, ()),
    ("limit", "default", "default", "no-prefix", _struct(key="void"), {}, ()),
    ("session", "default", "default", "prefix", _struct(a="string", start="timestamp"),
     {"num_prefix_columns": 1}, ((0,),)),
    ("join-count", "left-keyToNumValues", "default", "no-prefix", GROUPING, {}, ((0,), (1,))),
    ("join-index", "left-keyWithIndexToValue", "default", "no-prefix",
     _struct(f="string", index="long"), {}, ((0,),)),
    ("join-3-index", "default", "right-keyWithIndexToValue", "no-prefix",
     _struct(f="string", index="long"), {}, ((0,),)),
    ("join-4", "default", "left-keyWithTsToValues", "timestamp-postfix",
     _struct(f="string", __event_time="long"), {}, ((0,),)),
    ("map", "default", "m", "prefix", _struct(key=GROUPING, userKey=GROUPING),
     {"num_prefix_columns": 1}, ((0,),)),
    ("timers", "default", "$eventTimers_timestampToKey", "range",
     _struct(expiryTimestampMs="long", key=GROUPING), {"ordering_ordinals": (0,)}, ((1,),)),
    ("ttl", "default", "$ttl_v", "range", _struct(expirationMs="long", elementKey=GROUPING),
     {"ordering_ordinals": (0,)}, ((1,),)),
    ("map-ttl", "default", "$ttl_m", "range",
     _struct(expirationMs="long", elementKey=_struct(key=GROUPING, userKey=GROUPING)),
     {"ordering_ordinals": (0,)}, ((1, 0),)),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout[0])
def test_partition_key_of_every_operator(layout):
    """Catches a layout that the shim and Python take for different partition keys."""
    _, store, name, encoder, schema, more, expected = layout
    family = ColumnFamily(0, name, json.dumps(schema), None, encoder, **more)

    assert partition_key_columns(store, family) == expected
