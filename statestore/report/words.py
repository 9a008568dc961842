"""How pages say values in words: numbers, times; `-` for what is not known."""

from __future__ import annotations

from statestore.core.text import format_bytes, format_count, format_time


def _bytes(num_bytes: float | None) -> str:
    return "-" if num_bytes is None else format_bytes(round(num_bytes))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _count(value: int | None, noun: str) -> str:
    return f"- {noun}s" if value is None else format_count(value, noun)


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    if 0 < value < 0.05:
        return "< 0.1 ms"  # not nothing, which 0.0 would say
    if value < 10:
        return f"{value:.1f} ms"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def _when(epoch_ms: int | None) -> str:
    return "-" if epoch_ms is None else format_time(epoch_ms)


FILTERS = {"bytes": _bytes, "number": _number, "ms": _ms, "when": _when, "count": _count}
"""Of templates, by name."""
