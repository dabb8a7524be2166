"""`equipoise sim calibrate`, `equipoise sim fits` and `equipoise sim loads`: the twin of a host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from manager.cli.fits_command import refuse_impossible
from manager.cli.options import ManPage, NumberRange, WrittenFile, json_option
from manager.cli.recording_files import read_recording
from manager.errors import SettingsError
from manager.model.registration import VmClass
from manager.private import replace_file
from manager.replay.recording import Recording
from manager.sim.compare import check_policy
from manager.sim.oracle import ORACLE
from manager.sim.scenario_text import scenario_text
from manager.sim.twin import Twin, calibrate, steps
from manager.sim.twin_admission import NewVm, may_come
from manager.sim.twin_effort import Effort
from manager.sim.twin_loads import runs_of, simulated_table
from manager.sim.twin_report import (
    admission_json,
    admission_table,
    loads_json,
    loads_table,
    refusal_lines,
    twin_json,
    twin_tables,
)
from manager.terminal import output, progress, say

_CALIBRATE_EPILOG = """
RECORDING
  A file of `equipoise record` with four minutes or more under one policy; the longer, the better. Where the policy or
  the mode changed, the latest part counts.

OUTPUT
  The first 60 % of the recording is fitted: CPU time of requests by tier, how it varies, what passes outside the VMs,
  and the scheduler's delays. Then the policy in force is simulated over the whole of it, and in the rest the SLA's
  percentile compared with that measured, in windows of 30 s and 200 response times or more. Applications whose error
  is above 25 % in the median, or above 75 % in the 90th percentile, are not predicted, and neither are those with too
  few response times; the reason is printed. --out writes the scenario. Everything but the measured percentiles is
  simulated.

EXAMPLES
  equipoise record monday.jsonl --since 1h
  equipoise sim calibrate monday.jsonl --out monday.toml
  equipoise sim compare monday.toml --policy fair --policy priority --policy auto
  equipoise sim calibrate monday.jsonl --json | jq '.applications[].error'
"""

_FITS_EPILOG = """
RECORDING
  As of `equipoise sim calibrate`, which is done first.

THE VM
  --vcpus, and what it does: batch VMs and critical ones want --demand pCPUs, by default all their vCPUs always. A
  critical VM --like an application (or tier: shop/db) serves requests that take what that one's take, with its SLA, at
  --rate; by default as many as each of that one's VMs.

OUTPUT
  The verdict, yes, no or unsure, with its reasons: no, where an SLA would not be met by its whole interval, would be
  violated in 5 points more of the intervals, or where one that is not met now gets worse. Unsure, where a target is
  within an interval, or nothing is predicted of an application. Then the SLA's percentile of each application with and
  without the VM. All of it is simulated.

EXAMPLES
  equipoise sim fits monday.jsonl --class batch --vcpus 4 --demand 2.5
  equipoise sim fits monday.jsonl --class critical --vcpus 2 --like shop/web --rate 40
  equipoise sim fits monday.jsonl --class batch --vcpus 8 --policy isolation --json | jq -r .verdict
"""

_LOADS_EPILOG = """
RECORDING
  As of `equipoise sim calibrate`, which is done first.

OUTPUT
  The interference table of APP as the host's twin predicts it, for loads and batch VMs that never came: APP at 50, 75,
  100, 125, 150 and 200 % of its mean load in the recording, each for five minutes, beside batch VMs that want none, 25,
  50, 95 and 100 % of all pCPUs in place of those of the recording. A load counts where it meets the SLA with its whole
  interval, and batch VMs lose no more of what they want than the column says; nothing above a load that does not
  counts. All of it is simulated. Where `equipoise profile table` knows a load, that was measured: believe it.

EXAMPLES
  equipoise record monday.jsonl --since 1h
  equipoise sim loads monday.jsonl shop
  equipoise sim loads monday.jsonl shop --json | jq '.rows[] | select(.batch == "full")'
"""

seeds_option = click.option(
    "--seeds", type=click.IntRange(2, 100), default=5, metavar="N", help="Runs of each policy. [default: 5]"
)


@click.command(cls=ManPage, epilog=_CALIBRATE_EPILOG)
@click.argument("recording", metavar="RECORDING")
@click.option("--out", type=WrittenFile(), metavar="SCENARIO", help="Write the twin to this file, as a scenario.")
@seeds_option
@json_option
def calibrate_command(recording: str, out: Path | None, seeds: int, as_json: bool) -> None:
    """Make a host's twin from a RECORDING, and state its error."""
    twin = make_twin(read_recording(recording), seeds)
    if out is not None:
        _write(twin, out)
    output(as_json, twin_json(twin), *twin_tables(twin), *refusal_lines(twin.refused), *twin.observed.notes)
    if out is not None:
        say(f"scenario written to {out}", err=True)


@click.command(cls=ManPage, epilog=_FITS_EPILOG)
@click.argument("recording", metavar="RECORDING")
@click.option("--class", "vm_class", required=True, type=click.Choice([str(one) for one in VmClass]), help="Its class.")
@click.option("--vcpus", required=True, type=click.IntRange(1, 256), metavar="N", help="Its vCPUs.")
@click.option(
    "--demand",
    type=NumberRange(0.01, 256),
    metavar="PCPUS",
    help="CPU seconds a second that it wants. [default: all its vCPUs]",
)
@click.option("--like", default="", metavar="APPLICATION[/TIER]", help="It serves requests as that one does.")
@click.option(
    "--rate", type=NumberRange(0.01, 1e5), metavar="RPS", help="Requests per second. [default: as one of its VMs]"
)
@click.option("--policy", metavar="POLICY", help="An installed policy. [default: the one in force]")
@seeds_option
@json_option
def fits(
    recording: str,
    vm_class: str,
    vcpus: int,
    demand: float | None,
    like: str,
    rate: float | None,
    policy: str | None,
    seeds: int,
    as_json: bool,
) -> None:
    """Say whether a VM may come to the host of a RECORDING, and what becomes of everybody's response times."""
    if rate is not None and not like:
        raise click.UsageError("--rate goes with --like only")
    refuse_impossible(vm_class, vcpus, demand, like)
    if policy == ORACLE:
        raise SettingsError(f"policy {ORACLE!r} is refused: it knows the future of scenarios only")
    if policy is not None:
        check_policy(policy)
    twin = make_twin(read_recording(recording), seeds)
    vm = NewVm(VmClass(vm_class), vcpus, demand, like, rate)
    with progress("with the VM", seeds) as bar:
        found = may_come(twin, vm, policy or twin.observed.policy, on_step=bar.advance)
    output(
        as_json,
        admission_json(found, twin),
        f"simulated verdict: {found.verdict}",
        *(f"  {reason}" for reason in found.reasons),
        admission_table(found, twin),
    )


@click.command(cls=ManPage, epilog=_LOADS_EPILOG)
@click.argument("recording", metavar="RECORDING")
@click.argument("application", metavar="APP")
@seeds_option
@json_option
def loads(recording: str, application: str, seeds: int, as_json: bool) -> None:
    """Predict how much load APP stands beside batch VMs on the host of a RECORDING."""
    twin = make_twin(read_recording(recording), seeds)
    with progress("loads", runs_of(twin)) as bar:
        table = simulated_table(twin, application, on_step=bar.advance)
    output(as_json, loads_json(table, twin), loads_table(table, twin))


def make_twin(recording: Recording, seeds: int) -> Twin:
    """The twin of a recording, with a progress bar. Raises TwinRefused."""
    effort = Effort(seeds=seeds)
    with progress("calibrating", steps(effort)) as bar:
        return calibrate(recording, effort, on_step=bar.advance)


def _write(twin: Twin, file: Path) -> None:
    scenario = replace(twin.scenario, name=file.stem)
    try:
        replace_file(file, scenario_text(scenario).encode())
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
