"""`equipoise profile load`: response times against load, from what the manager keeps or under load that is made."""

from __future__ import annotations

import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from manager.cli.batch_hold import HELD_PCPUS, held, remedy
from manager.cli.drive_record import DrivenLoad, DrivenPass, DriveRecord, read_record, write_record
from manager.cli.load_options import GroupedCommand, driven_load, load_options
from manager.cli.load_profile import LoadProfile, draw, profile_json, remarks, tables
from manager.cli.load_report import progress_line
from manager.cli.options import (
    CLIENT_SETTINGS,
    Failure,
    NumberRange,
    ObjectName,
    PictureFile,
    WrittenFile,
    connect,
    json_option,
    read_token,
    stop_signal,
    with_settings,
)
from manager.cli.profile_drive import AS_IS, HELD, Drive, batch_steps, batch_vms, examine_drive
from manager.cli.sweep import Timing, fresh_host
from manager.cli.times import time_s
from manager.control.load_curve import MUCH_BATCH, LoadStep, by_batch, load_curve
from manager.control.load_search import LoadVerdict, most_loads
from manager.load import IntervalResult, run
from manager.model.fields import timestamp
from manager.model.numbers import digits
from manager.model.units import per_second, percent
from manager.model.window import SlaState
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import output, rewrite, say

_MOST_STEPS = 2000
_LINE = 119
_PERCENTILE = 95.0

_EPILOG = f"""
FROM HISTORY
  Reads the history of APP, and puts its steps into ten bands by their request rate. It makes no load and changes
  nothing. A step is as long as the manager's slots, a minute or an hour, whichever of these it still keeps for so long
  a time and gives at most 2000 steps.

  For each band: the median of the SLA's percentile (without an SLA, p95), an interval that holds the true median with
  95 % confidence, the curve through the medians, which never falls, and how many steps violated the SLA. The knee is
  the rate beyond which response times rise faster. Steps in which batch VMs used {percent(MUCH_BATCH)} or more of
  the host's CPU time also make a curve of their own, and so do the others: what batch costs at each load.

  It knows what has been: rates that never came have no response time, and what other VMs did meanwhile is part of it.

DRIVEN
  With --drive, sends requests to TARGET, which must be APP, as `equipoise load` does: first the peak in a closed loop,
  then 10 % to 100 % of it in an open loop for --seconds each, then a binary search for the largest load that meets the
  SLA, to 2 % of the peak. The percentiles are those that this program sees as a client. Users of APP suffer meanwhile:
  use a copy, or a quiet hour.

  It ends by itself when an SLA of another application on the hosts of APP is violated or at risk (--stop-when), when
  an agent falls silent, or when the manager does not answer: this is checked before each load and every two seconds.
  What was measured so far is printed then, and on Ctrl-C, SIGTERM and SIGHUP. With --state it is also kept, and the
  same command goes on from there.

  Seconds are its steps: the curves are made as from history, with and without batch VMs by what these used of the
  host. --hold-batch measures everything twice: first with the batch VMs of these hosts held to {HELD_PCPUS} pCPUs each
  (their registered `max_pcpus`), then as they are. A process of its own releases them at the end, on an error, and when
  the command is killed; only if this machine fails does the request that is printed first have to be sent by hand.

TIME
  How long ago, such as 90m, 12h or 7d, or an RFC 3339 time such as 2026-01-31T14:00:00Z.

OUTPUT
  With --json an object with application, percentile, sla_ms, since, until, step_s and curves: `all`, `without` and
  `beside` batch VMs, each with bands (rate_rps, steps, least_ms, median_ms, most_ms, fitted_ms, violated_share),
  met_rps, violated_rps, knee_rps and why. `drive` is null, or has settings, passes and ended; each pass has batch,
  peak_rps, qos_rps (the largest load that meets the SLA), why, complete, and loads. Exit status 1 if there are too few
  steps for a curve, or if it ended early.

EXAMPLES
  equipoise profile load shop
  equipoise profile load shop --since 7d --picture shop.png
  equipoise profile load shop --since 30d --json > shop.json
  equipoise profile load shop --drive memcached://192.0.2.11 --keys 100000 --zipf 0.99
  equipoise profile load shop --drive http://192.0.2.10/ --seconds 30 --state shop.state --picture shop.svg
  equipoise profile load shop --drive http://192.0.2.10/ --hold-batch --yes --json > shop.json
"""


class _LoadProfileCommand(GroupedCommand):
    groups: Mapping[str, tuple[str, ...]] = {
        "From history": ("--since", "--until"),
        "Driven": ("--drive", "--seconds", "--settle", "--hold-batch", "--stop-when", "--state", "--yes"),
        **{name: options for name, options in GroupedCommand.groups.items() if name != "Load"},
    }


_OF_HISTORY = ("since", "until")
_OF_BOTH = ("application", "picture", "as_json", "drive", "config", *CLIENT_SETTINGS)


@click.command("load", cls=_LoadProfileCommand, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("application", type=ObjectName(), metavar="APP")
@click.option("--since", default="1d", show_default=True, metavar="TIME", help="Begin here.")
@click.option("--until", default="", metavar="TIME", help="End before this. [default: now]")
@click.option("--drive", metavar="TARGET", help="Make load: http://HOST[:PORT]/PATH or memcached://HOST[:PORT].")
@click.option(
    "--seconds", type=NumberRange(2, 3600), default=10.0, show_default=True, metavar="S", help="Time of each load."
)
@click.option(
    "--settle",
    type=NumberRange(0, 600),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Time before that which does not count.",
)
@click.option("--hold-batch", is_flag=True, help="Also measure with the batch VMs of its hosts held.")
@click.option(
    "--stop-when",
    type=click.Choice(["at-risk", "violated"]),
    default="at-risk",
    show_default=True,
    help="State of another application's SLA that ends it.",
)
@click.option("--state", type=WrittenFile(), metavar="FILE", help="Keep results, and go on.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@load_options
@click.option(
    "--picture",
    type=PictureFile(),
    metavar="FILE",
    help="Write a picture (.png, .svg or .pdf); needs matplotlib.",
)
@json_option
@click.pass_context
def load_command(
    context: click.Context,
    /,
    settings: Settings,
    application: str,
    since: str,
    until: str,
    drive: str | None,
    picture: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show how response times of APP depend on its load."""
    _refuse_mixture(context, bool(drive))
    if drive:
        profile = driven(context, settings, application, drive, options)
    else:
        now_s = time.time()
        since_s, until_s = time_s("--since", since, now_s), time_s("--until", until, now_s) if until else now_s
        if since_s >= until_s:
            raise click.UsageError("--since is not before --until")
        profile = measured(connect(settings), application, since_s, until_s)
    if picture:
        draw(profile, picture)
    output(as_json, profile_json(profile), *tables(profile), *remarks(profile))
    if profile.ended:
        raise Failure(f"it ended early: {profile.ended}")
    if not profile.curves["all"].bands:
        raise Failure(f"no curve of {application}: {profile.curves['all'].why}")


def _refuse_mixture(context: click.Context, drives: bool) -> None:
    """Raises UsageError for options of the other way to measure."""
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and name not in _OF_BOTH and drives == (name in _OF_HISTORY):
            other = "does not go with --drive" if drives else "goes with --drive only"
            raise click.UsageError(f"{option.opts[0]} {other}")


def driven(
    context: click.Context, settings: Settings, application: str, target_text: str, options: Mapping[str, Any]
) -> LoadProfile:
    """Make load, and measure. Raises UsageError, EquipoiseError and Failure for what keeps it from beginning."""
    load = driven_load(context, "--drive", target_text, options, alone=True)
    client = connect(settings)
    target = examine_drive(client, application, load, SlaState(options["stop_when"].replace("-", "_")))
    vms = batch_vms(client, target.hosts) if options["hold_batch"] else {}
    batches = (HELD, AS_IS) if vms else (AS_IS,)
    file = options["state"]
    kept = {**target.settings, "hold_batch": bool(vms)}
    fresh = DriveRecord(kept, tuple(map(DrivenPass, batches)))
    record = read_record(file, fresh) if file else fresh
    length_s = len(batches) * (1 + most_loads()) * (load.schedule_s + load.warmup_s)
    say(f"{application} on {', '.join(target.hosts)}: at most about {max(length_s / 60, 1):.0f} min", err=True)
    if vms:
        say(f"Batch VMs are held; to release them by hand: {remedy(vms)}", err=True)
    if not options["yes"]:
        click.confirm("Its SLA will be violated meanwhile. Go on?", abort=True, err=True)
    with stop_signal(signal.SIGHUP) as stop:
        timing = Timing(time.monotonic, stop.wait, time.sleep)
        drive = Drive(client, target, record, stop, run, lambda new: write_record(file, new) if file else None)
        drive.run(
            lambda: held(client, _reach(settings), vms, lambda: _act(client, target.hosts, timing)),
            _shown(load.schedule_s),
            lambda batch, done: _say_result(driven_line(batch, done, target.percentile)),
        )
    return driven_profile(target.application, drive.record, drive.ended)


def _reach(settings: Settings) -> tuple[str, str, str]:
    """How another process speaks with the manager. Raises SettingsError without a token."""
    return settings.text("manager_url"), read_token(settings), settings.text("manager_ca_file")


def _act(client: ManagerClient, hosts: Sequence[str], timing: Timing) -> None:
    """Wait until the agents acted on what is registered now. Raises Failure where one does not."""
    for host in hosts:
        fresh_host(client, host, timing)


def _shown(whole_s: float) -> Callable[[str], Callable[[IntervalResult], None] | None]:
    """Progress of each load, where standard error is a terminal."""

    def of(label: str) -> Callable[[IntervalResult], None] | None:
        def show(interval: IntervalResult) -> None:
            rewrite(f"{label}  {progress_line(interval, whole_s)}")

        return show if sys.stderr.isatty() else None

    return of


def _say_result(line: str) -> None:
    """In place of the progress."""
    if sys.stderr.isatty():
        rewrite(line.ljust(_LINE))
        say(err=True)
    else:
        say(line, err=True)


def driven_line(batch: str, load: DrivenLoad, percentile: float) -> str:
    """A load in one line."""
    where = "" if batch == AS_IS else ", batch VMs held"
    value = "-" if load.percentile_ms is None else f"{digits(load.percentile_ms)} ms"
    what = "peak" if load.offered_rps is None else per_second(load.offered_rps)
    verdict = "" if load.verdict is LoadVerdict.UNJUDGED else f", {load.verdict}"
    why = f": {load.why}" if load.why else ""
    return f"{what}{where}: {per_second(load.rate_rps)} answered, p{percentile:g} {value}{verdict}{why}"


def driven_profile(application: str, record: DriveRecord, ended: str) -> LoadProfile:
    """The curves of what was driven."""
    steps, sla_ms = record.steps(), record.settings["sla_ms"]
    loads = [load for one in record.passes for load in one.loads]
    groups = {"all": steps, **by_batch(steps)}
    return LoadProfile(
        application,
        record.settings["percentile"],
        sla_ms,
        min((load.since_s for load in loads), default=0.0),
        max((load.until_s for load in loads), default=0.0),
        1.0,
        {name: load_curve(group, sla_ms) for name, group in groups.items()},
        record,
        ended,
    )


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
    history = client.get(f"/applications/{application}/tiers-history", **query)
    ran: dict[str, set[str]] = defaultdict(set)
    for line in (line for tier in history["tiers"] for line in tier["vms"]):
        used = zip(history["starts"], line["cpu_share"], strict=True)
        ran[line["host"]].update(start for start, share in used if share is not None)
    shares: dict[str, list[float]] = defaultdict(list)
    for host, starts in sorted(ran.items()):
        for start, share in batch_steps(client, host, query):
            if start in starts:
                shares[start].append(share)
    return {start: max(of_hosts) for start, of_hosts in shares.items()}
