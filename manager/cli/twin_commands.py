"""`equipoise sim calibrate`: the twin of a host."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from manager.cli.options import ManPage, json_option
from manager.cli.recording_files import read_recording
from manager.errors import SettingsError
from manager.private import replace_file
from manager.replay.recording import Recording
from manager.sim.scenario_text import scenario_text
from manager.sim.twin import Effort, Twin, calibrate, steps
from manager.sim.twin_report import refusal_lines, twin_json, twin_tables
from manager.terminal import output, progress, say

_FILE = click.Path(dir_okay=False, path_type=Path)

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

seeds_option = click.option(
    "--seeds", type=click.IntRange(2, 100), default=5, metavar="N", help="Runs of each policy. [default: 5]"
)


@click.command(cls=ManPage, epilog=_CALIBRATE_EPILOG)
@click.argument("recording", metavar="RECORDING")
@click.option("--out", type=_FILE, metavar="SCENARIO", help="Write the twin to this file, as a scenario.")
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
