"""All scenarios under all policies, judged: is `auto` worth its place?

The verdicts are pure functions of a table of runs. All of it is simulated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from hashlib import sha256
from multiprocessing import get_context
from os import sched_getaffinity
from pathlib import Path
from statistics import fmean
from typing import ClassVar, TextIO

from pydantic import ValidationError

from manager.errors import SettingsError
from manager.model.fields import CLOSED, adapter_of
from manager.model.units import percent
from manager.sim.compare import PUBLISHED, installed, run_once
from manager.sim.oracle import ORACLE
from manager.sim.parallel import end_when_interrupted
from manager.sim.results import RunResult
from manager.sim.scenario import Scenario

AUTO, PRIORITY = "auto", "priority"
BASELINES = ("parties", "heracles")
WORSE_BY = 0.005
"""Violated shares that differ by no more count as equal: half a point."""
LESS_BY = 0.01
"""Batch progress that is less by no more than this part counts as equal."""
CLOSED_BAR, AHEAD_BAR, BATCH_BAR = 0.5, 0.9, 0.97
_BEGINNING = '{"scenario": "'
"""Of each line of a file of runs."""
_WANTED = ("equal", PRIORITY, "fair", "fair" + PUBLISHED, "isolation", *BASELINES, AUTO)


@dataclass(frozen=True, slots=True)
class MatrixRun:
    """What a scenario came to under a policy; ``scenario_id`` tells scenarios of the same name apart.

    ``violated_share`` is the mean over applications, ``changes_per_hour`` counts settings of any kind that were written
    after the policy had time to settle, ``batch_progress`` is None without batch VMs.
    """

    scenario: str
    scenario_id: str
    policy: str
    violated_share: float
    batch_progress: float | None
    changes_per_hour: float
    __pydantic_config__: ClassVar = CLOSED


def scenario_id(scenario: Scenario) -> str:
    """The same for equal scenarios, seed included."""
    return sha256(repr(scenario).encode()).hexdigest()[:16]


def matrix_run(scenario: Scenario, result: RunResult) -> MatrixRun:
    """What the matrix keeps of a result."""
    return MatrixRun(
        scenario.name,
        scenario_id(scenario),
        result.policy,
        result.violated_share,
        result.batch_progress,
        result.changes_per_hour,
    )


def matrix_policies() -> tuple[str, ...]:
    """Those that are compared unless others are asked for: as many of them as are installed, and `oracle`."""
    names = installed()
    return (*(name for name in _WANTED if name.removesuffix(PUBLISHED) in names), ORACLE)


class MatrixFile:
    """Runs that are done, a line of JSON each. What a policy or the simulator were then is not in it."""

    def __init__(self, path: Path) -> None:
        """Raises SettingsError for a file of something else."""
        self.path = path
        self.runs: tuple[MatrixRun, ...] = ()
        try:
            text = path.read_text() if path.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"{path} cannot be read: {error}") from error
        whole = text[: text.rfind("\n") + 1]
        self.runs = tuple(self._run(line, number) for number, line in enumerate(whole.splitlines(), start=1))
        cut = text[len(whole) :]
        if not (cut.startswith(_BEGINNING) or _BEGINNING.startswith(cut)):
            raise self._not_ours(len(self.runs) + 1)
        self._cut_to = len(whole.encode()) if cut else None  # somebody died while writing

    def _run(self, line: str, number: int) -> MatrixRun:
        try:
            return adapter_of(MatrixRun).validate_json(line)
        except ValidationError as error:
            raise self._not_ours(number) from error

    def _not_ours(self, number: int) -> SettingsError:
        return SettingsError(f"line {number} of {self.path} is not a run of `equipoise sim matrix`")

    @contextmanager
    def appending(self) -> Iterator[Callable[[MatrixRun], None]]:
        """A function that adds a run. Raises SettingsError where the file cannot be written."""
        try:
            with self.path.open("a") as file:
                if self._cut_to is not None:
                    file.truncate(self._cut_to)
                yield lambda run: _append(file, run)
        except OSError as error:
            raise SettingsError(f"{self.path} cannot be written: {error}") from error


def _append(file: TextIO, run: MatrixRun) -> None:
    file.write(json.dumps(asdict(run)) + "\n")
    file.flush()


def missing(
    scenarios: Sequence[Scenario], policies: Sequence[str], done: Iterable[MatrixRun]
) -> list[tuple[Scenario, str]]:
    """The runs that are not done yet. The longest ones of a scenario come first, so that no core waits at the end."""
    known = {(run.scenario_id, run.policy) for run in done}
    ordered = sorted(policies, key=lambda policy: policy != ORACLE)
    return [
        (scenario, policy)
        for scenario in scenarios
        for policy in ordered
        if (scenario_id(scenario), policy) not in known
    ]


def run_jobs(jobs: Sequence[tuple[Scenario, str]]) -> Generator[MatrixRun, None, None]:
    """Each run as it ends, on all cores. Closing the iterator leaves out those that have not begun."""
    workers = min(len(jobs), len(sched_getaffinity(0)))
    if workers < 2:
        yield from (matrix_run(scenario, run_once(scenario, policy)) for scenario, policy in jobs)
        return
    # Not forked: the caller may have threads.
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=end_when_interrupted)
    try:
        waiting = {pool.submit(_job, *job) for job in jobs}
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    finally:
        pool.shutdown(cancel_futures=True)


def _job(scenario: Scenario, policy: str) -> MatrixRun:
    return matrix_run(scenario, run_once(scenario, policy))


Table = Mapping[str, Mapping[str, MatrixRun]]
"""By scenario, by policy."""


def complete(
    scenarios: Sequence[Scenario], policies: Sequence[str], runs: Iterable[MatrixRun]
) -> dict[str, dict[str, MatrixRun]]:
    """The scenarios that were run under all of these policies."""
    known = {(run.scenario_id, run.policy): run for run in runs}
    table: dict[str, dict[str, MatrixRun]] = {}
    for scenario in scenarios:
        row = {policy: known.get((scenario_id(scenario), policy)) for policy in policies}
        whole = {policy: run for policy, run in row.items() if run is not None}
        if len(whole) == len(policies):
            name = scenario.name if scenario.name not in table else f"{scenario.name} {scenario_id(scenario)}"
            table[name] = whole
    return table


@dataclass(frozen=True, slots=True)
class PolicyTotals:
    """A policy over all scenarios of a table: means.

    ``batch`` is its batch progress over that under `priority`, both summed over scenarios; ``regret`` the violated
    share minus the oracle's. None where that was not run, or there is no batch.
    """

    policy: str
    violated_share: float
    batch: float | None
    changes_per_hour: float
    regret: float | None


def totals(table: Table) -> tuple[PolicyTotals, ...]:
    """One for each policy of a table."""
    policies = next(iter(table.values()), {})
    oracle = _violated(table, ORACLE) if ORACLE in policies else None
    return tuple(
        PolicyTotals(
            policy,
            violated := _violated(table, policy),
            batch_ratio(table, policy),
            fmean(row[policy].changes_per_hour for row in table.values()),
            None if oracle is None else violated - oracle,
        )
        for policy in policies
    )


def _violated(table: Table, policy: str) -> float:
    return fmean(row[policy].violated_share for row in table.values())


def batch_ratio(table: Table, policy: str) -> float | None:
    """Batch progress over that under `priority`, both summed over scenarios; None where there is none."""
    pairs = [
        (row[policy].batch_progress, row[PRIORITY].batch_progress)
        for row in table.values()
        if policy in row and PRIORITY in row
    ]
    usual = sum(then for _, then in pairs if then is not None)
    return sum(own for own, _ in pairs if own is not None) / usual if usual > 0 else None


@dataclass(frozen=True, slots=True)
class Harm:
    """A scenario in which `auto` violates SLAs in more of the time than `priority` does, beyond WORSE_BY."""

    scenario: str
    violated_share: float
    priority_share: float


def harms(table: Table) -> tuple[Harm, ...]:
    """Where `auto` does harm, the worst first."""
    found = [
        Harm(scenario, row[AUTO].violated_share, row[PRIORITY].violated_share)
        for scenario, row in table.items()
        if row[AUTO].violated_share > row[PRIORITY].violated_share + WORSE_BY
    ]
    return tuple(sorted(found, key=lambda harm: harm.priority_share - harm.violated_share))


def closed_share(table: Table) -> float | None:
    """How much of the distance from `priority` to the oracle `auto` closes; None where there is no distance.

    Below 0 it does worse than `priority`, above 1 better than the oracle, which is static within phases.
    """
    priority, oracle = _violated(table, PRIORITY), _violated(table, ORACLE)
    return (priority - _violated(table, AUTO)) / (priority - oracle) if priority > oracle else None


class Comparison(StrEnum):
    """Of two policies in a scenario, in violations and batch progress together (Pareto)."""

    AHEAD = "ahead or equal"
    FEWER_VIOLATIONS = "fewer violations, less batch"
    MORE_BATCH = "more batch, more violations"
    BEHIND = "behind"


def standing(own: MatrixRun, other: MatrixRun) -> Comparison:
    """Ahead or equal: worse in neither. Worse is a violated share that is larger by more than WORSE_BY, or a batch
    progress that is less by more than the part LESS_BY of the other's. Behind: worse in one, and better in none.
    """
    violated_more, less_batch = _worse(own, other)
    violated_less, more_batch = _worse(other, own)
    if not (violated_more or less_batch):
        return Comparison.AHEAD
    if less_batch and violated_less:
        return Comparison.FEWER_VIOLATIONS
    return Comparison.MORE_BATCH if violated_more and more_batch else Comparison.BEHIND


def _worse(own: MatrixRun, other: MatrixRun) -> tuple[bool, bool]:
    violated = own.violated_share > other.violated_share + WORSE_BY
    if own.batch_progress is None or other.batch_progress is None:
        return violated, False
    return violated, own.batch_progress < other.batch_progress * (1 - LESS_BY)


@dataclass(frozen=True, slots=True)
class Pareto:
    """In how many scenarios `auto` stands how against another policy, in violations and batch progress together."""

    other: str
    scenarios: int
    ahead: int
    fewer_violations: int
    more_batch: int
    behind: int


def paretos(table: Table) -> tuple[Pareto, ...]:
    """Against each other policy of a table that is installed."""
    policies = next(iter(table.values()), {}).keys()
    return tuple(_pareto(table, other) for other in policies if AUTO in policies and other not in {AUTO, ORACLE})


def _pareto(table: Table, other: str) -> Pareto:
    found = [standing(row[AUTO], row[other]) for row in table.values()]
    counts = (found.count(kind) for kind in Comparison)
    return Pareto(other, len(found), *counts)


@dataclass(frozen=True, slots=True)
class BarVerdict:
    """A bar, whether it is met, and the numbers that say so. ``listed``: the scenarios that speak against it."""

    bar: str
    met: bool
    numbers: str
    listed: tuple[str, ...] = ()


def verdicts(table: Table) -> tuple[BarVerdict, ...]:
    """All bars whose policies are in the table."""
    policies = next(iter(table.values()), {}).keys()
    found: list[BarVerdict] = []
    if {AUTO, PRIORITY} <= policies:
        found.append(_harm_verdict(table))
    if {AUTO, PRIORITY, ORACLE} <= policies:
        found.append(_closed_verdict(table))
    found += [_ahead_verdict(table, other) for other in BASELINES if {AUTO, other} <= policies]
    if {AUTO, PRIORITY} <= policies:
        found += _batch_verdict(table)
    return tuple(found)


def _harm_verdict(table: Table) -> BarVerdict:
    found = harms(table)
    return BarVerdict(
        f"auto violates in no scenario more than priority + {WORSE_BY * 100:g} points",
        not found,
        f"it does in {len(found)} of {len(table)} scenarios",
        tuple(
            f"{harm.scenario}: {percent(harm.violated_share, 2)}, priority {percent(harm.priority_share, 2)}"
            for harm in found
        ),
    )


def _closed_verdict(table: Table) -> BarVerdict:
    share = closed_share(table)
    shares = ", ".join(f"{policy} {percent(_violated(table, policy), 2)}" for policy in (PRIORITY, AUTO, ORACLE))
    return BarVerdict(
        f"auto closes {percent(CLOSED_BAR)} of the distance between priority and oracle",
        _violated(table, AUTO) - _violated(table, ORACLE)
        <= (1 - CLOSED_BAR) * (_violated(table, PRIORITY) - _violated(table, ORACLE)) + 1e-9,
        f"{'there is none' if share is None else f'it closes {percent(share)}'}: violated {shares}",
    )


def _ahead_verdict(table: Table, other: str) -> BarVerdict:
    found = {scenario: standing(row[AUTO], row[other]) for scenario, row in table.items()}
    counts = {kind: list(found.values()).count(kind) for kind in Comparison}
    return BarVerdict(
        f"auto is ahead of {other} or equal in violations and batch progress together in {percent(AHEAD_BAR)} of"
        " scenarios",
        counts[Comparison.AHEAD] >= AHEAD_BAR * len(table),
        f"of {len(table)}: " + "; ".join(f"{count} {kind}" for kind, count in counts.items()),
        tuple(
            f"{scenario}: {found[scenario]}; auto {_both(row[AUTO])}, {other} {_both(row[other])}"
            for scenario, row in table.items()
            if found[scenario] is not Comparison.AHEAD
        ),
    )


def _both(run: MatrixRun) -> str:
    batch = "-" if run.batch_progress is None else percent(run.batch_progress, 1)
    return f"violated {percent(run.violated_share, 2)}, batch {batch}"


def _batch_verdict(table: Table) -> list[BarVerdict]:
    ratio = batch_ratio(table, AUTO)
    if ratio is None:
        return []
    bar = f"batch keeps {percent(BATCH_BAR)} of its progress under priority"
    return [BarVerdict(bar, ratio >= BATCH_BAR, f"under auto it keeps {percent(ratio, 1)}")]
