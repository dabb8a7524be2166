"""The measurements of a phase's turns as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from deploy.lab.demo.measure import CpuUse, DemoMeasurement, ServiceUse
from manager.load.result import percentiles_us
from manager.model.histogram import Histogram


def merged(turns: Sequence[DemoMeasurement]) -> DemoMeasurement:
    """Turns of the same length and load, at least one: percentiles come from all response times together."""
    loads = {name: _merged_load([turn.loads[name] for turn in turns]) for name in turns[0].loads}
    uses = [turn.use for turn in turns]
    use = CpuUse(
        fmean(use.host_share for use in uses),
        fmean(use.outside_share for use in uses),
        fmean(use.batch_rate for use in uses),
        fmean(use.critical_rate for use in uses),
        {name: _mean_use([use.services[name] for use in uses]) for name in uses[0].services},
        fmean(use.stolen_share for use in uses),
    )
    return DemoMeasurement(loads, use)


def _mean_use(uses: Sequence[ServiceUse]) -> ServiceUse:
    return ServiceUse(fmean(use.cpu_rate for use in uses), fmean(use.sleeps_rate for use in uses))


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
