"""The result for people: a table at the end, a line of progress meanwhile."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.lab.loadgen.result import IntervalResult, LoadResult, percentiles_us


def print_result(result: LoadResult, console: Console) -> None:
    """Print a table of response times and lateness, the counts, and a warning if the client was the limit."""
    spec = result.spec
    offered_rps = sum(phase.rate_rps * phase.duration_s for phase in spec.schedule) / spec.schedule_s
    console.print(f"{escape(spec.target_text)}, {spec.connections} connections, {result.duration_s:.1f} s measured")
    table = Table("", *(f"{name} ms" for name in ("p50", "p95", "p99", "mean", "max")))
    for column in table.columns[1:]:
        column.justify = "right"
    times = percentiles_us(result.histogram)
    lateness = percentiles_us(result.lateness)
    table.add_row("response time", *map(_ms, [*times.values(), result.mean_us, result.max_us]))
    table.add_row("own lateness", *map(_ms, [*lateness.values(), None, result.lateness_max_us]))
    console.print(table)
    console.print(f"rate      {result.rate_rps:,.1f} requests/s answered, {offered_rps:,.1f} offered")
    console.print(f"requests  {result.sent:,} sent, {result.answered:,} answered, {_counts(result.errors)} errors")
    console.print(f"client    {result.cpu_share:.0%} of a core; events: {_counts(result.events)}")
    for limit in result.client_limits:
        console.print(f"[bold]Warning:[/bold] the numbers are about this load generator, not the server: {limit}")


def progress_line(interval: IntervalResult) -> str:
    """One interval in one line."""
    p95_us = interval.histogram.percentile_us(95)
    return (
        f"{interval.end_s:8.1f} s  {interval.rate_rps:9,.1f} requests/s  p95 {_ms(p95_us):>9} ms  "
        f"{sum(interval.errors.values()):,} errors"
    )


def _ms(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us / 1000:,.3f}"


def _counts(counts: Mapping[str, int]) -> str:
    """The sum, and in brackets its parts: ``5 (timeout 3, reset 2)``."""
    parts = ", ".join(f"{kind} {count:,}" for kind, count in sorted(counts.items()) if count)
    return f"{sum(counts.values()):,}" + (f" ({parts})" if parts else "")
