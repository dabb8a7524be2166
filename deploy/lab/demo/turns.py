"""The measurements of a phase's turns as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from deploy.lab.demo.measure import CpuUse, DemoMeasurement
from deploy.lab.loadgen.result import percentiles_us
from manager.model.histogram import Histogram


def merged(turns: Sequence[DemoMeasurement]) -> DemoMeasurement:
    """Turns of the same length and load, at least one: percentiles come from all response times together."""
    loads = {name: _merged_load([turn.loads[name] for turn in turns]) for name in turns[0].loads}
    use = CpuUse(*(sum(shares) / len(turns) for shares in zip(*(astuple(turn.use) for turn in turns), strict=True)))
    return DemoMeasurement(loads, use)


def _merged_load(loads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the report uses of a load generator's result; its worst lateness counts."""
    histograms = [Histogram({int(n): count for n, count in load["histogram"]["buckets"].items()}) for load in loads]
    errors: Counter[str] = Counter()
    for load in loads:
        errors.update(load["errors"])
    late_us = [load["lateness"]["p99_us"] for load in loads if load["lateness"]["p99_us"] is not None]
    return {
        **percentiles_us(histograms[0].merge(*histograms[1:])),
        "rate_rps": sum(load["rate_rps"] for load in loads) / len(loads),
        "sent": sum(load["sent"] for load in loads),
        "errors": dict(errors),
        "client_limited": any(load["client_limited"] for load in loads),
        "lateness": {"p99_us": max(late_us, default=None)},
        "cpu_share": sum(load["cpu_share"] for load in loads) / len(loads),
    }
