"""`equipoise profile load`: response times against load, from what the manager keeps."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from manager.cli.options import CLIENT_SETTINGS, Failure, ManPage, connect, json_option, with_settings
from manager.cli.times import time_s
from manager.control.load_curve import MUCH_BATCH, LoadCurve, LoadStep, by_batch, load_curve
from manager.errors import SettingsError
from manager.model.fields import timestamp
from manager.model.units import percent
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import Table, output, say

_MOST_STEPS = 2000
_PERCENTILE = 95.0

_EPILOG = f"""
WHAT IT DOES
  Reads the history of APP, and puts its steps into ten bands by their request rate. It makes no load and changes
  nothing. A step is as long as the manager's slots, a minute or an hour, whichever of these it still keeps for so long
  a time and gives at most 2000 steps.

  For each band: the median of the SLA's percentile (without an SLA, p95), an interval that holds the true median with
  95 % confidence, the curve through the medians, which never falls, and how many steps violated the SLA. The knee is
  the rate beyond which response times rise faster. Steps in which batch VMs used {percent(MUCH_BATCH)} or more of
  the host's CPU time also make a curve of their own, and so do the others: what batch costs at each load.

  It knows what has been: rates that never came have no response time, and what other VMs did meanwhile is part of it.

TIME
  How long ago, such as 90m, 12h or 7d, or an RFC 3339 time such as 2026-01-31T14:00:00Z.

OUTPUT
  With --json an object with application, percentile, sla_ms, since, until, step_s and curves: `all`, `without` and
  `beside` batch VMs, each with bands (rate_rps, steps, least_ms, median_ms, most_ms, fitted_ms, violated_share),
  met_rps, violated_rps, knee_rps and why. Exit status 1 if there are too few steps for a curve.

EXAMPLES
  equipoise profile load shop
  equipoise profile load shop --since 7d --picture shop.png
  equipoise profile load shop --since 30d --json > shop.json
"""


@dataclass(frozen=True)
class LoadProfile:
    """The curves of an application, of all steps and by what batch VMs did; times in seconds since the epoch."""

    application: str
    percentile: float
    sla_ms: float | None
    since_s: float
    until_s: float
    step_s: float
    curves: Mapping[str, LoadCurve]


@click.command("load", cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("application", metavar="APP")
@click.option("--since", default="1d", show_default=True, metavar="TIME", help="Begin here.")
@click.option("--until", default="", metavar="TIME", help="End before this. [default: now]")
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write a picture (PNG); needs matplotlib.",
)
@json_option
def load_command(
    settings: Settings, application: str, since: str, until: str, picture: Path | None, as_json: bool
) -> None:
    """Show how response times of APP depended on its load."""
    now_s = time.time()
    since_s, until_s = time_s("--since", since, now_s), time_s("--until", until, now_s) if until else now_s
    if since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    profile = measured(connect(settings), application, since_s, until_s)
    if picture:
        _draw(profile, picture)
    output(as_json, profile_json(profile), *tables(profile), *remarks(profile))
    if not profile.curves["all"].bands:
        raise Failure(f"no curve of {application}: {profile.curves['all'].why}")


def measured(client: ManagerClient, application: str, since_s: float, until_s: float) -> LoadProfile:
    """What the manager knows of an application in a range of time. Raises ManagerUnavailable."""
    query = {
        "since": timestamp(max(since_s, 0.0)).isoformat(),
        "until": timestamp(max(until_s, 0.0)).isoformat(),
        "points": str(_MOST_STEPS),
    }
    history = client.get(f"/applications/{application}/history", **query)
    sla = history["sla"]
    batch = _batch_shares(client, application, query)
    steps = [
        LoadStep(step["rate_rps"], value_ms, batch.get(step["start"]))
        for step in history["steps"]
        if (value_ms := step["percentile_ms"] if sla else step["p95_ms"]) is not None and step["rate_rps"]
    ]
    sla_ms = sla["response_time_ms"] if sla else None
    groups = {"all": steps, **by_batch(steps)}
    return LoadProfile(
        application,
        sla["percentile"] if sla else _PERCENTILE,
        sla_ms,
        since_s,
        until_s,
        history["step_s"],
        {name: load_curve(group, sla_ms) for name, group in groups.items()},
    )


def _batch_shares(client: ManagerClient, application: str, query: Mapping[str, str]) -> dict[str, float]:
    """What batch VMs used of the hosts where the application ran, by the begin of the step: of several, the most."""
    tiers = client.get(f"/applications/{application}/tiers-history", **query)["tiers"]
    shares: dict[str, list[float]] = defaultdict(list)
    for host in sorted({line["host"] for tier in tiers for line in tier["vms"]}):
        for step in client.get(f"/hosts/{host}/history", **query)["steps"]:
            if step["batch_share"] is not None:
                shares[step["start"]].append(step["batch_share"])
    return {start: max(of_hosts) for start, of_hosts in shares.items()}


def tables(profile: LoadProfile) -> Iterator[Table]:
    """A table of all steps, and those of the steps by what batch VMs did where there are enough of both."""
    yield _table(profile, profile.curves["all"], f"{profile.application}: response times by load")
    if profile.curves["without"].bands and profile.curves["beside"].bands:
        yield _table(profile, profile.curves["without"], f"batch VMs below {percent(MUCH_BATCH)} of the host")
        yield _table(profile, profile.curves["beside"], f"batch VMs at {percent(MUCH_BATCH)} of the host or more")


def _table(profile: LoadProfile, curve: LoadCurve, title: str) -> Table:
    heading = f"p{profile.percentile:g}"
    table = Table("req/s", "steps", f"{heading}, median", "95 % confidence", "curve", "violated", "", title=title)
    for band in curve.bands:
        table.add_row(
            f"{band.rate_rps:.4g}",
            f"{band.steps}",
            f"{band.median_ms:.3g} ms",
            f"{band.least_ms:.3g} to {band.most_ms:.3g} ms",
            f"{band.fitted_ms:.3g} ms",
            "-" if profile.sla_ms is None else percent(band.violated_share),
            "<- knee" if band.rate_rps == curve.knee_rps else "",
        )
    return table


def remarks(profile: LoadProfile) -> Iterator[str]:
    """What the tables mean."""
    curve = profile.curves["all"]
    steps = sum(band.steps for band in curve.bands)
    yield f"Steps of {timedelta(seconds=profile.step_s)}, {steps} with response times."
    if curve.knee_rps is not None:
        yield f"Beyond {curve.knee_rps:.4g} req/s response times rise faster (knee)."
    if curve.why:
        yield f"{curve.why[0].upper()}{curve.why[1:]}."
    yield from _limits(profile)
    without, beside = profile.curves["without"], profile.curves["beside"]
    if without.bands and beside.bands:
        yield from _cost_of_batch(without, beside)
    elif curve.bands:
        yield "What batch VMs cost it is not known: they always ran, or never, or not for long enough."


def _limits(profile: LoadProfile) -> Iterator[str]:
    curve, sla = profile.curves["all"], f"p{profile.percentile:g} <= {profile.sla_ms} ms"
    if profile.sla_ms is None:
        yield "It has no SLA to compare with."
    elif curve.bands:
        met = f"was met up to {curve.met_rps:.4g} req/s" if curve.met_rps else "was not certainly met at any load"
        violated = (
            f"violated from {curve.violated_rps:.4g} req/s on"
            if curve.violated_rps
            else "violated at no load for certain"
        )
        yield f"The SLA, {sla}, {met}, and {violated}."


def _cost_of_batch(without: LoadCurve, beside: LoadCurve) -> Iterator[str]:
    """Beside the band of most like load, where rates differ by less than a tenth."""
    for band in beside.bands:
        alone = min(without.bands, key=lambda other: abs(other.rate_rps - band.rate_rps))
        if abs(alone.rate_rps - band.rate_rps) <= 0.1 * band.rate_rps:
            times = band.median_ms / alone.median_ms
            yield f"At {band.rate_rps:.4g} req/s it took {times:.2f} times as long beside batch VMs."


def profile_json(profile: LoadProfile) -> dict[str, Any]:
    """The object that --json prints."""
    return {
        "application": profile.application,
        "percentile": profile.percentile,
        "sla_ms": profile.sla_ms,
        "since": timestamp(profile.since_s).isoformat(),
        "until": timestamp(profile.until_s).isoformat(),
        "step_s": profile.step_s,
        "curves": {name: asdict(curve) for name, curve in profile.curves.items()},
    }


def _draw(profile: LoadProfile, file: Path) -> None:
    try:
        from manager.cli.load_picture import draw_load  # noqa: PLC0415 - only who wants a picture needs matplotlib
    except ImportError as error:
        raise SettingsError("--picture needs matplotlib: pip install matplotlib") from error
    try:
        draw_load(profile.curves, profile.application, f"p{profile.percentile:g}", profile.sla_ms, file)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
    say(f"picture: {file}", err=True)
