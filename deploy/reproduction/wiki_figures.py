"""Static weights: Figures 1, 2, 3 and 5 of the 2013 study, on a simulated host of the same size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from deploy.reproduction.experiment import (
    Experiment,
    ExperimentKind,
    FigureNumbers,
    PaperClaim,
    PlotAxes,
    PlotLine,
    RunSetting,
    Study,
    line,
)
from deploy.reproduction.simulated_host import SimulatedRun, simulate
from manager.model.registration import Sla
from manager.sim.scenario import AppSpec, BatchSpec, Constant, Scenario, ServiceTime, Shape, TierSpec, VmSettings

PCPUS = 24
WIKI_RPS, WIKI_SHARE = 40.0, 0.35
RUBIS_RPS, RUBIS_SHARE = 450.0, 0.06
BATCH = ("lu", "bt", "cg")
EQUAL, PRIORITY = "equal", "priority"
AXES = PlotAxes("consolidation factor (demand / capacity)", "p95, s", logarithmic=True)
_SETUP = (
    "Simulated host of 24 pCPUs as theirs; the Wiki's tiers have 12, 6 and 2 vCPUs and 210 ms of CPU time a request,"
    " so that it uses 35 % of the host alone, with a spread that gives their p95 alone. Three batch VMs of equal size"
    " fill the host up to the consolidation factor. Caches, disk and network are not simulated."
)
_NO_STACKING = (
    "The simulator moves a waiting vCPU to an idle pCPU at once and always prefers the heavier VM. The study's"
    " kernel 3.4"
    " placed critical vCPUs on a subset of the cores, where they competed with each other (IV.E); that is absent here."
)


def tiers(request_ms: float, parts: Sequence[tuple[str, float, int]], cv: float) -> tuple[TierSpec, ...]:
    """Tiers by name, part of the request's CPU time, and vCPUs."""
    return tuple(
        TierSpec(name, ServiceTime(request_ms * part, Shape.LOGNORMAL, cv), vcpus=vcpus) for name, part, vcpus in parts
    )


def wiki(name: str = "wiki", rate_rps: float = WIKI_RPS) -> AppSpec:
    """The Wiki: 2 s of SLA; requests time out after 35 s, as in its load generator."""
    parts = (("web", 0.71, 12), ("db", 0.24, 6), ("cache", 0.05, 2))
    request_ms = 1000 * WIKI_SHARE * PCPUS / WIKI_RPS
    return AppSpec(name, Sla(2000.0, 95.0), tiers(request_ms, parts, 1.1), (Constant(rate_rps),), timeout_s=35.0)


def rubis(rate_rps: float = RUBIS_RPS) -> AppSpec:
    """RUBiS: three tiers, and the time outside its VMs that its p95 alone of 15 ms leaves."""
    parts = (("web", 0.4, 4), ("app", 0.4, 4), ("db", 0.2, 2))
    request_ms = 1000 * RUBIS_SHARE * PCPUS / RUBIS_RPS
    load = (Constant(rate_rps),)
    return AppSpec("rubis", Sla(100.0, 95.0), tiers(request_ms, parts, 1.0), load, timeout_s=35.0, outside_ms=7.5)


def batch_of(factor: float, critical_share: float) -> tuple[BatchSpec, ...]:
    """Three batch VMs that together with the critical ones want ``factor`` of the host."""
    vcpus = round((factor - critical_share) * PCPUS / len(BATCH))
    return tuple(BatchSpec(name, vcpus=vcpus) for name in BATCH) if vcpus > 0 else ()


def host(setting: RunSetting, apps: tuple[AppSpec, ...], batch: tuple[BatchSpec, ...], duration_s: float) -> Scenario:
    """The study's host: cgroup v1, intervals of 5 s."""
    return Scenario("study", PCPUS, apps, batch, cgroup=1, duration_s=duration_s, seed=setting.seed)


def _run(setting: RunSetting, app: AppSpec, share: float, factor: float, policy: str, pinned: bool) -> SimulatedRun:
    long = app.name == "wiki"
    duration_s = setting.choose(90.0, 300.0) if long else setting.choose(10.0, 40.0)
    scenario = host(setting, (app,), batch_of(factor, share), duration_s)
    return simulate(replace(scenario, pinning=pinned), policy)


def _p95_s(run: SimulatedRun, app: str) -> float:
    return run.percentile_ms(app, from_s=run.result.duration_s / 5) / 1000


def _curve(
    setting: RunSetting, app: AppSpec, share: float, factors: Sequence[float], policy: str, pinned: bool = False
) -> PlotLine:
    name = f"{policy}, pinned" if pinned else policy
    runs = [(factor, _run(setting, app, share, factor, policy, pinned)) for factor in factors]
    return PlotLine(name, tuple((factor, _p95_s(run, app.name)) for factor, run in runs))


def _at(curve: PlotLine, x: float) -> float:
    return dict(curve.points)[x]


def collocation(setting: RunSetting) -> FigureNumbers:
    """Figure 1a: the Wiki with equal weights and with priority."""
    factors = setting.choose((WIKI_SHARE, 0.8, 1.1, 1.3), (WIKI_SHARE, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3))
    equal = _curve(setting, wiki(), WIKI_SHARE, factors, EQUAL)
    priority = _curve(setting, wiki(), WIKI_SHARE, factors, PRIORITY)
    alone = _at(priority, WIKI_SHARE)
    values = {
        "alone_s": alone,
        "equal_to_priority": _at(equal, 1.3) / _at(priority, 1.3),
        "priority_to_alone": _at(priority, 1.3) / alone,
        "equal_to_alone_08": _at(equal, 0.8) / alone,
    }
    return FigureNumbers((equal, priority), values)


def slowdown(setting: RunSetting) -> FigureNumbers:
    """Figure 1c: what batch loses beside the Wiki, in percent of running alone."""
    factors = setting.choose((0.8, 1.3), (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3))
    lines = []
    for policy in (EQUAL, PRIORITY):
        runs = [(factor, _run(setting, wiki(), WIKI_SHARE, factor, policy, False)) for factor in factors]
        lines.append(PlotLine(policy, tuple((factor, 100 * (1 - run.batch_progress)) for factor, run in runs)))
    equal, priority = lines
    values = {
        "equal": _at(equal, 1.3),
        "priority": _at(priority, 1.3),
        "extra": max(_at(priority, factor) - _at(equal, factor) for factor in factors),
    }
    return FigureNumbers((equal, priority), values)


def small_service(setting: RunSetting) -> FigureNumbers:
    """Figure 1d: RUBiS, which uses 6 % of the host."""
    factors = setting.choose((RUBIS_SHARE, 1.1), (RUBIS_SHARE, 0.4, 0.6, 0.8, 0.9, 1.0, 1.1))
    equal = _curve(setting, rubis(), RUBIS_SHARE, factors, EQUAL)
    priority = _curve(setting, rubis(), RUBIS_SHARE, factors, PRIORITY)
    alone = _at(priority, RUBIS_SHARE)
    values = {
        "priority_to_alone": _at(priority, 1.1) / alone,
        "equal_to_priority": _at(equal, 1.1) / _at(priority, 1.1),
    }
    return FigureNumbers((equal, priority), values)


def size_matters(setting: RunSetting) -> FigureNumbers:
    """Figure 2: with a tenth of the requests, priority helps less."""
    small = wiki(rate_rps=WIKI_RPS / 10)
    share = WIKI_SHARE / 10
    factors = setting.choose((1.1,), (0.6, 0.8, 0.9, 1.0, 1.1))
    equal = _curve(setting, small, share, factors, EQUAL)
    priority = _curve(setting, small, share, factors, PRIORITY)
    whole = {
        policy: _p95_s(_run(setting, wiki(), WIKI_SHARE, 1.1, policy, False), "wiki") for policy in (EQUAL, PRIORITY)
    }
    gain_small = _at(equal, 1.1) / _at(priority, 1.1)
    gain_whole = whole[EQUAL] / whole[PRIORITY]
    return FigureNumbers((equal, priority), {"small": gain_small, "whole": gain_whole, "less": gain_whole / gain_small})


WEIGHTS = {"1k-1k-1k": (1024, 1024, 1024), "10k-10k-2": (10_000, 10_000, 2)}
WEIGHTS |= {"10k-256k-2": (10_000, 262_144, 2), "256k-10k-2": (262_144, 10_000, 2)}


def two_sizes(setting: RunSetting) -> FigureNumbers:
    """Figure 3: a small and a large Wiki under four sets of weights, at a consolidation factor of 1.1.

    Once on all pCPUs, and once on half of them, with batch of the same factor: there the critical VMs meet.
    """
    lines: list[PlotLine] = []
    values: dict[str, float] = {}
    for pcpus, place in ((PCPUS, "all"), (PCPUS // 2, "half")):
        worst: dict[str, float] = {}
        ratio: dict[str, float] = {}
        points: dict[str, list[tuple[float, float]]] = {"small": [], "large": []}
        for number, (name, weights) in enumerate(WEIGHTS.items(), start=1):
            run = _two_wikis(setting, pcpus, weights)
            p95_s = {app: _p95_s(run, app) for app in points}
            for app, time_s in p95_s.items():
                points[app].append((number, time_s))
            worst[name], ratio[name] = max(p95_s.values()), p95_s["large"] / p95_s["small"]
        lines += [PlotLine(f"{app}, {place} pCPUs", tuple(course)) for app, course in points.items()]
        usual = ratio["10k-10k-2"]
        values[f"{place} equal_worst"] = worst["1k-1k-1k"] / max(worst[name] for name in WEIGHTS if name != "1k-1k-1k")
        values[f"{place} favoured_small"] = ratio["256k-10k-2"] / usual
        values[f"{place} favoured_large"] = ratio["10k-256k-2"] / usual
    return FigureNumbers(tuple(lines), values)


def _two_wikis(setting: RunSetting, pcpus: int, weights: tuple[int, int, int]) -> SimulatedRun:
    by_app = dict(zip(("small", "large"), weights, strict=False))
    batch = batch_of(1.1 * pcpus / PCPUS, 1.1 * WIKI_SHARE)
    apps = (wiki("small", WIKI_RPS / 10), wiki("large"))
    unweighted = host(setting, apps, batch, setting.choose(60.0, 300.0))
    settings = tuple(VmSettings(vm.name, weight=by_app.get(vm.name.split("-")[0], weights[2])) for vm in unweighted.vms)
    return simulate(replace(unweighted, pcpus=pcpus, settings=settings), PRIORITY)


def pinned(setting: RunSetting) -> FigureNumbers:
    """Figure 5: critical vCPUs pinned, one to a pCPU."""
    factors = setting.choose((WIKI_SHARE, 0.7, 1.3), (WIKI_SHARE, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3))
    free = _curve(setting, wiki(), WIKI_SHARE, factors, PRIORITY)
    fixed = _curve(setting, wiki(), WIKI_SHARE, factors, PRIORITY, pinned=True)
    values = {
        "to_alone": _at(fixed, 1.3) / _at(fixed, WIKI_SHARE),
        "flat": _at(fixed, 1.3) / _at(fixed, 0.7),
        "to_floating": _at(fixed, 1.3) / _at(free, 1.3),
    }
    return FigureNumbers((free, fixed), values)


_EQUAL_BATCH_BELOW = (
    "Batch VMs there also lost to each other through caches and the network of MPI jobs, which CPU time alone does not"
    " show."
)
EXPERIMENTS = (
    Experiment(
        "w-fig1a",
        Study.WEIGHTS,
        "Figure 1a",
        "With equal weights the Wiki's p95 collapses on an overloaded host; with priority it stays acceptable.",
        ExperimentKind.SIMULATED,
        _SETUP,
        collocation,
        AXES,
        (line("equal", (0.35, 0.5), (0.8, 1.2), (1.3, 35.0)), line("priority", (0.35, 0.5), (0.8, 0.75), (1.3, 1.4))),
        (
            PaperClaim(
                "p95 with equal weights over that with priority, at 1.3",
                "equal_to_priority",
                25.0,
                "IV.A: requests time out at 35 s, against below 1.4 s",
                least=8,
                unit="x",
                below="Equal weights leave the Wiki's tiers more than they need at this size.",
            ),
            PaperClaim(
                "p95 with priority at 1.3 over that alone",
                "priority_to_alone",
                2.7,
                "IV.A: below 1.4 s, against 0.52 s alone (IV.E)",
                least=1.35,
                most=5.4,
                unit="x",
                below=_NO_STACKING,
                above="Weights did not keep batch VMs away from the Wiki here.",
            ),
            PaperClaim(
                "p95 with equal weights at 0.8 over that alone",
                "equal_to_alone_08",
                2.3,
                "IV.A: 1.2 s in scenario A",
                least=1.15,
                most=4.6,
                unit="x",
                below=f"Below saturation the simulator always finds an idle pCPU. {_NO_STACKING}",
                above="The host is fuller here than theirs was at this factor: batch VMs never wait for disks.",
            ),
        ),
        quick_s=2.5,
        full_s=15,
    ),
    Experiment(
        "w-fig1c",
        Study.WEIGHTS,
        "Figure 1c",
        "What priority costs batch is small: up to 12 points more slowdown than with equal weights.",
        ExperimentKind.SIMULATED,
        _SETUP,
        slowdown,
        PlotAxes(AXES.x, "slowdown of batch, %"),
        (line("equal", (0.8, 0.0), (1.3, 32.0)), line("priority", (0.8, 0.0), (1.3, 44.0))),
        (
            PaperClaim(
                "slowdown with equal weights at 1.3",
                "equal",
                32.0,
                "IV.A, scenario B",
                16,
                48,
                "%",
                below=_EQUAL_BATCH_BELOW,
                above="Batch VMs have less of the host here than theirs, so they lose a larger part of it.",
            ),
            PaperClaim(
                "slowdown with priority at 1.3",
                "priority",
                44.0,
                "IV.A, scenario B",
                22,
                66,
                "%",
                below=_EQUAL_BATCH_BELOW,
                above="Batch VMs have less of the host here than theirs, so they lose a larger part of it.",
            ),
            PaperClaim(
                "most that priority adds, points",
                "extra",
                12.0,
                "IV.A: up to 12 %",
                4,
                24,
                "",
                below="Requests that time out under equal weights ask for no CPU time later, so batch gets more of it.",
                above="With equal weights the Wiki had less CPU time here than theirs.",
            ),
        ),
        quick_s=1.2,
        full_s=12,
    ),
    Experiment(
        "w-fig1d",
        Study.WEIGHTS,
        "Figure 1d",
        "A small, fast application (RUBiS) stays crisp with priority on a host that is 10 % overbooked.",
        ExperimentKind.SIMULATED,
        _SETUP.replace(
            "the Wiki's tiers have 12, 6 and 2 vCPUs and 210 ms", "RUBiS' tiers have 4, 4 and 2 vCPUs and 3.2 ms"
        ).replace("35 %", "6 %"),
        small_service,
        AXES,
        (line("priority", (0.06, 0.015), (1.1, 0.034)), line("priority, scenario B", (0.06, 0.015), (1.1, 0.05))),
        (
            PaperClaim(
                "p95 with priority at 1.1 over that alone",
                "priority_to_alone",
                2.3,
                "IV.A: 34 ms (A), 50 ms (B), against 15 ms",
                1.1,
                4.6,
                "x",
                below=_NO_STACKING,
                above="Waiting for scheduler ticks is longer here than theirs.",
            ),
            PaperClaim(
                "p95 with equal weights over that with priority, at 1.1",
                "equal_to_priority",
                None,
                "IV.A, Figure 1d: priority improves it",
                1.05,
                unit="x",
                below="So small an application gets what it wants with equal weights, too.",
            ),
        ),
        quick_s=3,
        full_s=30,
    ),
    Experiment(
        "w-fig2",
        Study.WEIGHTS,
        "Figure 2",
        "Priority matters more for larger critical applications: with a tenth of the requests it helps less.",
        ExperimentKind.SIMULATED,
        _SETUP,
        size_matters,
        AXES,
        (),
        (
            PaperClaim(
                "gain by priority at 1.1: whole size over a tenth of it",
                "less",
                None,
                "IV.B: the difference is lower at a tenth",
                1.2,
                unit="x",
                below="Both sizes had what they wanted with equal weights at this factor.",
            ),
            PaperClaim(
                "gain by priority with a tenth of the requests",
                "small",
                None,
                "IV.B: both improve",
                1.0,
                unit="x",
                below="So small an application gets what it wants with equal weights, too.",
            ),
        ),
        quick_s=1,
        full_s=5,
    ),
    Experiment(
        "w-fig3",
        Study.WEIGHTS,
        "Figure 3",
        "Beside a small application of the same weight the large one is worse off; a larger weight balances them.",
        ExperimentKind.SIMULATED,
        _SETUP + " At a consolidation factor of 1.1; once more with half the pCPUs.",
        two_sizes,
        PlotAxes("weights: 1 1k-1k-1k, 2 10k-10k-2, 3 10k-256k-2, 4 256k-10k-2", "p95, s", logarithmic=True),
        (),
        (
            PaperClaim(
                "worst p95 with equal weights over the worst of all others",
                "all equal_worst",
                None,
                "IV.C: 1k-1k-1k is the worst",
                1.0,
                unit="x",
                below="Some other set of weights starves one of the Wikis more than batch does with equal weights.",
            ),
            PaperClaim(
                "p95 of the large over the small: 256k-10k-2 over 10k-10k-2",
                "all favoured_small",
                None,
                "IV.C: the differences are even larger",
                1.1,
                unit="x",
                below="Critical VMs use 39 % of the host, and in the simulator do not meet while a pCPU is free. "
                + _NO_STACKING,
            ),
            PaperClaim(
                "the same, where critical VMs meet (half the pCPUs)",
                "half favoured_small",
                None,
                "IV.C",
                1.1,
                unit="x",
                below="The weight of the small one is too little of all to hurt the large one.",
            ),
            PaperClaim(
                "p95 of the large over the small: 10k-256k-2 over 10k-10k-2, half the pCPUs",
                "half favoured_large",
                None,
                "IV.C: balances the two",
                0.0,
                0.95,
                "x",
                above="The large one has all it wants at equal weights of the critical VMs.",
            ),
        ),
        quick_s=1.5,
        full_s=12,
    ),
    Experiment(
        "w-fig5",
        Study.WEIGHTS,
        "Figure 5a",
        "With critical vCPUs pinned one to a pCPU, p95 hardly depends on how full the host is.",
        ExperimentKind.SIMULATED,
        _SETUP + " Pins are those of the product's placement.",
        pinned,
        AXES,
        (line("priority", (0.35, 0.52), (1.3, 1.4)), line("priority, pinned", (0.35, 0.52), (0.7, 0.68), (1.3, 0.68))),
        (
            PaperClaim(
                "pinned: p95 at 1.3 over that alone",
                "to_alone",
                1.31,
                "IV.E: 0.68 s against 0.52 s",
                0.0,
                1.6,
                "x",
                above="Pinned vCPUs waited for batch, which the least weight should have kept short.",
            ),
            PaperClaim(
                "pinned: p95 at 1.3 over that at 0.7",
                "flat",
                1.0,
                "IV.E: 0.68 s at both",
                0.0,
                1.1,
                "x",
                above="Pinned vCPUs waited for batch, which the least weight should have kept short.",
            ),
            PaperClaim(
                "p95 at 1.3 pinned over floating",
                "to_floating",
                0.49,
                "IV.E: 0.68 s against 1.4 s",
                0.0,
                0.95,
                "x",
                above=f"There is nothing to gain from pins here. {_NO_STACKING} On real VMs pins halve p95 and more"
                " (docs/internals/lab.md).",
            ),
        ),
        quick_s=2.5,
        full_s=20,
    ),
)
