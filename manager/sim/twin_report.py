"""A twin and its predictions as tables and as JSON. Everything says that it is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from manager.model.fields import timestamp
from manager.model.interference import ANY_LOSS, LOSS_BOUNDS, BatchClass
from manager.model.numbers import digits
from manager.model.units import per_second, percent
from manager.sim.scenario import Shape
from manager.sim.twin import MEDIAN_BOUND, P90_BOUND, AppTwin, Twin
from manager.sim.twin_admission import Admission
from manager.sim.twin_loads import SimulatedTable
from manager.sim.twin_prediction import ClosedLoop, PercentileSpan, ms_text
from manager.terminal import Table


def moment(time_s: float) -> str:
    """A time in RFC 3339, in UTC."""
    return timestamp(time_s).isoformat().replace("+00:00", "Z")


def twin_json(twin: Twin) -> dict[str, Any]:
    """The twin, its parameters and its errors."""
    observed = twin.observed
    return {
        "simulated": True,
        "host": observed.assignment.host.name,
        "from": moment(observed.start_s),
        "to": moment(observed.end_s),
        "policy": observed.policy,
        "mode": str(observed.mode),
        "pcpus": observed.pcpus,
        "seeds": len(twin.runs),
        "simulated_share": round(1 / twin.thinning, 4),
        "bounds": {"median": MEDIAN_BOUND, "p90": P90_BOUND},
        "scheduler": {"slice_ms": twin.scenario.scheduler.slice_ms, "tick_ms": twin.scenario.scheduler.tick_ms},
        "applications": [_app_json(twin, app) for app in twin.apps],
        "notes": list(observed.notes),
    }


def twin_tables(twin: Twin) -> list[Table]:
    """What was fitted, and how far it is from what was held back."""
    observed = twin.observed
    fitted = Table(
        "application",
        "service time",
        "varies",
        "outside",
        "compared",
        "median error",
        "90th percentile",
        "predicted",
        title=f"Simulated: the twin of {observed.assignment.host.name}, {observed.end_s - observed.start_s:g} s"
        f" under {observed.policy}",
        caption="error: of the SLA's percentile, simulated against measured, in the part that was held back"
        f"{share_text(twin.thinning)}",
    )
    for app in twin.apps:
        values = twin.fitted.of(app.name)
        error = app.error
        fitted.add_row(
            app.name,
            " + ".join(f"{digits(mean_ms)}" for mean_ms in app.service_ms) + " ms" if app.service_ms else "-",
            ("exponential" if values.shape is Shape.EXPONENTIAL else f"cv {values.cv:.2f}") if app.service_ms else "-",
            f"{digits(values.outside_ms)} ms" if app.service_ms else "-",
            f"{error.blocks} windows" if error else "-",
            percent(error.median) if error else "-",
            percent(error.p90) if error else "-",
            "no" if app.refused else "yes",
        )
    return [fitted]


def share_text(thinning: float) -> str:
    """Which part of the requests was simulated, to be added to a caption; nothing where it was all."""
    return f"; {percent(1 / thinning, 1)} of the requests were simulated" if thinning > 1 else ""


def refusal_lines(refused: Mapping[str, str]) -> list[str]:
    """Of which applications nothing is predicted, and why."""
    return [f"{name} is not predicted: {reason}" for name, reason in refused.items()]


def closed_loop_json(found: ClosedLoop) -> dict[str, Any]:
    """What would have been, beside what was measured. Times are numbers of seconds since the epoch."""
    return {
        "simulated": True,
        "since": found.start_s,
        "until": found.end_s,
        "seeds": found.seeds,
        "simulated_share": round(1 / found.thinning, 4),
        "applications": [
            {
                "application": app.name,
                "percentile": app.percentile,
                "target_ms": app.target_ms,
                "measured_ms": round(app.measured_ms, 3),
                "predicted_ms": round(app.predicted.ms, 3),
                "low_ms": round(app.predicted.low_ms, 3),
                "high_ms": round(app.predicted.high_ms, 3),
                "violated_measured": round(app.violated_measured, 4),
                "violated_predicted": round(app.violated, 4),
            }
            for app in found.apps
        ],
        "refused": [{"application": name, "reason": reason} for name, reason in found.refused.items()],
        "batch_pcpus_in_force": round(found.batch_measured, 3),
        "batch_pcpus": round(found.batch, 3),
    }


def closed_loop_table(found: ClosedLoop, policies: str) -> Table:
    """A line for each application that is predicted. ``policies``: those that were in force."""
    table = Table(
        "application",
        "SLA",
        f"measured under {policies}",
        f"would have been under {found.policy}",
        "violated, measured",
        "violated, predicted",
        title=f"Simulated, closed loop: response times under {found.policy}",
        caption=f"interval: {found.seeds} seeds, and the twin's own error{share_text(found.thinning)}. Batch VMs,"
        f" simulated: {found.batch_measured:.2f} pCPUs under {policies}, {found.batch:.2f} under {found.policy}",
    )
    for app in found.apps:
        table.add_row(
            app.name,
            f"p{app.percentile:g} <= {app.target_ms:g} ms",
            f"{ms_text(app.measured_ms)} ms",
            app.predicted.text,
            percent(app.violated_measured, 1),
            percent(app.violated, 1),
        )
    return table


def admission_json(found: Admission, twin: Twin) -> dict[str, Any]:
    """The answer to whether a VM may come."""
    vm = found.vm
    return {
        "simulated": True,
        "host": twin.observed.assignment.host.name,
        "policy": found.policy,
        "seeds": len(twin.runs),
        "vm": {
            "class": str(vm.vm_class),
            "vcpus": vm.vcpus,
            "like": vm.like or None,
            "wants_pcpus": round(found.wants_pcpus, 3),
            "gets_pcpus": round(found.gets_pcpus, 3),
        },
        "verdict": str(found.verdict),
        "reasons": list(found.reasons),
        "applications": [
            {
                "application": app.name,
                "percentile": app.percentile,
                "target_ms": app.target_ms,
                "without": _span_json(app.without),
                "with": _span_json(app.then),
                "violated_without": round(app.violated_without, 4),
                "violated_with": round(app.violated, 4),
            }
            for app in found.apps
        ],
        "refused": [{"application": name, "reason": reason} for name, reason in found.refused.items()],
    }


def admission_table(found: Admission, twin: Twin) -> Table:
    """A line for each application."""
    vm = found.vm
    table = Table(
        "application",
        "SLA",
        "without it",
        "with it",
        "violated without",
        "violated with",
        title=f"Simulated: {twin.observed.assignment.host.name} under {found.policy} with a {vm.vm_class} VM of"
        f" {vm.vcpus} vCPU{'s' if vm.vcpus > 1 else ''} more",
        caption=f"interval: {len(twin.runs)} seeds, and the twin's own error{share_text(twin.thinning)}. The VM wants"
        f" {found.wants_pcpus:.2f} pCPUs and gets {found.gets_pcpus:.2f}",
    )
    for app in found.apps:
        table.add_row(
            app.name,
            f"p{app.percentile:g} <= {app.target_ms:g} ms",
            app.without.text if app.without else "-",
            app.then.text if app.then else "-",
            percent(app.violated_without, 1) if app.without else "-",
            percent(app.violated, 1),
        )
    return table


def _span_json(span: PercentileSpan | None) -> dict[str, float] | None:
    if span is None:
        return None
    return {"ms": round(span.ms, 3), "low_ms": round(span.low_ms, 3), "high_ms": round(span.high_ms, 3)}


def _app_json(twin: Twin, app: AppTwin) -> dict[str, Any]:
    values, error = twin.fitted.of(app.name), app.error
    return {
        "application": app.name,
        "percentile": app.percentile,
        "predicted": not app.refused,
        "refused": app.refused or None,
        "service_ms": [round(mean_ms, 5) for mean_ms in app.service_ms],
        "shape": str(values.shape) if app.service_ms else None,
        "cv": values.cv if app.service_ms else None,
        "outside_ms": values.outside_ms if app.service_ms else None,
        "error": None
        if error is None
        else {
            "windows": error.blocks,
            "median": round(error.median, 4),
            "p90": round(error.p90, 4),
            "overall": round(error.overall, 4),
        },
    }


def loads_json(table: SimulatedTable, twin: Twin) -> dict[str, Any]:
    """The simulated interference table of an application, and the loads it is made of."""
    return {
        "simulated": True,
        "host": twin.observed.assignment.host.name,
        "policy": twin.observed.policy,
        "application": table.app.name,
        "percentile": table.app.percentile,
        "target_ms": table.target_ms,
        "mean_rps": round(table.mean_rps, 3),
        "seeds": len(twin.runs),
        "rows": [
            {
                "batch": str(row.batch),
                "max_loss": row.max_loss,
                "load_rps": row.load_rps,
                "violated_rps": row.violated_rps,
            }
            for row in table.rows
        ],
        "points": [
            {
                "batch": str(point.batch),
                "rate_rps": point.rate_rps,
                "with": _span_json(point.then),
                "batch_lost": round(point.batch_lost, 4),
            }
            for point in table.points
        ],
    }


def loads_table(table: SimulatedTable, twin: Twin) -> Table:
    """The same for people."""
    bounds = LOSS_BOUNDS[::-1]
    names = ("any loss" if bound == ANY_LOSS else f"loss <= {percent(bound)}" for bound in bounds)
    title = f"Simulated: largest load of {table.app.name} on {twin.observed.assignment.host.name}"
    caption = f"{len(twin.runs)} seeds; the recording has {per_second(table.mean_rps)}: more is extrapolated"
    shown = Table("batch load", *names, "too much from", title=title, caption=caption)
    rows = {(row.batch, row.max_loss): row for row in table.rows}
    for batch in BatchClass:
        loads = [*(rows[batch, bound].load_rps for bound in bounds), rows[batch, ANY_LOSS].violated_rps]
        shown.add_row(batch, *("-" if rate is None else per_second(rate) for rate in loads))
    return shown
