"""How pages say values in words: a query, numbers, times; `-` for what is not known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statestore.core.text import format_bytes, format_count, format_duration, format_time

if TYPE_CHECKING:
    from statestore.operations.upkeep.query_info import InputRates, QueryInfo


def tell_query(query: QueryInfo) -> dict[str, str]:
    """Return what a page shows of a query, in words, by name: all that changes by itself."""
    return {
        "state": _state(query),
        "batch": _batch(query),
        "committed": _ago(query.looked_ms, query.committed_ms),
        "took": "-" if query.batch_ms is None else format_duration(query.batch_ms),
        "watermark": _when(query.watermark_ms),
        "lag": "-" if query.lag_ms is None else format_duration(query.lag_ms),
        "input": _rate(query.rates, "input"),
        "processed": _rate(query.rates, "processed"),
        "sources": "\n".join(query.position.sources if query.position else ()),
    }


def _state(query: QueryInfo) -> str:
    if query.operation is not None:
        return f"stopped, {query.operation} under way"
    if query.is_running is None:
        return "not known"
    return "running" if query.is_running else "stopped"


def _batch(query: QueryInfo) -> str:
    if query.uncommitted_batch is None:
        return "none"
    if query.is_running is False:
        return f"{query.uncommitted_batch}, runs again"
    since = query.planned_ms and f" for {format_duration(query.looked_ms - query.planned_ms)}"
    return f"{query.uncommitted_batch}{since or ''}"


def _ago(now_ms: int, then_ms: int | None) -> str:
    return "-" if then_ms is None else f"{format_duration(max(0, now_ms - then_ms))} ago"


def _rate(rates: InputRates | None, name: str) -> str:
    rows_per_second = None if rates is None else getattr(rates, f"{name}_rows_per_second")
    if rows_per_second is None:
        return "-"
    places = 0 if rows_per_second >= 10 else 1
    return f"{rows_per_second:,.{places}f} rows/s"


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
