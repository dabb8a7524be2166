"""The command line of deploy/reproduce."""

from __future__ import annotations

import json
import signal
from collections.abc import Collection, Sequence
from pathlib import Path
from types import FrameType

import click
from rich.console import Console
from rich.table import Table

from deploy.reproduction.catalogue import CATALOGUE, NOT_HERE, select
from deploy.reproduction.experiment import Experiment, ExperimentKind, RunSetting
from deploy.reproduction.reproduction_report import COMMAND, report_html, report_json, report_text
from deploy.reproduction.reproduction_run import ReproductionRun, duration_text
from deploy.reproduction.result_folder import TOP, ResultFolder, code_digest
from manager.errors import EquipoiseError

DEFAULT_FOLDER = TOP / "build" / "reproduction"
INTERRUPTED = 130


@click.command(context_settings={"show_default": True, "max_content_width": 100})
@click.option(
    "--quick",
    is_flag=True,
    help="Coarser, within a minute: without VMs, booted kernels and long benchmarks, unless --only names them.",
)
@click.option(
    "--list", "only_list", is_flag=True, help="List the experiments and what is not reproduced, and run nothing."
)
@click.option("--only", multiple=True, metavar="NAME", help="Run this experiment alone; may be repeated.")
@click.option(
    "--without",
    multiple=True,
    type=click.Choice([kind.value for kind in ExperimentKind]),
    help="Leave out experiments of this kind; may be repeated.",
)
@click.option("--again", is_flag=True, help="Run what has a result already, too.")
@click.option("--seed", type=click.IntRange(0, 2**31), default=1, help="Of all that is random.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_FOLDER,
    metavar="FOLDER",
    show_default="build/reproduction",
    help="Where results and report go; what is there already is shown, and not run again.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: the report, or with --list the list.")
def main(
    quick: bool,
    only_list: bool,
    only: Sequence[str],
    without: Sequence[str],
    again: bool,
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Run every figure and table of the studies that this machine can carry, and write a report beside their"
    " numbers."""
    try:
        experiments = [one for one in select(only) if one.kind.value not in without]
        if only_list:
            _list(experiments, as_json)
            return
        if not experiments:
            raise click.UsageError("--only and --without leave no experiment")
        folder = ResultFolder(out)
        console = Console(stderr=True, highlight=False)
        run = ReproductionRun(folder, RunSetting(quick, seed), code_digest(), console.print, again, bool(only))
        interrupted = _play(run, experiments, [one for one in CATALOGUE if one not in experiments])
        report = report_json([run.runs[name] for name in _ordered(run.runs)], run.setting, run.code)
        folder.write("report.json", report_text(report))
        page = folder.write("report.html", report_html(report))
    except EquipoiseError as error:
        raise SystemExit(f"{COMMAND}: {error}") from error
    if as_json:
        click.echo(report_text(report), nl=False)
    else:
        _summarise(report["experiments"], page)
    if interrupted:
        console.print(
            f"{COMMAND}: interrupted; what is done is kept, and the same command goes on from there", soft_wrap=True
        )
        raise SystemExit(INTERRUPTED)
    if run.failed:
        raise SystemExit(f"{COMMAND}: failed: {', '.join(run.failed)}; the report says why")


def _ordered(names: Collection[str]) -> list[str]:
    """In the order of the catalogue; others last."""
    known = [experiment.name for experiment in CATALOGUE]
    return sorted(names, key=lambda name: known.index(name) if name in known else len(known))


def _play(run: ReproductionRun, experiments: Sequence[Experiment], left_out: Sequence[Experiment]) -> bool:
    """Whether it was interrupted."""
    try:
        run.play(experiments, left_out)
    except KeyboardInterrupt:
        return True
    return False


def _list(experiments: Sequence[Experiment], as_json: bool) -> None:
    if as_json:
        bodies: list[dict[str, object]] = [
            {
                "name": one.name,
                "study": one.study.value,
                "figure": one.figure,
                "claim": one.claim,
                "kind": one.kind.value,
            }
            | {"quick_s": one.quick_s or None, "full_s": one.full_s, "lacks": one.lacks()}
            for one in experiments
        ]
        click.echo(json.dumps(bodies, indent=1))
        return
    table = Table("experiment", "study and figure", "kind", "quick", "full", "here", box=None)
    for one in experiments:
        quick = duration_text(one.quick_s) if one.quick_s else "left out"
        where = f"{one.study.value}: {one.figure}"
        table.add_row(one.name, where, one.kind.value, quick, duration_text(one.full_s), one.lacks() or "can run")
    console = Console(width=160, highlight=False)
    console.print(table)
    quick_s, full_s = sum(one.quick_s for one in experiments), sum(one.full_s for one in experiments)
    console.print(f"\nAll: quick {duration_text(quick_s)}, full {duration_text(full_s)}. Not reproduced:")
    for missing in NOT_HERE:
        console.print(f"  {missing.study.value}: {missing.figure}: {missing.reason}")


def _summarise(bodies: Sequence[dict[str, object]], page: Path) -> None:
    table = Table("experiment", "figure", "kind", "result", box=None)
    for body in bodies:
        table.add_row(
            *(f"{body[key]}" for key in ("name", "figure", "kind")), f"{body.get('agreement', body['state'])}"
        )
    console = Console(width=120, highlight=False)
    console.print(table)
    console.print(f"report: {page}", soft_wrap=True)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # the first is ignored where a shell starts this in the background
        signal.signal(number, _interrupt)
    main(prog_name=COMMAND)
