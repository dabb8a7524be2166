"""Runs of several policies, compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from statistics import fmean

from manager.errors import SettingsError
from manager.sim.oracle import ORACLE, run_oracle
from manager.sim.parallel import on_all_cores
from manager.sim.results import RunResult, mean_excess
from manager.sim.scenario import Scenario
from manager.sim.simulation import Simulation
from policies.base import Policy
from policies.installed import load_policies

PUBLISHED = ":published"
WORSE_BY = 0.005
"""A policy is worse in a scenario when it misses SLAs for this much more of the time."""


def installed() -> dict[str, Policy]:
    """The installed policies by name."""
    return {name: installation.policy for name, installation in load_policies().items()}


def check_policy(name: str) -> str:
    """``name``, of an installed policy with or without ``:published``, or `oracle`. Raises SettingsError."""
    if name == ORACLE:
        return name
    if name.removesuffix(PUBLISHED) not in (policies := installed()):
        raise SettingsError(
            f"policy {name!r} is not installed: use {', '.join(policies)}, {ORACLE}, or a policy with {PUBLISHED} added"
        )
    return name


def usual_policies() -> tuple[str, ...]:
    """All installed policies, and `fair` with the law as printed."""
    names = list(installed())
    return (*names, "fair" + PUBLISHED) if "fair" in names else tuple(names)


def run_once(
    scenario: Scenario, policy: str, seed: int | None = None, on_step: Callable[[], None] = lambda: None
) -> RunResult:
    """One run. ``policy`` may have ``:published`` added for the law as printed, and may be `oracle`.

    Ticks come as often as the policy's ``sample_s`` says, else at the end of each interval.
    """
    if policy == ORACLE:
        return run_oracle(scenario, seed, on_step)
    name, policies = policy.removesuffix(PUBLISHED), installed()
    tick_s: float | None = getattr(policies.get(name), "sample_s", None)
    return Simulation(scenario, policies, name, published=name != policy, seed=seed, tick_s=tick_s).run(on_step)


def run_all(
    scenarios: Sequence[Scenario], policies: Sequence[str], seeds: int = 1, on_done: Callable[[], None] = lambda: None
) -> list[RunResult]:
    """Every scenario under every policy with ``seeds`` seeds, the scenario's and those that follow it.

    The results are in the order of scenarios, policies, seeds. ``on_done`` is called after each run.
    """
    jobs = [
        (scenario, policy, scenario.seed + more)
        for scenario in scenarios
        for policy in policies
        for more in range(seeds)
    ]
    return on_all_cores(_run, jobs, on_done)


def _run(job: tuple[Scenario, str, int]) -> RunResult:
    return run_once(*job)


@dataclass(frozen=True, slots=True)
class Summary:
    """Runs of one scenario, or of several, under one policy: means over runs, but the worst of ``worst_excess``.

    ``violated_s`` is the time in which SLAs were violated, summed over applications and runs.
    """

    scenario: str
    policy: str
    runs: int
    violated_share: float
    violated_s: float
    worst_excess: float
    mean_excess: float
    batch_progress: float | None
    weight_changes_per_hour: float
    host_cpu_share: float


def summarise(results: Sequence[RunResult], scenario: str) -> Summary:
    """Sum up runs of one policy, at least one."""
    progress = [result.batch_progress for result in results if result.batch_progress is not None]
    return Summary(
        scenario=scenario,
        policy=results[0].policy,
        runs=len(results),
        violated_share=fmean(result.violated_share for result in results),
        violated_s=sum(app.violated_share * result.duration_s for result in results for app in result.applications),
        worst_excess=max(result.worst_excess for result in results),
        mean_excess=mean_excess(app for result in results for app in result.applications),
        batch_progress=fmean(progress) if progress else None,
        weight_changes_per_hour=fmean(result.weight_changes_per_hour for result in results),
        host_cpu_share=fmean(fmean(result.host_cpu_share) for result in results),
    )


def by_scenario(results: Sequence[RunResult]) -> list[Summary]:
    """One summary for each scenario and policy, in the order of the results."""
    return [summarise(runs, runs[0].scenario) for runs in _grouped(results, "scenario", "policy")]


def by_policy(results: Sequence[RunResult]) -> list[Summary]:
    """One summary for each policy over all scenarios."""
    scenarios = len({result.scenario for result in results})
    return [summarise(runs, f"{scenarios} scenarios") for runs in _grouped(results, "policy")]


def _grouped(results: Sequence[RunResult], *names: str) -> Iterable[list[RunResult]]:
    groups: dict[object, list[RunResult]] = {}
    for result in results:
        groups.setdefault(attrgetter(*names)(result), []).append(result)
    return groups.values()


@dataclass(frozen=True, slots=True)
class Worse:
    """A scenario in which ``policy`` violated SLAs for longer than ``than``: shares of the time, over applications."""

    scenario: str
    policy: str
    than: str
    violated_share: float
    than_share: float


def worse(summaries: Sequence[Summary], policy: str) -> list[Worse]:
    """The scenarios in which ``policy`` is worse than another, with the best other one; the worst first."""
    rows: list[Worse] = []
    for own in summaries:
        others = [summary for summary in summaries if summary.scenario == own.scenario and summary.policy != policy]
        best = min(others, key=lambda summary: summary.violated_share, default=own)
        if own.policy == policy and own.violated_share > best.violated_share + WORSE_BY:
            rows.append(Worse(own.scenario, policy, best.policy, own.violated_share, best.violated_share))
    return sorted(rows, key=lambda row: row.than_share - row.violated_share)
