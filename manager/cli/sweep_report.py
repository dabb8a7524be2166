"""What a sweep over cache ways says: a table, or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

from manager.cli.sweep import SweepStep, Swept
from manager.cli.sweep_checks import SweepTarget
from manager.control.knee import Curve, KneeRules, curve_of
from manager.terminal import Table

_STEADY = 1.25
"""Rates that differ by more than this factor are another load."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """A sweep and the curve through it; ``command`` puts the former value back."""

    target: SweepTarget
    swept: Swept
    curve: Curve
    command: str

    @property
    def steps(self) -> list[SweepStep]:
        """From few ways to many."""
        return sorted(self.swept.steps, key=lambda step: step.ways)

    @property
    def fewest_for_sla(self) -> int | None:
        """The fewest ways from which on the SLA was met throughout; None where it was missed with the most."""
        fewest = None
        for step in reversed(self.steps):
            time_ms = percentile_ms(step, self.target.percentile)
            if time_ms is None:
                continue
            if time_ms > self.target.sla_ms:
                break
            fewest = step.ways
        return fewest


def report_of(target: SweepTarget, swept: Swept, rules: KneeRules, command: str) -> SweepReport:
    """A sweep with its knee."""
    return SweepReport(target, swept, curve_of({step.ways: step.times_ms for step in swept.steps}, rules), command)


def percentile_ms(step: SweepStep, percentile: float) -> float | None:
    """Of all response times under an allocation; where only percentiles are known, their median."""
    if step.window is None:
        return None
    if step.window.ready is not None and step.window.ready.percentile == percentile:
        return median(step.times_ms)
    return step.window.percentile_ms(percentile)


def table_of(report: SweepReport) -> Table:
    """A line for each allocation, and where the knee is."""
    target, curve = report.target, report.curve
    extra = [target.percentile] if target.percentile not in {95, 99} else []
    percentiles = [95.0, 99.0, *extra]
    columns = [
        "ways",
        "response times",
        "rate",
        *(f"p{percentile:g}" for percentile in percentiles),
        "curve",
        "SLA",
        "",
    ]
    table = Table(*columns, title=f"{target.application}: response times by cache ways on {', '.join(target.hosts)}")
    for step in report.steps:
        if step.window is None:
            table.add_row(str(step.ways), *"-" * (len(columns) - 2))
            continue
        rate, judged_ms = step.window.rate_rps, percentile_ms(step, target.percentile)
        missed = judged_ms is not None and judged_ms > target.sla_ms
        table.add_row(
            str(step.ways),
            f"{step.window.histogram.count:,}",
            "-" if rate is None else f"{rate:.0f}/s",
            *(_ms(percentile_ms(step, percentile)) for percentile in percentiles),
            _ms(curve.fitted_ms.get(step.ways)),
            "-" if judged_ms is None else "MISSED" if missed else "met",
            "<- knee" if step.ways == curve.knee else "",
        )
    return table


def remarks(report: SweepReport) -> Iterator[str]:
    """What the table means, what it does not, and what became of the former value."""
    target, swept = report.target, report.swept
    yield f"Knee, by p{target.percentile:g}: {report.curve.why}."
    target_text = f"The SLA, p{target.percentile:g} <= {target.sla_ms:g} ms"
    fewest = report.fewest_for_sla
    yield (
        f"{target_text}, was met from {fewest} ways on."
        if fewest
        else f"{target_text}, was violated with the most ways."
    )
    rates = [step.window.rate_rps for step in swept.steps if step.window and step.window.rate_rps]
    if rates and max(rates) > _STEADY * min(rates):
        yield f"The load was not the same throughout: {min(rates):.0f}/s to {max(rates):.0f}/s."
    for step in report.steps:
        if step.lacks or not step.times_ms:
            yield f"{step.ways} ways: {step.lacks or 'too few response times to judge them'}."
    yield from target.warnings
    if swept.ended:
        yield f"It ended early: {swept.ended}."
    if swept.left:
        yield f"NOT restored: {swept.left}. Do it by"
        yield f"  {report.command}"
    elif swept.kept:
        yield f"Somebody else changed the cache of {target.application} meanwhile: it is left as it is."
    else:
        yield f"The cache of {target.application} is {target.former or 'none of its own'} again."


def report_json(report: SweepReport) -> dict[str, Any]:
    """All of it."""
    target, swept, curve = report.target, report.swept, report.curve
    return {
        "application": target.application,
        "hosts": list(target.hosts),
        "percentile": target.percentile,
        "sla_ms": target.sla_ms,
        "former": target.former,
        "steps": [_step_json(report, step) for step in report.steps],
        "knee": curve.knee,
        "gain_ms": curve.gain_ms,
        "why": curve.why,
        "fewest_for_sla": report.fewest_for_sla,
        "warnings": list(target.warnings),
        "ended": swept.ended,
        "restored": not (swept.left or swept.kept),
        "not_restored": swept.left,
        "restore": report.command,
    }


def _step_json(report: SweepReport, step: SweepStep) -> dict[str, Any]:
    return {
        "ways": step.ways,
        "count": step.window.histogram.count if step.window else 0,
        "rate_rps": step.window.rate_rps if step.window else None,
        "p95_ms": percentile_ms(step, 95),
        "p99_ms": percentile_ms(step, 99),
        "time_ms": percentile_ms(step, report.target.percentile),
        "windows_ms": list(step.times_ms),
        "fitted_ms": report.curve.fitted_ms.get(step.ways),
        "lacks": step.lacks,
    }


def _ms(time_ms: float | None) -> str:
    return "-" if time_ms is None else f"{time_ms:.3g} ms"
