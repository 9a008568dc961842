"""The events of Nexmark: people, auctions and bids, as Parquet files that are made once.

The model is that of the reference generator, `nexmark-flink` of github.com/nexmark/nexmark, which
has it from Apache Beam: the proportions, the hot ratios, what is in flight, the sizes of events.
An event is a function of its number alone, so every run and every machine has the same ones. Two
things differ: the random numbers are those of SplitMix64, and strings are cut out of one long text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.datasets import made_once, split_mix

Numbers: TypeAlias = npt.NDArray[np.int64]
"""One number an event."""

PERSONS, AUCTIONS, BIDS = 1, 3, 46
EPOCH = PERSONS + AUCTIONS + BIDS
"""Events after which the kinds of events repeat: a person, three auctions, 46 bids."""
EVENTS_PER_SECOND = 10_000
BASE_TIME_MS = 1_436_918_400_000
"""The time of event 0: 15 July 2015, 0:00 UTC."""
FIRST_ID = 1_000
"""Of people and of auctions."""
FIRST_CATEGORY, NUM_CATEGORIES = 10, 5
ACTIVE_PEOPLE, AUCTIONS_IN_FLIGHT = 1_000, 100
ID_LEAD = 10
"""So many people and auctions that do not exist yet are already named."""
HOT_GROUP = 100
"""The first of so many people sells, the second one bids, the first auction is bid on most."""
HOT_AUCTION, HOT_SELLER, HOT_BIDDER, HOT_CHANNEL = 2, 4, 4, 2
"""Of so many draws all but one are hot."""
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""What an event has on average, `extra` fills it up."""
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
FIRST_NAMES = [
    "Peter",
    "Paul",
    "Luke",
    "John",
    "Saul",
    "Vicky",
    "Kate",
    "Julie",
    "Sarah",
    "Deiter",
    "Walter",
]
LAST_NAMES = [
    "Shultz",
    "Abrams",
    "Spencer",
    "White",
    "Bartels",
    "Walton",
    "Smith",
    "Jones",
    "Noris",
]
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
NUM_CHANNELS = 10_000
SCHEMA = (
    "event_type int,"
    " person struct<id: bigint, name: string, email_address: string, credit_card: string,"
    " city: string, state: string, extra: string>,"
    " auction struct<id: bigint, item_name: string, description: string, initial_bid: bigint,"
    " reserve: bigint, expires: timestamp, seller: bigint, category: bigint, extra: string>,"
    " bid struct<auction: bigint, bidder: bigint, price: bigint, channel: string, url: string,"
    " extra: string>,"
    " date_time timestamp"
)
"""Of a file, as Spark's DDL; `event_type` is 0 for a person, 1 for an auction, 2 for a bid."""


def event_files(num_events: int, num_files: int) -> list[Path]:
    """Return the files of the first events, in order; equally many events are in each.

    They are made when they are not there yet. Guarantee: as `made_once`.
    """
    size = num_events // num_files
    tables = (events(number * size, size) for number in range(num_files))
    return made_once(f"nexmark-{num_events}-{num_files}", tables, "zstd")


def event_time_ms(number: int) -> int:
    """Return the time of an event, in ms since 1970."""
    return BASE_TIME_MS + number * 1_000 // EVENTS_PER_SECOND


def events(first: int, count: int) -> pa.Table:
    """Return `count` events from the number `first` on, in order, with the columns of `SCHEMA`."""
    number = np.arange(first, first + count, dtype=np.int64)
    place = number % EPOCH
    kind = np.where(place < PERSONS, 0, np.where(place < PERSONS + AUCTIONS, 1, 2))
    made = {
        "event_type": pa.array(kind, pa.int32()),
        "person": _among(_persons(number[kind == 0]), kind == 0),
        "auction": _among(_auctions(number[kind == 1]), kind == 1),
        "bid": _among(_bids(number[kind == 2]), kind == 2),
        "date_time": _timestamps(_time_ms(number)),
    }
    return pa.table(made)


def _persons(number: Numbers) -> dict[str, Any]:
    first = _pick(FIRST_NAMES, _draw(number, 1, len(FIRST_NAMES)))
    last = _pick(LAST_NAMES, _draw(number, 2, len(LAST_NAMES)))
    digits = _draw(number, 5, 10**16)
    card = [f"{one:016d}" for one in digits.tolist()]
    columns = {
        "id": _last_person(number) + FIRST_ID,
        "name": np.char.add(np.char.add(first, " "), last).tolist(),
        "email_address": [
            f"{name}@{host}.com"
            for name, host in zip(
                _texts(number, 3, 3 + _draw(number, 103, 4)).to_pylist(),
                _texts(number, 4, 3 + _draw(number, 104, 2)).to_pylist(),
                strict=True,
            )
        ],
        "credit_card": [f"{c[:4]} {c[4:8]} {c[8:12]} {c[12:]}" for c in card],
        "city": _pick(CITIES, _draw(number, 6, len(CITIES))).tolist(),
        "state": _pick(STATES, _draw(number, 7, len(STATES))).tolist(),
    }
    sizes = sum(np.array(list(map(len, texts))) for name, texts in columns.items() if name != "id")
    return columns | {"extra": _extra(number, 8, 8 + np.asarray(sizes), PERSON_BYTES)}


def _auctions(number: Numbers) -> dict[str, Any]:
    initial_bid = _price(number, 11)
    is_hot = _draw(number, 12, HOT_SELLER) > 0
    hot = _last_person(number) // HOT_GROUP * HOT_GROUP
    # An auction ends, on average, when so many more have begun as are in flight.
    horizon_ms = AUCTIONS_IN_FLIGHT * EPOCH // AUCTIONS * 1_000 // EVENTS_PER_SECOND
    name_length, description_length = 3 + _draw(number, 13, 17), 3 + _draw(number, 14, 97)
    size = 48 + name_length + description_length
    return {
        "id": _last_auction(number) + FIRST_ID,
        "item_name": _texts(number, 15, name_length),
        "description": _texts(number, 16, description_length),
        "initial_bid": initial_bid,
        "reserve": initial_bid + _price(number, 17),
        "expires": _timestamps(_time_ms(number) + 1 + _draw(number, 18, 2 * horizon_ms)),
        "seller": np.where(is_hot, hot, _some_person(number, 19)) + FIRST_ID,
        "category": FIRST_CATEGORY + _draw(number, 20, NUM_CATEGORIES),
        "extra": _extra(number, 21, size, AUCTION_BYTES),
    }


def _bids(number: Numbers) -> dict[str, Any]:
    last = _last_auction(number)
    oldest = np.maximum(last - AUCTIONS_IN_FLIGHT, 0)
    some = oldest + _draw(number, 31, last - oldest + 1 + ID_LEAD)
    is_hot_auction = _draw(number, 32, HOT_AUCTION) > 0
    is_hot_bidder = _draw(number, 33, HOT_BIDDER) > 0
    hot_bidder = _last_person(number) // HOT_GROUP * HOT_GROUP + 1
    is_hot_channel = _draw(number, 34, HOT_CHANNEL) > 0
    names = [*HOT_CHANNELS, *(f"channel-{one}" for one in range(NUM_CHANNELS))]
    any_channel = len(HOT_CHANNELS) + _draw(number, 35, NUM_CHANNELS)
    channel = np.where(is_hot_channel, _draw(number, 36, len(HOT_CHANNELS)), any_channel)
    urls = [
        f"https://www.nexmark.com/item.htm?query=1&channel_id={one}" for one in range(len(names))
    ]
    return {
        "auction": np.where(is_hot_auction, last // HOT_GROUP * HOT_GROUP, some) + FIRST_ID,
        "bidder": np.where(is_hot_bidder, hot_bidder, _some_person(number, 37)) + FIRST_ID,
        "price": _price(number, 38),
        "channel": pa.array(names).take(pa.array(channel, pa.int64())),
        "url": pa.array(urls).take(pa.array(channel, pa.int64())),
        "extra": _extra(number, 39, np.full(len(number), 32), BID_BYTES),
    }


def _last_person(number: Numbers) -> Numbers:
    """Return the number of the person that came last, from 0; of a person its own."""
    return number // EPOCH * PERSONS + np.minimum(number % EPOCH, PERSONS - 1)


def _last_auction(number: Numbers) -> Numbers:
    """Return the number of the auction that came last, from 0; of an auction its own."""
    # Before the first auction of an epoch it is the last one of the epoch before.
    return number // EPOCH * AUCTIONS + np.minimum(number % EPOCH - PERSONS, AUCTIONS - 1)


def _some_person(number: Numbers, field: int) -> Numbers:
    """Return one of the people that are active, or one of those who come next."""
    people = _last_person(number) + 1
    active = np.minimum(people, ACTIVE_PEOPLE)
    return people - active + _draw(number, field, active + ID_LEAD)


def _price(number: Numbers, field: int) -> Numbers:
    """Return a price in cents, from 1 to a million dollars, of an even logarithm."""
    unit = _random(number, field).astype(np.float64) / 2.0**64
    return np.rint(10.0 ** (unit * 6) * 100).astype(np.int64)


def _time_ms(number: Numbers) -> Numbers:
    return BASE_TIME_MS + number * 1_000 // EVENTS_PER_SECOND


def _timestamps(ms: Numbers) -> pa.Array[Any]:
    return pa.array(ms * 1_000, pa.timestamp("us", tz="UTC"))


def _draw(number: Numbers, field: int, below: int | Numbers) -> Numbers:
    """Return a random number from 0 to `below` - 1 for a field of each event."""
    return (_random(number, field) % np.asarray(below).astype(np.uint64)).astype(np.int64)


def _random(number: Numbers, field: int) -> npt.NDArray[np.uint64]:
    """Return 64 random bits for a field of each event: a round of SplitMix64."""
    return split_mix(number * 256 + field + 1)


TEXT = (ord("a") + _draw(np.arange(1 << 20), 0, 26)).astype(np.uint8)
LONGEST = 1 << 10
"""No text is longer."""


def _texts(number: Numbers, field: int, lengths: Numbers) -> pa.Array[Any]:
    """Return a text of that length for each event: a random piece of `TEXT`."""
    starts = _draw(number, field, len(TEXT) - LONGEST)
    ends = np.cumsum(lengths)
    of_text = np.repeat(starts - (ends - lengths), lengths) + np.arange(lengths.sum())
    offsets = np.concatenate(([0], ends)).astype(np.int32)
    buffers = (pa.py_buffer(offsets.tobytes()), pa.py_buffer(TEXT[of_text].tobytes()))
    return pa.StringArray.from_buffers(len(lengths), *buffers)


def _extra(number: Numbers, field: int, size: Numbers, wanted: int) -> pa.Array[Any]:
    """Return what fills events of `size` bytes up to `wanted` on average, a fifth more or less."""
    missing = np.maximum(wanted - size, 0)
    delta = np.rint(missing * 0.2).astype(np.int64)
    spread = _draw(number, 100 + field, np.maximum(2 * delta, 1))
    return _texts(number, field, missing - delta + spread)


def _pick(names: list[str], index: Numbers) -> npt.NDArray[np.str_]:
    return np.array(names)[index]


def _among(columns: dict[str, Any], is_there: npt.NDArray[np.bool_]) -> pa.Array[Any]:
    """Return structs of the columns where `is_there`, and nulls between them."""
    arrays = [one if isinstance(one, pa.Array) else pa.array(one) for one in columns.values()]
    structs = pa.StructArray.from_arrays(arrays, names=list(columns))
    index = np.cumsum(is_there) - 1
    return structs.take(pa.array(index, mask=~is_there))
