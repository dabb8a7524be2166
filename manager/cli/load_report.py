"""What `equipoise load` measured, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from manager.load.result import IntervalResult, LoadResult, percentiles_us
from manager.model.units import percent
from manager.terminal import Table

_BAR = 24


def result_table(result: LoadResult) -> Table:
    """Response times, and the lateness of the load generator itself."""
    spec = result.spec
    loop = "closed loop" if spec.closed_loop else "open loop"
    pipeline = f" of {spec.pipeline} requests each" if spec.pipeline > 1 else ""
    title = f"{spec.target_text}: {loop}, {spec.connections} connections{pipeline}, {result.duration_s:.1f} s"
    table = Table("", *(f"{name} ms" for name in ("p50", "p95", "p99", "mean", "max")), title=title)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row(
        "response time", *map(_ms, [*percentiles_us(result.histogram).values(), result.mean_us, result.max_us])
    )
    if not spec.closed_loop:
        lateness = percentiles_us(result.lateness).values()
        table.add_row("own lateness", *map(_ms, [*lateness, None, result.lateness_max_us]))
    return table


def result_lines(result: LoadResult) -> Iterator[str]:
    """Rates and counts, and a warning where the numbers are not about the server; a shortfall is an error by itself."""
    offered = "" if result.spec.offered_rps is None else f", {result.spec.offered_rps:,.1f} req/s offered"
    yield f"rate      {result.rate_rps:,.1f} req/s answered{offered}"
    yield f"requests  {result.sent:,} sent, {result.answered:,} answered, {_counts(result.errors)} errors"
    yield f"client    {percent(result.cpu_share)} of a core; events: {_counts(result.events)}"
    if result.client_limits and not result.shortfall:
        limits = "; ".join(result.client_limits)
        yield f"Warning: the numbers are about this load generator, not the server: {limits}."


def progress_line(interval: IntervalResult, whole_s: float) -> str:
    """A bar of how much of the run is done, and the last interval, in one line."""
    done = int(_BAR * min(interval.end_s / whole_s, 1.0))
    p95_us = interval.histogram.percentile_us(95)
    return (
        f"[{'=' * done}{' ' * (_BAR - done)}] {interval.end_s:.0f} of {whole_s:.0f} s  {interval.rate_rps:9,.1f} req/s"
        f"  p95 {_ms(p95_us):>9} ms  {sum(interval.errors.values()):,} errors"
    )


def _ms(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us / 1000:,.3f}"


def _counts(counts: Mapping[str, int]) -> str:
    """The sum, and in brackets its parts: ``5 (timeout 3, reset 2)``."""
    parts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()) if count)
    return f"{sum(counts.values()):,}" + (f" ({parts})" if parts else "")
