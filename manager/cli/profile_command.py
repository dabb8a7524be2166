"""`equipoise profile`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time

import click

from manager.cli.options import (
    ADMIN_TOKEN_FILE,
    CLIENT_SETTINGS,
    TOKEN_VARIABLE,
    Failure,
    OnePage,
    connect,
    with_settings,
)
from manager.cli.signals import stop_signal
from manager.cli.sweep import Sweep, Swept
from manager.cli.sweep_checks import SweepTarget, Timing, examine
from manager.cli.sweep_report import SweepReport, remarks, report_json, report_of, table_of
from manager.control.knee import BOUNDS, DEFAULT_RULES, KneeRules
from manager.model.cpus import parse_cpus
from manager.protocol.client import API, ManagerClient
from manager.settings import Settings
from manager.terminal import progress, say, say_json, show

_MOST_WAYS = 64

_CACHE_EPILOG = """
WHAT IT DOES
  Gives APP so many ways of the last-level cache of its own, one number after the other, under the load that it has now,
  and compares its response times: what the cache is worth to it, and how much of it is enough. It changes what is
  registered as the application's `cache`, as anybody may; the agents carry that out, and it waits until they report
  it. After each change response times do not count for --settle seconds, then those of --seconds do, in whole slots.

  It goes from many ways to few. So the application is harmed last, and what piles up with too few ways is not counted
  against more; and ways that it loses are filled by others only under load, for which --settle must be long enough.
  With few ways the SLA may be missed. With an application on several hosts it is swept on all at once, if their caches
  are alike; the response times are those of all together, as its SLA is judged.

  The former value is put back at the end, on an error, on Ctrl-C, SIGTERM and SIGHUP. Should it be killed otherwise,
  the command that is printed first does it. When somebody else changes the application meanwhile, it ends; when that
  changed its `cache`, that stays.

NEEDS
  A host with cache allocation (`equipoise doctor`, cache-allocation) with "cache": "on" in mode enforce; an SLA, of
  which the percentile is judged; critical VMs that run; response times, and load that stays as it is. What other VMs
  do with the cache counts as well: without any that fill it, ways that are taken away lose nothing. Keep others from
  changing what they do meanwhile, `auto` of other applications among them. A policy that follows response times gives
  the application more weight as they rise; `priority` shows what the cache alone does.

OUTPUT
  A line for each number of ways: response times, rate, p95 and p99 of all of them together; `curve` is a line through
  the medians of the slots that never rises, as more ways never hurt. The knee is the fewest ways from which on more
  bring at most --knee percent of what all of them bring. There is none where the response time does not depend on the
  ways, by more than noise. With --json an object of the same: steps (ways, count, rate_rps, p95_ms, p99_ms, time_ms of
  the SLA's percentile, windows_ms, fitted_ms, lacks), knee, gain_ms, why, fewest_for_sla, ended, restored. Progress
  goes to standard error. Exit status 1 if it ended early or the former value could not be put back.

EXAMPLES
  equipoise profile cache shop --dry-run
  equipoise profile cache shop
  equipoise profile cache shop --ways 2,4,8 --seconds 120 --settle 20
  equipoise profile cache shop --ways 2-11 --yes --json > shop.json
"""


@click.group()
def profile() -> None:
    """Measure what a resource is worth to an application."""


def _parse_ways(_context: click.Context, _parameter: click.Parameter, text: str) -> frozenset[int]:
    try:
        ways = parse_cpus(text)  # the same grammar
    except ValueError:
        ways = frozenset({0})
    if ways and not 1 <= min(ways) <= max(ways) <= _MOST_WAYS:
        raise click.BadParameter(f"{text!r} is refused: use numbers from 1 to {_MOST_WAYS}, such as 2-11 or 2,4,6")
    return ways


@profile.command("cache", cls=OnePage, epilog=_CACHE_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("application", metavar="APP")
@click.option("--ways", default="", metavar="LIST", callback=_parse_ways, help="Such as 2-11 or 2,4,6. [default: all]")
@click.option(
    "--seconds",
    type=click.FloatRange(1, 3600),
    default=30,
    show_default=True,
    metavar="N",
    help="So long each is measured.",
)
@click.option(
    "--settle",
    type=click.FloatRange(0, 600),
    default=10,
    show_default=True,
    metavar="N",
    help="So long nothing counts before.",
)
@click.option(
    "--knee",
    type=click.FloatRange(100 * BOUNDS["share"][0], 100 * BOUNDS["share"][1]),
    default=100 * DEFAULT_RULES.share,
    show_default=True,
    metavar="PERCENT",
    help="What more ways may still bring beyond it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def cache_command(
    settings: Settings,
    application: str,
    ways: frozenset[int],
    seconds: float,
    settle: float,
    knee: float,
    as_json: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Sweep the cache ways of APP under its present load, and find the fewest that are enough."""
    client = connect(settings)
    with stop_signal(signal.SIGHUP) as stop:
        timing = Timing(time.monotonic, stop.wait, time.sleep)
        target = examine(client, application, ways, timing)
        command = restore_command(settings, target)
        length_s = len(target.ways) * (settle + seconds + 4 * target.slot_s)
        numbers = ", ".join(map(str, target.ways))
        say(f"{application} on {', '.join(target.hosts)}: {numbers} ways, about {length_s / 60:.0f} min", err=True)
        say(f"Its cache is {target.former or 'none of its own'}; should this be killed: {command}", err=True)
        for line in target.warnings:
            say(line, err=True)
        if dry_run:
            say("Nothing was changed.", err=True)
            return
    if not yes:
        click.confirm("With few ways the SLA may be missed. Go on?", abort=True, err=True)
    with stop_signal(signal.SIGHUP) as stop:
        swept = _sweep(client, target, Timing(time.monotonic, stop.wait, time.sleep), settle, seconds)
    report = report_of(target, swept, KneeRules(share=knee / 100), command)
    _print(report, as_json)
    if swept.ended or swept.left:
        raise Failure(swept.left or swept.ended)


def restore_command(settings: Settings, target: SweepTarget) -> str:
    """What puts the former value back, for a shell."""
    file = settings.text("token_file") or str(settings.state_dir / ADMIN_TOKEN_FILE)
    token = f"${TOKEN_VARIABLE}" if TOKEN_VARIABLE in os.environ else f"$(cat {shlex.quote(file)})"
    url = f"{settings.text('manager_url').rstrip('/')}{API}/applications/{target.application}"
    body = json.dumps({"cache": target.former})
    headers = f"-H \"Authorization: Bearer {token}\" -H 'Content-Type: application/json'"
    return f"curl -X PATCH {headers} {shlex.quote(url)} -d {shlex.quote(body)}"


def _sweep(client: ManagerClient, target: SweepTarget, timing: Timing, settle_s: float, seconds: float) -> Swept:
    with progress("allocations", len(target.ways)) as bar:
        return Sweep(client, target, timing, lambda text, done: bar.update(done, text)).run(settle_s, seconds)


def _print(report: SweepReport, as_json: bool) -> None:
    if as_json:
        say_json(report_json(report))
        return
    show(table_of(report))
    for line in remarks(report):
        say(line)
