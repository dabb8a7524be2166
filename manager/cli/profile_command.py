"""`equipoise profile`."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import click

from manager.cli.options import (
    ADMIN_TOKEN_FILE,
    CLIENT_SETTINGS,
    TOKEN_VARIABLE,
    Decorator,
    Failure,
    ManPageGroup,
    NumberRange,
    ObjectName,
    connect,
    json_option,
    stop_signal,
    with_settings,
)
from manager.cli.profile_load import load_command
from manager.cli.profile_pair import pair_command
from manager.cli.profile_table import table_command
from manager.cli.sweep import Sweep, SweepStep, SweepTarget, Swept, Timing, examine
from manager.control.knee import BOUNDS, DEFAULT_RULES, Curve, KneeRules, curve_of
from manager.model.cpus import parse_cpus
from manager.model.numbers import digits
from manager.protocol.client import API
from manager.settings import Settings
from manager.terminal import Table, output, progress, say

_MOST_WAYS = 64
_STEADY = 1.25
"""Rates that differ by more than this factor are different loads."""
_KNEE_PERCENT = (100 * BOUNDS["share"][0], 100 * BOUNDS["share"][1])

_CACHE_EPILOG = """
WHAT IT DOES
  Gives APP different numbers of ways of the last-level cache for itself, under its present load, and compares its
  response times: what the cache is worth to it, and how much is enough. It changes the registered `cache` of the
  application and waits until the agents report that it is in force. After each change, response times do not count for
  --settle seconds; then those of --seconds do, in whole slots.

  It goes from many ways to few. So the application is harmed last, and requests that pile up with too few ways do not
  count against more; but others fill the ways that it loses only under load, for which --settle must be long enough.
  With few ways the SLA may be violated. An application on several hosts, whose caches must be alike, is swept on all at
  once; as for its SLA, their response times count together.

  The former value is restored at the end, on an error, on Ctrl-C, SIGTERM and SIGHUP. After any other end, the command
  that is printed first restores it. The sweep ends if another user changes the application; a changed `cache` stays.

NEEDS
  A host with cache allocation (`equipoise doctor`, cache-allocation), "cache": "on" and mode enforce; an SLA, whose
  percentile is judged; running critical VMs; response times under steady load. Other VMs count as well: without any
  that fill the cache, taking ways away changes nothing. Keep their behaviour the same meanwhile, `auto` caches of other
  applications included. A policy that follows response times raises the application's weight as they rise; `priority`
  shows the effect of the cache alone.

OUTPUT
  For each number of ways: response times, rate, p95 and p99; `curve` fits the medians of the slots and never rises, as
  more ways never hurt. The knee is the fewest ways beyond which more bring at most --knee percent of what all bring.
  There is none if the response time does not depend on the ways by more than noise. With --json an object with steps
  (ways, count, rate_rps, p95_ms, p99_ms, percentile_ms of the SLA's percentile, windows_ms, fitted_ms, lacks), knee,
  gain_ms, why, fewest_for_sla, ended, restored. Progress goes to standard error. Exit status 1 if it ended early or the
  former value was not restored.

EXAMPLES
  equipoise profile cache shop --dry-run
  equipoise profile cache shop
  equipoise profile cache shop --ways 2,4,8 --seconds 120 --settle 20
  equipoise profile cache shop --ways 2-11 --yes --json > shop.json
"""


@dataclass(frozen=True)
class SweepReport:
    """A sweep and the curve through it; ``command`` restores the former value."""

    target: SweepTarget
    swept: Swept
    rules: KneeRules
    command: str

    @cached_property
    def curve(self) -> Curve:
        """The curve with its knee."""
        return curve_of({step.ways: step.times_ms for step in self.swept.steps}, self.rules)

    @property
    def steps(self) -> list[SweepStep]:
        """From few ways to many."""
        return sorted(self.swept.steps, key=lambda step: step.ways)

    @property
    def fewest_for_sla(self) -> int | None:
        """The fewest ways from which on the SLA was always met; None where it was violated with the most."""
        fewest = None
        for step in reversed(self.steps):
            judged_ms = percentile_ms(step, self.target.percentile)
            if judged_ms is None:
                continue
            if judged_ms > self.target.sla_ms:
                break
            fewest = step.ways
        return fewest


@click.group(cls=ManPageGroup)
def profile() -> None:
    """Measure what load and cache do to an application's response times."""


profile.add_command(load_command)
profile.add_command(pair_command)
profile.add_command(table_command)


def _parse_ways(_context: click.Context, _parameter: click.Parameter, text: str) -> frozenset[int]:
    try:
        ways = parse_cpus(text)  # the same grammar
    except ValueError:
        ways = frozenset({0})
    if ways and not 1 <= min(ways) <= max(ways) <= _MOST_WAYS:
        raise click.BadParameter(f"{text!r} is refused: use numbers from 1 to {_MOST_WAYS}, such as 2-11 or 2,4,6")
    return ways


def _number(name: str, least: float, most: float, default: float, text: str, metavar: str = "N") -> Decorator:
    span = NumberRange(least, most)
    return click.option(name, type=span, default=default, show_default=True, metavar=metavar, help=text)


@profile.command("cache", epilog=_CACHE_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("application", type=ObjectName(), metavar="APP")
@click.option("--ways", default="", metavar="LIST", callback=_parse_ways, help="Such as 2-11 or 2,4,6. [default: all]")
@_number("--seconds", 1, 3600, 30, "Time to measure each.")
@_number("--settle", 0, 600, 10, "Time before that which does not count.")
@_number("--knee", *_KNEE_PERCENT, 100 * DEFAULT_RULES.share, "What more ways may still bring beyond it.", "PERCENT")
@json_option
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
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
        target = examine(client, application, ways, Timing(time.monotonic, stop.wait, time.sleep))
    command = restore_command(settings, target)
    length_s = len(target.ways) * (settle + seconds + 4 * target.slot_s)
    numbers = ", ".join(map(str, target.ways))
    for line in (
        f"{application} on {', '.join(target.hosts)}: {numbers} ways, about {length_s / 60:.0f} min",
        f"Its cache is {target.former or 'none of its own'}; to restore it after a kill: {command}",
        *target.warnings,
    ):
        say(line, err=True)
    if dry_run:
        say("Nothing was changed.", err=True)
        return
    if not yes:
        click.confirm("With few ways the SLA may be violated. Go on?", abort=True, err=True)
    with stop_signal(signal.SIGHUP) as stop, progress("allocations", len(target.ways)) as bar:
        timing = Timing(time.monotonic, stop.wait, time.sleep)
        swept = Sweep(client, target, timing, lambda text, done: bar.update(done, text)).run(settle, seconds)
    report = SweepReport(target, swept, KneeRules(share=knee / 100), command)
    output(as_json, report_json(report), table_of(report), *remarks(report))
    if swept.ended or swept.left:
        raise Failure(swept.left or swept.ended)


def restore_command(settings: Settings, target: SweepTarget) -> str:
    """The shell command that restores the former value."""
    file = settings.text("token_file") or str(settings.state_dir / ADMIN_TOKEN_FILE)
    token = f"${TOKEN_VARIABLE}" if TOKEN_VARIABLE in os.environ else f"$(cat {shlex.quote(file)})"
    url = f"{settings.text('manager_url').rstrip('/')}{API}/applications/{target.application}"
    body = json.dumps({"cache": target.former})
    headers = f"-H \"Authorization: Bearer {token}\" -H 'Content-Type: application/json'"
    return f"curl -X PATCH {headers} {shlex.quote(url)} -d {shlex.quote(body)}"


def percentile_ms(step: SweepStep, percentile: float) -> float | None:
    """Of all response times under an allocation; where only percentiles are known, their median."""
    if step.window is None:
        return None
    if step.window.ready is not None and step.window.ready.percentile == percentile:
        return median(step.times_ms)
    return step.window.percentile_ms(percentile)


def table_of(report: SweepReport) -> Table:
    """A row for each allocation, with the knee."""
    target, curve = report.target, report.curve
    percentiles = list(dict.fromkeys([95, 99, target.percentile]))
    headings = (f"p{percentile:g}" for percentile in percentiles)
    title = f"{target.application}: response times by cache ways on {', '.join(target.hosts)}"
    table = Table("ways", "response times", "rate", *headings, "curve", "SLA", "", title=title)
    for step in report.steps:
        if step.window is None:
            table.add_row(str(step.ways), *"-" * (len(table.columns) - 2))
            continue
        rate, judged_ms = step.window.rate_rps, percentile_ms(step, target.percentile)
        violated = judged_ms is not None and judged_ms > target.sla_ms
        table.add_row(
            str(step.ways),
            f"{step.window.histogram.count:,}",
            "-" if rate is None else f"{rate:.0f}/s",
            *(_ms(percentile_ms(step, percentile)) for percentile in percentiles),
            _ms(curve.fitted_ms.get(step.ways)),
            "-" if judged_ms is None else "VIOLATED" if violated else "met",
            "<- knee" if step.ways == curve.knee else "",
        )
    return table


def remarks(report: SweepReport) -> Iterator[str]:
    """What the table means, what is uncertain, and what became of the former value."""
    target, swept, fewest = report.target, report.swept, report.fewest_for_sla
    yield f"Knee, by p{target.percentile:g}: {report.curve.why}."
    judged = any(percentile_ms(step, target.percentile) is not None for step in report.steps)
    violated = "was violated with the most ways" if judged else "could not be judged"
    result = f"was met from {fewest} ways on" if fewest else violated
    yield f"The SLA, p{target.percentile:g} <= {target.sla_ms:g} ms, {result}."
    rates = [step.window.rate_rps for step in swept.steps if step.window and step.window.rate_rps]
    if rates and max(rates) > _STEADY * min(rates):
        yield f"The load varied: {min(rates):.0f}/s to {max(rates):.0f}/s."
    for step in report.steps:
        if step.lacks or not step.times_ms:
            yield f"{step.ways} ways: {step.lacks or 'too few response times to judge'}."
    yield from target.warnings
    if swept.ended:
        yield f"It ended early: {swept.ended}."
    if swept.left:
        yield f"NOT restored: {swept.left}. To restore it:"
        yield f"  {report.command}"
    elif swept.kept:
        yield f"Another user changed the cache of {target.application} meanwhile: it is left as it is."
    else:
        yield f"The cache of {target.application} is {target.former or 'none of its own'} again."


def report_json(report: SweepReport) -> dict[str, Any]:
    """The object that --json prints."""
    target, swept, curve = report.target, report.swept, report.curve
    return {
        "application": target.application,
        "hosts": list(target.hosts),
        "percentile": target.percentile,
        "sla_ms": target.sla_ms,
        "former": target.former,
        "steps": [
            {
                "ways": step.ways,
                "count": step.window.histogram.count if step.window else 0,
                "rate_rps": step.window.rate_rps if step.window else None,
                "p95_ms": percentile_ms(step, 95),
                "p99_ms": percentile_ms(step, 99),
                "percentile_ms": percentile_ms(step, target.percentile),
                "windows_ms": list(step.times_ms),
                "fitted_ms": curve.fitted_ms.get(step.ways),
                "lacks": step.lacks,
            }
            for step in report.steps
        ],
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


def _ms(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{digits(value_ms)} ms"
