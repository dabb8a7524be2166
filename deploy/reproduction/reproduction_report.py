"""The report: one page without external resources, and the same as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from deploy.reproduction.agreement import ClaimOutcome, bar_text, judge_claims, summarise_claims
from deploy.reproduction.catalogue import NOT_HERE
from deploy.reproduction.experiment import KIND_MEANS, PlotAxes, PlotLine, RunSetting
from deploy.reproduction.reproduction_run import ExperimentRun
from deploy.reproduction.svg_chart import line_chart
from manager import __version__
from manager.model.numbers import NOTHING, digits

COMMAND = "deploy/reproduce"


def command_of(name: str, quick: bool, seed: int) -> str:
    """What runs an experiment again."""
    return f"{COMMAND} --only {name} --seed {seed}" + (" --quick" if quick else "")


def report_json(runs: Sequence[ExperimentRun], setting: RunSetting, code: str) -> dict[str, Any]:
    """Everything that the page shows, for scripts."""
    return {
        "version": __version__,
        "code": code,
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": setting.quick,
        "seed": setting.seed,
        "summary": dict(_tally(runs)),
        "experiments": [experiment_json(run) for run in runs],
        "not_here": [asdict(one) for one in NOT_HERE],
    }


def experiment_json(run: ExperimentRun) -> dict[str, Any]:
    """One experiment: theirs, ours, the claims, and what ran."""
    experiment, result = run.experiment, run.result
    body: dict[str, Any] = {
        "name": experiment.name,
        "study": experiment.study.value,
        "figure": experiment.figure,
        "claim": experiment.claim,
        "kind": experiment.kind.value,
        "setup": experiment.setup,
        "axes": asdict(experiment.axes),
        "theirs": _lines_json(experiment.theirs),
        "state": run.state.value,
        "reason": run.reason,
    }
    if result is None:
        return body
    outcomes = judge_claims(experiment.claims, result.numbers.values)
    return body | {
        "agreement": summarise_claims(outcomes).value,
        "ours": _lines_json(result.numbers.lines),
        "claims": [_claim_json(outcome) for outcome in outcomes],
        "notes": list(result.numbers.notes),
        "command": command_of(experiment.name, result.quick, result.seed),
        "seed": result.seed,
        "quick": result.quick,
        "began": result.began,
        "took_s": round(result.took_s, 2),
        "code": result.code,
    }


def _lines_json(lines: Sequence[PlotLine]) -> list[dict[str, Any]]:
    return [{"name": each.name, "points": [list(point) for point in each.points]} for each in lines]


def _claim_json(outcome: ClaimOutcome) -> dict[str, Any]:
    claim = outcome.claim
    return {
        "text": claim.text,
        "unit": claim.unit,
        "theirs": claim.theirs,
        "where": claim.where,
        "bar": bar_text(claim),
        "ours": outcome.ours,
        "agrees": outcome.agrees,
        "explanation": outcome.explanation,
    }


def _tally(runs: Sequence[ExperimentRun]) -> Counter[str]:
    """How many agree, agree in part, deviate, and have no result."""
    tally: Counter[str] = Counter()
    for run in runs:
        if run.result is None:
            tally["no result"] += 1
        else:
            tally[summarise_claims(judge_claims(run.experiment.claims, run.result.numbers.values)).value] += 1
    return tally


def report_html(report: Mapping[str, Any]) -> str:
    """The page of a report as JSON."""
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    templates.filters["number"] = number_text
    kinds = {kind.value: meaning for kind, meaning in KIND_MEANS.items()}
    charts = {body["name"]: _charts(body) for body in report["experiments"]}
    page: str = templates.get_template("report_page.html").render(report=report, charts=charts, kinds=kinds)
    return page


def number_text(value: float | None) -> str:
    """Three digits, or a dash."""
    return NOTHING if value is None else digits(value)


def _charts(body: Mapping[str, Any]) -> list[Markup]:
    """Theirs, where their text has numbers, and ours, where there is a result."""
    axes = PlotAxes(**body["axes"])
    connected = not body["axes"]["y"].startswith("load of")
    charts = []
    for title, key in (("Study (numbers in its text)", "theirs"), (f"Here ({body['kind']})", "ours")):
        lines = [PlotLine(one["name"], tuple((x, y) for x, y in one["points"])) for one in body.get(key, ())]
        if any(one.points for one in lines):
            charts.append(line_chart(title, axes, lines, connected))
    return charts


def report_text(report: Mapping[str, Any]) -> str:
    """The JSON file."""
    return json.dumps(report, indent=1) + "\n"
