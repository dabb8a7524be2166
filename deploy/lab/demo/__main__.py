"""The demonstrations' command line."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.console import Console

from deploy.lab.demo import autopilot, phases, resources, spike
from deploy.lab.demo.autopilot_report import print_autopilot_report
from deploy.lab.demo.demo_report import print_report
from deploy.lab.demo.resources_report import print_resources_report
from deploy.lab.demo.scene import BatchShape, parse_shape
from deploy.lab.demo.spike_report import print_spike_report
from deploy.lab.guest import DEFAULT_BASE
from deploy.lab.lab_lock import only_user
from manager.cli.options import NumberRange, PictureFile, WrittenFile
from manager.errors import EquipoiseError


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option(
    "--scenario",
    type=click.Choice(["phases", "spike", "autopilot", "resources"]),
    default="phases",
    help="What to demonstrate.",
)
@click.option(
    "--duration",
    type=NumberRange(3, 3600),
    metavar="S",
    help=f"Length of each phase ({phases.DEFAULT_PHASE_S:g}, of `autopilot` {autopilot.DEFAULT_PHASE_S:g}, of"
    f" `resources` {resources.DEFAULT_PHASE_S:g}) or of each"
    f" run ({spike.DEFAULT_RUN_S:g}).",
)
@click.option("--json", "json_file", type=WrittenFile(), metavar="FILE", help="Write JSON.")
@click.option(
    "--picture",
    type=PictureFile(),
    metavar="FILE",
    help="Where `spike` and `autopilot` draw their picture (.png, .svg or .pdf)"
    f"  [default: {DEFAULT_BASE}/SCENARIO.png]",
)
@click.option(
    "--batch",
    "shape",
    callback=lambda _context, _parameter, text: _shape(text),
    metavar="NxM",
    help="Of `phases`: N batch VMs of M vCPUs each.  [default: 2x2]",
)
@click.option("--keep", is_flag=True, help="Leave VMs and Equipoise running at the end, and print how to reach them.")
@click.option("--no-wait", is_flag=True, help="Fail if another process uses the lab, instead of waiting for its end.")
def main(
    scenario: str,
    duration: float | None,
    json_file: Path | None,
    picture: Path | None,
    shape: BatchShape | None,
    keep: bool,
    no_wait: bool,
) -> None:
    """Show on real VMs what Equipoise does for services on a full host; `deploy/demo --help` says more."""
    _refuse_unused(scenario, shape, picture, keep=keep)
    console = Console(width=None if sys.stdout.isatty() else 140)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` has one ignored
            signal.signal(number, _interrupt)
    try:
        with ExitStack() as stack:
            stack.enter_context(only_user("deploy/demo", wait=not no_wait))
            if scenario == "spike":
                result = spike.play(console, stack, duration or spike.DEFAULT_RUN_S, keep)
            elif scenario == "autopilot":
                result = autopilot.play(console, stack, duration or autopilot.DEFAULT_PHASE_S, keep)
            elif scenario == "resources":
                result = resources.play(console, duration or resources.DEFAULT_PHASE_S)
            else:
                result = phases.play(console, stack, duration or phases.DEFAULT_PHASE_S, keep, shape or BatchShape())
    except EquipoiseError as error:
        raise SystemExit(f"deploy/demo: {error}") from error
    if json_file:
        json_file.write_text(json.dumps(result, indent=2) + "\n")
    failed = not result.get("calibrated", True)
    if scenario == "phases":
        print_report(console, result)
    elif scenario == "resources":
        print_resources_report(console, result, resources.UNITS)
    else:
        _report(console, result, picture or DEFAULT_BASE / f"{scenario}.png")
    sys.exit(1 if failed or not (result["restored"] or keep) else 0)


def _refuse_unused(scenario: str, shape: BatchShape | None, picture: Path | None, *, keep: bool) -> None:
    """Raises UsageError for what the scenario has no use of."""
    if keep and scenario == "resources":
        raise click.UsageError("--keep: `resources` has other VMs for each resource, so none are left at the end")
    if shape and scenario != "phases":
        raise click.UsageError(f"--batch is of `phases`: `{scenario}` has batch VMs of its own")
    if picture and scenario in {"phases", "resources"}:
        raise click.UsageError(f"--picture is of `spike` and `autopilot`: `{scenario}` draws none")


def _report(console: Console, result: dict[str, Any], picture: Path) -> None:
    """Draw the picture and print the report of a scenario that has one."""
    from deploy.lab.demo.picture import draw, draw_autopilot  # noqa: PLC0415 - it writes caches when it is imported

    if result["scenario"] == "spike":
        draw(result, picture)
        print_spike_report(console, result)
        console.print(f"picture of p95, weights and CPU over time: {picture}", highlight=False)
        return
    print_autopilot_report(console, result)
    if result["calibrated"]:
        draw_autopilot(result, picture)
        console.print(f"picture of p95 and batch VMs' CPU over time: {picture}", highlight=False)


def _shape(text: str | None) -> BatchShape | None:
    try:
        return None if text is None else parse_shape(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
