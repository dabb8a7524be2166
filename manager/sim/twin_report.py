"""A twin and its predictions as tables and as JSON. Everything says that it is simulated."""

from __future__ import annotations

from typing import Any

from manager.model.fields import timestamp
from manager.sim.scenario import Shape
from manager.sim.twin import MEDIAN_BOUND, P90_BOUND, AppTwin, Twin
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
        caption="error: of the SLA's percentile, simulated against measured, in the part that was held back",
    )
    for app in twin.apps:
        values = twin.fitted.of(app.name)
        error = app.error
        fitted.add_row(
            app.name,
            " + ".join(f"{mean_ms:.3g}" for mean_ms in app.service_ms) + " ms" if app.service_ms else "-",
            ("exponential" if values.shape is Shape.EXPONENTIAL else f"cv {values.cv:.2f}") if app.service_ms else "-",
            f"{values.outside_ms:.3g} ms" if app.service_ms else "-",
            f"{error.blocks} windows" if error else "-",
            f"{error.median:.0%}" if error else "-",
            f"{error.p90:.0%}" if error else "-",
            "no" if app.refused else "yes",
        )
    return [fitted]


def refusal_lines(twin: Twin) -> list[str]:
    """Of which applications nothing is predicted, and why."""
    return [f"{app.name} is not predicted: {app.refused}" for app in twin.apps if app.refused]


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
