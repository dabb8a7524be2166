"""`equipoise profile pair`: the colocation map of two applications."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from manager.cli.load_options import GroupedCommand, driven_load, load_options
from manager.cli.load_processes import MadeLoad, run_loads
from manager.cli.options import (
    CLIENT_SETTINGS,
    Failure,
    NumberRange,
    ObjectName,
    PictureFile,
    WrittenFile,
    connect,
    json_option,
    stop_signal,
    with_settings,
)
from manager.cli.pair_record import (
    MeasuredPair,
    PairRecord,
    cell,
    names_of,
    pair_json,
    rates_of,
    read_pairs,
    report,
    write_pairs,
)
from manager.cli.profile_drive import DriveTarget, examine_drive, objection, watched
from manager.cli.sweep import needed
from manager.control.load_search import LoadVerdict, judged
from manager.control.pair_map import PAIR_LEVELS, next_pair, pair_map
from manager.errors import EquipoiseError, SettingsError
from manager.load import LoadSpec, Phase
from manager.load.spec import RANGES
from manager.model.numbers import digits
from manager.model.units import per_second
from manager.model.window import SlaState
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import output, progress, say

_PEAK = NumberRange(0.01, RANGES["rate_rps"][1])
RunLoads = Callable[[Sequence[LoadSpec], threading.Event], list[MadeLoad]]

_EPILOG = """
WHAT IT DOES
  Makes load for two applications that share a host, at every pair of loads, and says at which both, one or none of
  them meet their SLAs. First it measures the peak of each alone, in a closed loop; --peak-a and --peak-b take a rate
  instead, such as the largest load that meets the SLA by `equipoise profile load`. The loads are --levels even parts of
  these, --seconds each. It goes from little load to much, and leaves out what is above a pair at which none of the two
  met its SLA.

  The percentiles are those that this program sees as a client; each load is made by a process of its own, on as many
  CPUs as there are. Users of both suffer meanwhile. It ends by itself when the SLA of a third application on these
  hosts is violated or at risk (--stop-when), when an agent falls silent, or when the manager does not answer. What was
  measured so far is printed then, and on Ctrl-C, SIGTERM and SIGHUP. With --state it is also kept, and the same command
  goes on from there.

OUTPUT
  The map, with a row for each load of A and a column for each load of B: both, the name of the one that meets its SLA,
  none, or ? where the load generator was too slow to judge. (none) is known from less load. With --json an object with
  settings, peaks_rps, levels, pairs (levels, rates_rps, percentiles_ms, verdicts, verdict), map, most_together and
  ended. Exit status 1 if it ended early.

EXAMPLES
  equipoise profile pair shop search --drive-a memcached://192.0.2.11 --drive-b http://192.0.2.12/
  equipoise profile pair shop search --drive-a memcached://192.0.2.11 --peak-a 8000 --drive-b http://192.0.2.12/ \\
    --peak-b 900 --levels 10 --state pair.state --picture pair.svg
"""


class _PairCommand(GroupedCommand):
    groups: Mapping[str, tuple[str, ...]] = {
        "Loads": ("--drive-a", "--drive-b", "--peak-a", "--peak-b", "--levels", "--seconds", "--settle"),
        "Run": ("--stop-when", "--state", "--yes"),
        **{name: options for name, options in GroupedCommand.groups.items() if name != "Load"},
    }


def _seconds(name: str, least: float, most: float, default: float, text: str) -> Callable[[Any], Any]:
    span = NumberRange(least, most)
    return click.option(name, type=span, default=default, show_default=True, metavar="S", help=text)


@click.command("pair", cls=_PairCommand, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("first", type=ObjectName(), metavar="A")
@click.argument("second", type=ObjectName(), metavar="B")
@click.option("--drive-a", required=True, metavar="TARGET", help="Of A: http://HOST[:PORT]/PATH or memcached://HOST.")
@click.option("--drive-b", required=True, metavar="TARGET", help="Of B, likewise.")
@click.option("--peak-a", type=_PEAK, metavar="RPS", help="Largest load of A. [default: measured]")
@click.option("--peak-b", type=_PEAK, metavar="RPS", help="Largest load of B. [default: measured]")
@click.option(
    "--levels", type=click.IntRange(*PAIR_LEVELS), default=5, show_default=True, metavar="N", help="Loads of each."
)
@_seconds("--seconds", 2, 3600, 10.0, "Time of each pair.")
@_seconds("--settle", 0, 600, 2.0, "Time before that which does not count.")
@click.option(
    "--stop-when",
    type=click.Choice(["at-risk", "violated"]),
    default="at-risk",
    show_default=True,
    help="State of a third application's SLA that ends it.",
)
@click.option("--state", type=WrittenFile(), metavar="FILE", help="Keep results here.")
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
def pair_command(
    context: click.Context,
    /,
    settings: Settings,
    first: str,
    second: str,
    picture: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Map at which pairs of loads the applications A and B both meet their SLAs."""
    if first == second:
        raise click.UsageError("A and B are the same application: name two")
    specs = [driven_load(context, f"--drive-{side}", options[f"drive_{side}"], options, alone=False) for side in "ab"]
    client, worst = connect(settings), SlaState(options["stop_when"].replace("-", "_"))
    targets = [examine_drive(client, name, spec, worst) for name, spec in zip((first, second), specs, strict=True)]
    _check(targets)
    record = _record(targets, options)
    length_s = (options["levels"] ** 2 + 2) * (options["seconds"] + options["settle"])
    say(f"{first} and {second}: at most about {max(length_s / 60, 1):.0f} min", err=True)
    if not options["yes"]:
        click.confirm("Their SLAs will be violated meanwhile. Go on?", abort=True, err=True)
    file = options["state"]
    with stop_signal(signal.SIGHUP) as stop, progress("pairs", options["levels"] ** 2) as bar:

        def save(new: PairRecord, line: str) -> None:
            if file:
                write_pairs(file, new)
            bar.update(len(pair_map(new.levels, new.points)), line)

        drive = PairDrive(client, targets, record, stop, run_loads, save)
        drive.run()
    record, ended = drive.record, drive.ended
    if picture:
        _draw(record, picture)
    output(as_json, pair_json(record, ended), *report(record))
    if ended:
        raise Failure(f"it ended early: {ended}")


def _check(targets: Sequence[DriveTarget]) -> None:
    """Raises Failure for two applications of which no map can be made."""
    for target in targets:
        if target.sla_ms is None:
            raise Failure(f"{target.application} has no SLA to compare with")
    if not set(targets[0].hosts) & set(targets[1].hosts):
        places = " and ".join(f"{target.application} runs on {', '.join(target.hosts)}" for target in targets)
        raise Failure(f"they share no host, so neither disturbs the other: {places}")


def _record(targets: Sequence[DriveTarget], options: Mapping[str, Any]) -> PairRecord:
    """What the state file has, or nothing measured yet. Raises SettingsError."""
    given = (options["peak_a"], options["peak_b"])
    settings = {
        "a": {**targets[0].settings, "peak_rps": given[0]},
        "b": {**targets[1].settings, "peak_rps": given[1]},
        "levels": options["levels"],
    }
    return read_pairs(options["state"], settings) if options["state"] else PairRecord(settings, options["levels"])


class PairDrive:
    """The measuring of a map. ``record`` has what was measured, ``ended`` why it ended early, or nothing."""

    def __init__(
        self,
        client: ManagerClient,
        targets: Sequence[DriveTarget],
        record: PairRecord,
        stop: threading.Event,
        run: RunLoads,
        save: Callable[[PairRecord, str], None],
    ) -> None:
        """``save`` gets each new record with a line that says what is new."""
        self._client = client
        self._targets = targets
        self._hosts = sorted({host for target in targets for host in target.hosts})
        self._names = {target.application for target in targets}
        self._stop = stop
        self._run = run
        self._save = save
        self.record = record
        self.ended = ""

    def run(self) -> None:
        """Measure what is missing."""
        try:
            while len(self.record.peaks_rps) < 2:
                self._peak(self._targets[len(self.record.peaks_rps)])
            while (levels := next_pair(self.record.levels, self.record.points)) is not None:
                self._pair(levels)
        except (EquipoiseError, Failure) as error:
            self.ended = error.message if isinstance(error, Failure) else str(error)

    def _peak(self, target: DriveTarget) -> None:
        side = "ab"[len(self.record.peaks_rps)]
        peak_rps, why = self.record.settings[side]["peak_rps"], ""
        if not peak_rps:
            [made] = self._made([replace(target.load, closed_loop=True)], f"the peak of {target.application}")
            peak_rps, why = made.rate_rps, made.why
            if not made.answered:
                raise Failure(f"{target.load.target_text} answered no request")
        self.record = replace(self.record, peaks_rps=(*self.record.peaks_rps, peak_rps))
        limit = f" ({why}: the server may take more)" if why else ""
        self._save(self.record, f"{target.application}: peak {per_second(peak_rps)}{limit}")

    def _pair(self, levels: tuple[int, int]) -> None:
        rates_rps = rates_of(self.record, levels)
        specs = [
            replace(target.load, schedule=(Phase(target.load.schedule_s, rate_rps),))
            for target, rate_rps in zip(self._targets, rates_rps, strict=True)
        ]
        label = " beside ".join(map(per_second, rates_rps))
        first, second = self._made(specs, label)
        sides = [_side(target, made) for target, made in zip(self._targets, (first, second), strict=True)]
        pair = MeasuredPair(
            levels,
            (first.rate_rps, second.rate_rps),
            (sides[0][0], sides[1][0]),
            (sides[0][1], sides[1][1]),
            (first.why, second.why),
        )
        self.record = replace(self.record, pairs=(*self.record.pairs, pair))
        values = ("-" if ms is None else f"{digits(ms)} ms" for ms in pair.percentiles_ms)
        self._save(self.record, f"{label}: {' and '.join(values)}, {cell(self.record, pair.point.verdict)}")

    def _made(self, specs: Sequence[LoadSpec], label: str) -> list[MadeLoad]:
        """Raises EquipoiseError and Failure for what ends the drive; nothing of the loads counts then."""
        if reason := "interrupted" if self._stop.is_set() else self._objection():
            raise Failure(reason)
        with watched(self._objection, self._stop) as reasons:
            try:
                made = self._run(specs, self._stop)
            except Failure:
                if not self._stop.is_set():
                    raise
        if self._stop.is_set():
            raise Failure(f"{reasons[0] if reasons else 'interrupted'}; stopped at {label}")
        return made

    def _objection(self) -> str:
        return objection(self._client, self._hosts, self._names, self._targets[0].worst)


def _side(target: DriveTarget, made: MadeLoad) -> tuple[float | None, LoadVerdict]:
    """The SLA's percentile in ms, and the verdict."""
    value_us = made.histogram.percentile_us(target.percentile)
    enough = made.histogram.count >= needed(target.percentile)
    percentile_ms = value_us / 1000 if value_us is not None and enough else None
    return percentile_ms, judged(percentile_ms, target.sla_ms, made.shortfall, made.own)


def _draw(record: PairRecord, file: Path) -> None:
    try:
        from manager.cli.pair_picture import draw_pairs  # noqa: PLC0415 - only who wants a picture needs matplotlib
    except ImportError as error:
        raise SettingsError("--picture needs matplotlib: pip install matplotlib") from error
    if len(record.peaks_rps) < 2:
        return
    axes = [[rates_of(record, (step, step))[side] for step in range(1, record.levels + 1)] for side in (0, 1)]
    try:
        draw_pairs(pair_map(record.levels, record.points), names_of(record), (axes[0], axes[1]), file)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
    say(f"picture: {file}", err=True)
