"""`equipoise sim`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import click

from manager.cli.options import ManPageGroup, PictureFile, WrittenFile, json_option
from manager.cli.twin_commands import calibrate_command, fits, loads
from manager.errors import SettingsError
from manager.sim.compare import by_policy, by_scenario, check_policy, run_all, run_once, usual_policies, worse
from manager.sim.generate import random_scenario
from manager.sim.matrix import (
    MatrixFile,
    Table,
    complete,
    matrix_policies,
    missing,
    paretos,
    run_jobs,
    totals,
    verdicts,
)
from manager.sim.scenario import Scenario
from manager.sim.scenario_files import load_scenario, shipped
from manager.sim.sim_report import (
    comparison_table,
    matrix_table,
    pareto_table,
    run_json,
    run_tables,
    scenario_table,
    verdict_lines,
    verdict_table,
    worse_table,
)
from manager.sim.simulation import Simulation
from manager.terminal import output, progress, say

_TABLES_UP_TO = 12

_ABOUT = """
SCENARIO
  The name of a shipped scenario (`equipoise sim list`), or a TOML file as described in docs/how-to/simulator.md.

POLICY
  An installed policy; `fair:published` and `isolation:published` take the feedback law exactly as printed.
  `oracle` knows the future: the best static setting of each phase, by search, which takes some ten times as long.
"""

_RUN_EPILOG = f"""{_ABOUT}
OUTPUT
  For each application the share of intervals in which its SLA was violated, by how much, and curves of response times,
  rate and weights; for each VM its CPU time and, for batch, its progress compared with running alone. Where the
  scenario has a cache, the ways and limits of each resctrl group, and the slowdown of each VM by its share of cache and
  memory. With --json the values of every interval.

EXAMPLES
  equipoise sim run spike --policy isolation
  equipoise sim run cache-thrash --policy priority
  equipoise sim run my.toml --policy fair --json | jq '.applications[].violated_share'
"""

_COMPARE_EPILOG = f"""{_ABOUT}
OUTPUT
  A row for each scenario and policy: how long SLAs were violated and by how much, progress of batch, and number of
  changed weights. With several scenarios also the sum over all, and those in which the first policy given (default:
  `fair`) violates SLAs for longer than another.

EXAMPLES
  equipoise sim compare spike flash-crowd
  equipoise sim compare spike --policy fair --policy priority --seeds 10
  equipoise sim compare --random 200 --json > comparison.json
"""

_MATRIX_EPILOG = f"""{_ABOUT}
OUTPUT
  A row for each policy: share of the time in which SLAs were violated (mean over applications and scenarios), batch
  progress relative to `priority`, settings changed in an hour, and regret: violated share minus the oracle's. Then in
  how many scenarios `auto` is ahead of each other policy in violations and batch progress together, better in one of
  them, or behind. Then the bars that `auto` is held to, each met or not, with its numbers, as far as their policies
  were run. Only scenarios that were run under all of the policies count. With --json every run, too.

  --resume keeps each run in FILE, a line of JSON each, and does not repeat those that are there: interrupt it whenever
  you like. Delete FILE when a policy or the simulator has changed.

EXAMPLES
  equipoise sim matrix --resume matrix.jsonl --picture matrix.png
  equipoise sim matrix my.toml --random 0 --policy auto --policy priority --policy oracle
  equipoise sim matrix --random 500 --from 1000 --json > matrix.json
"""

_LIST_EPILOG = """
EXAMPLES
  equipoise sim list
  equipoise sim list --json
"""


@click.group(cls=ManPageGroup)
def sim() -> None:
    """Try policies on a simulated host: without root and KVM, hundreds of times faster than real time.

    It has the same control loop and policies as a real host. All results are labelled as simulated.
    """


@sim.command("list", epilog=_LIST_EPILOG)
@json_option
def list_command(as_json: bool) -> None:
    """List the scenarios that come with Equipoise."""
    scenarios = [load_scenario(name) for name in shipped()]
    body = [{"name": scenario.name, "summary": scenario.summary} for scenario in scenarios]
    output(as_json, body, scenario_table(scenarios))


@sim.command(epilog=_RUN_EPILOG)
@click.argument("scenario")
@click.option("--policy", required=True, metavar="POLICY", help="See POLICY.")
@click.option("--seed", type=click.IntRange(0, 2**63), metavar="N", help="Random seed. [default: the scenario's]")
@json_option
def run(scenario: str, policy: str, seed: int | None, as_json: bool) -> None:
    """Run SCENARIO under a policy and show the result."""
    loaded = load_scenario(scenario)
    check_policy(policy)
    intervals = Simulation.count_intervals(loaded)
    with progress(f"{loaded.name} under {policy}", intervals) as bar:
        result = run_once(loaded, policy, seed, bar.advance)
    output(as_json, run_json(result), *run_tables(result))


@sim.command(epilog=_COMPARE_EPILOG)
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option(
    "--policy", "policies", multiple=True, metavar="POLICY", help="See POLICY; may be repeated. [default: all]"
)
@click.option("--seeds", type=click.IntRange(1, 1000), default=1, metavar="N", help="Runs of each. [default: 1]")
@click.option(
    "--random", "made_up", type=click.IntRange(0, 100_000), default=0, metavar="N", help="N random scenarios."
)
@json_option
def compare(scenarios: tuple[str, ...], policies: tuple[str, ...], seeds: int, made_up: int, as_json: bool) -> None:
    """Run scenarios under several policies, on all cores, and compare."""
    if not scenarios and not made_up:
        raise click.UsageError("name a SCENARIO, or use --random N")
    loaded = _named_apart(scenarios, [random_scenario(number) for number in range(made_up)])
    chosen = tuple(dict.fromkeys(map(check_policy, policies))) or usual_policies()
    with progress("runs", len(loaded) * len(chosen) * seeds) as bar:
        results = run_all(loaded, chosen, seeds, bar.advance)
    single, overall = by_scenario(results), by_policy(results)
    judged = chosen[0] if policies or "fair" not in chosen else "fair"
    losses = worse(single, judged)
    body = {
        "simulated": True,
        "scenarios": [asdict(summary) for summary in single],
        "overall": [asdict(summary) for summary in overall],
        "judged": judged,
        "worse": [asdict(loss) for loss in losses],
    }
    tables = []
    if len(loaded) <= _TABLES_UP_TO:
        tables.append(comparison_table(single, "Simulated: policies side by side"))
    if len(loaded) > 1:
        tables.append(comparison_table(overall, "Simulated: over all scenarios"))
        if len(chosen) > 1:
            tables.append(worse_table(losses, judged, len(loaded)))
    output(as_json, body, *tables)


@sim.command(epilog=_MATRIX_EPILOG)
@click.argument("scenarios", nargs=-1, metavar="[SCENARIO]...")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="POLICY",
    help="See POLICY; may be repeated. [default: those that come with Equipoise, and oracle]",
)
@click.option(
    "--random",
    "made_up",
    type=click.IntRange(0, 100_000),
    default=20,
    metavar="N",
    help="N random scenarios. [default: 20]",
)
@click.option(
    "--from",
    "first",
    type=click.IntRange(0, 2**63),
    default=0,
    metavar="SEED",
    help="Seed of the first random scenario; the others follow it. [default: 0]",
)
@click.option(
    "--resume", type=WrittenFile(), metavar="FILE", help="Keep runs in FILE, and go on with those that are there."
)
@click.option(
    "--picture",
    type=PictureFile(),
    metavar="FILE",
    help="Write a picture (.png, .svg or .pdf); needs matplotlib.",
)
@json_option
def matrix(
    scenarios: tuple[str, ...],
    policies: tuple[str, ...],
    made_up: int,
    first: int,
    resume: Path | None,
    picture: Path | None,
    as_json: bool,
) -> None:
    """Run all scenarios under all policies, on all cores, and judge `auto`.

    SCENARIO: these instead of all that come with Equipoise.
    """
    draw = _drawing() if picture else None
    loaded = [load_scenario(name) for name in scenarios or shipped()]
    loaded += [random_scenario(number) for number in range(first, first + made_up)]
    chosen = tuple(dict.fromkeys(map(check_policy, policies))) or matrix_policies()
    file = MatrixFile(resume) if resume else None
    runs = list(file.runs) if file else []
    jobs = missing(loaded, chosen, runs)
    is_whole = True
    with (
        progress("runs", len(loaded) * len(chosen)) as bar,
        file.appending() if file else nullcontext(lambda _run: None) as keep,
        closing(run_jobs(jobs)) as results,
    ):
        bar.update(len(loaded) * len(chosen) - len(jobs))
        try:
            for result in results:
                keep(result)
                runs.append(result)
                bar.advance()
        except (KeyboardInterrupt, BrokenProcessPool):  # the processes are interrupted, too, maybe sooner
            is_whole = False
    table = complete(loaded, chosen, runs)
    sums, bars, standings = (totals(table), verdicts(table), paretos(table)) if table else ((), (), ())
    body = {
        "simulated": True,
        "complete": is_whole,
        "scenarios": len(table),
        "policies": [asdict(total) for total in sums],
        "pareto": [asdict(each) for each in standings],
        "verdicts": [asdict(bar) for bar in bars],
        "runs": [asdict(run) for row in table.values() for run in row.values()],
    }
    tables = [
        matrix_table(sums, len(table)),
        *([pareto_table(standings)] if standings else []),
        *([verdict_table(bars)] if bars else []),
    ]
    output(as_json, body, *tables, *(line for bar in bars for line in verdict_lines(bar)))
    if draw and picture and table:
        draw(table, picture)
    if not is_whole:
        say(f"interrupted: {len(table)} of {len(loaded)} scenarios are complete", err=True)
        raise click.exceptions.Exit(130)


sim.add_command(calibrate_command, "calibrate")
sim.add_command(fits)
sim.add_command(loads)


def _named_apart(given: Sequence[str], made_up: Sequence[Scenario]) -> list[Scenario]:
    """The scenarios, each once. Where several have one name, such as files of two folders, they are called as given:
    results are summed up by name.
    """
    loaded = {text: load_scenario(text) for text in given}
    names = Counter(scenario.name for scenario in (*loaded.values(), *made_up))
    shown = [replace(each, name=text) if names[each.name] > 1 else each for text, each in loaded.items()]
    return [*shown, *made_up]


def _drawing() -> Callable[[Table, Path], None]:
    try:
        from manager.sim.matrix_picture import draw_matrix  # noqa: PLC0415 - only who wants a picture needs matplotlib
    except ImportError as error:
        raise SettingsError("--picture needs matplotlib: pip install matplotlib") from error

    def draw(table: Table, file: Path) -> None:
        try:
            draw_matrix(table, file)
        except OSError as error:
            raise SettingsError(f"{file} cannot be written: {error}") from error

    return draw
