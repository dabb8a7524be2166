"""Results as tables and as JSON. Everything says that it is simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from manager.model.numbers import digits
from manager.model.units import percent
from manager.sim.compare import Summary, Worse
from manager.sim.matrix import BarVerdict, Comparison, Pareto, PolicyTotals
from manager.sim.results import RunResult
from manager.sim.scenario import Scenario, Segment
from manager.terminal import Table

_BARS = " ▁▂▃▄▅▆▇█"


def run_json(result: RunResult) -> dict[str, Any]:
    """One run: the same names as a run of the demonstration has, and a mark that it is simulated."""
    body = asdict(result)
    applications = {app.pop("name"): app for app in body["applications"]}
    weights = {vm.name: vm.weights for vm in result.vms}
    for app in applications.values():
        app[f"p{app['percentile']:g}_ms"] = app.pop("percentile_ms")
        app["weights"] = {name: weights[name] for name in app.pop("vms")}
    body.update(
        simulated=True,
        violated_share=result.violated_share,
        worst_excess=result.worst_excess,
        mean_excess=result.mean_excess,
        applications=applications,
        vms={vm.pop("name"): vm for vm in body["vms"]},
        cache={group.pop("name") or "default": group for group in body.pop("groups")},
    )
    return body


def run_tables(result: RunResult) -> list[Table]:
    """One run: applications, and VMs."""
    title = f"Simulated: {result.scenario} under {result.policy}, {result.duration_s:g} s, seed {result.seed}"
    apps = Table(
        "application", "SLA", "violated", "mean excess", "worst", "answered", "timed out", "failed", title=title
    )
    for app in result.applications:
        apps.add_row(
            app.name,
            f"p{app.percentile:g} <= {app.sla_ms:g} ms",
            percent(app.violated_share, 1),
            f"{app.mean_excess:+.0%}" if app.violated_share else "-",
            f"{app.worst_excess:+.0%}" if app.violated_share else "-",
            str(app.answered),
            str(app.timed_out),
            str(app.failed),
        )
    curves = Table("what", "over time", "from", "to", title="Simulated: curves")
    for app in result.applications:
        curves.add_row(f"{app.name} p{app.percentile:g}, ms", *_curve([value or 0.0 for value in app.percentile_ms]))
        curves.add_row(f"{app.name} req/s", *_curve(app.rate_rps))
    for vm in result.vms:
        if vm.critical:
            curves.add_row(f"{vm.name} weight", *_curve(vm.weights))
    for group in result.groups:
        name = group.name or "default group"
        curves.add_row(f"{name} ways", *_curve(group.ways))
        if len(set(group.bandwidth)) > 1:
            curves.add_row(f"{name} bandwidth", *_curve(group.bandwidth))
    progress = "-" if result.batch_progress is None else percent(result.batch_progress)
    busy = sum(result.host_cpu_share) / max(len(result.host_cpu_share), 1)
    caption = (f"batch together {progress} of alone; host {percent(busy)} busy", *result.notes)
    columns = ("VM", "host CPU", "of alone", "slower by", "weight", "changes/h")
    vms = Table(*columns, title="Simulated: VMs", caption=caption)
    for vm in result.vms:
        vms.add_row(
            vm.name,
            percent(vm.cpu_share, 1),
            "-" if vm.progress is None else percent(vm.progress),
            percent(vm.slower - 1) if result.groups else "-",
            f"{min(vm.weights)} .. {max(vm.weights)}" if vm.weights else "-",
            f"{vm.weight_changes_per_hour:.0f}",
        )
    return [apps, curves, vms]


def comparison_table(summaries: Sequence[Summary], title: str) -> Table:
    """A line for each scenario and policy."""
    table = Table(
        "scenario",
        "policy",
        "runs",
        "SLA violated",
        "violated, s",
        "mean excess",
        "worst",
        "batch",
        "changes/h",
        "host CPU",
        title=title,
        caption="SLA violated: share of the time, mean over applications. batch: CPU time against running alone.",
    )
    before = ""
    for summary in summaries:
        if before and before != summary.scenario:
            table.add_section()
        table.add_row(
            summary.scenario if summary.scenario != before else "",
            summary.policy,
            str(summary.runs),
            percent(summary.violated_share, 2),
            f"{summary.violated_s:.0f}",
            f"{summary.mean_excess:+.0%}",
            f"{summary.worst_excess:+.0%}",
            "-" if summary.batch_progress is None else percent(summary.batch_progress),
            f"{summary.weight_changes_per_hour:.0f}",
            percent(summary.host_cpu_share),
        )
        before = summary.scenario
    return table


def worse_table(rows: Sequence[Worse], policy: str, scenarios: int) -> Table:
    """The scenarios in which a policy is not the best."""
    table = Table(
        "scenario",
        f"violated under {policy}",
        "best",
        "violated under it",
        title=f"Simulated: {policy} is worse than another policy in {len(rows)} of {scenarios} scenarios",
    )
    for row in rows:
        table.add_row(row.scenario, percent(row.violated_share, 2), row.than, percent(row.than_share, 2))
    return table


def matrix_table(sums: Sequence[PolicyTotals], scenarios: int) -> Table:
    """A line for each policy."""
    table = Table(
        "policy",
        "SLA violated",
        "batch",
        "changes/h",
        "regret, points",
        title=f"Simulated: policies over {scenarios} scenarios",
        caption="batch: progress relative to priority. regret: violated share minus the oracle's.",
    )
    for total in sums:
        table.add_row(
            total.policy,
            percent(total.violated_share, 2),
            "-" if total.batch is None else percent(total.batch, 1),
            f"{total.changes_per_hour:.0f}",
            "-" if total.regret is None else f"{total.regret * 100:+.2f}",
        )
    return table


def pareto_table(standings: Sequence[Pareto]) -> Table:
    """A line for each policy that `auto` is compared with."""
    table = Table(
        "auto against",
        *map(str, Comparison),
        title="Simulated: violations and batch progress together, in scenarios",
    )
    for each in standings:
        counts = (each.ahead, each.fewer_violations, each.more_batch, each.behind)
        table.add_row(each.other, *map(str, counts))
    return table


def verdict_table(bars: Sequence[BarVerdict]) -> Table:
    """A line for each bar."""
    table = Table("bar", "met", "numbers", title="Simulated: verdicts on auto")
    for bar in bars:
        table.add_row(bar.bar, "yes" if bar.met else "no", bar.numbers)
    return table


def verdict_lines(bar: BarVerdict) -> list[str]:
    """The scenarios that speak against a bar, none where it is met."""
    return [] if bar.met else ["", f"Not met: {bar.bar}", *(f"  {line}" for line in bar.listed)]


def scenario_table(scenarios: Sequence[Scenario]) -> Table:
    """What there is to simulate."""
    table = Table("scenario", "pCPUs", "minutes", "applications", "what happens", title="Scenarios")
    for scenario in scenarios:
        apps = ", ".join(f"{app.name} {_rates(app.load)}" for app in scenario.applications)
        table.add_row(scenario.name, str(scenario.pcpus), f"{scenario.duration_s / 60:g}", apps, scenario.summary)
    return table


def _rates(load: Sequence[Segment]) -> str:
    rates = [rate for segment in load for rate in (segment.rate_at(0.0), segment.peak_rps)]
    low, high = min(rates), max(rates)
    return f"{low:g}/s" if low == high else f"{low:g}-{high:g}/s"


def _curve(values: Sequence[float]) -> tuple[str, str, str]:
    """A picture of at most 60 characters, with the least and the largest value."""
    if not values:
        return "", "-", "-"
    width = max(1, -(-len(values) // 60))
    means = [sum(part) / len(part) for part in (values[at : at + width] for at in range(0, len(values), width))]
    top = max(means) or 1.0
    picture = "".join(_BARS[min(len(_BARS) - 1, round(mean / top * (len(_BARS) - 1)))] for mean in means)
    return picture, digits(min(values)), digits(max(values))
