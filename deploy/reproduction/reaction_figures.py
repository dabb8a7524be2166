"""How soon policies end a violation: what Caladan's slides say of PARTIES and Heracles, in the simulator."""

from __future__ import annotations

from statistics import median

from deploy.reproduction.experiment import (
    Experiment,
    ExperimentKind,
    FigureNumbers,
    PaperClaim,
    PlotAxes,
    PlotLine,
    RunSetting,
    Study,
)
from deploy.reproduction.simulated_host import SimulatedRun, simulate
from manager.model.registration import Sla
from manager.sim.scenario import AppSpec, BatchSpec, Constant, Scenario, ServiceTime, TierSpec

STEP_S, END_S, INTERVAL_S = 120.0, 240.0, 1.0
CALM_INTERVALS = 5
"""A violation is over when the SLA is met in so many intervals in a row."""
POLICIES = ("parties", "heracles", "priority", "auto")


def _scenario(seed: int) -> Scenario:
    """Two services and batch on 6 pCPUs; the load of one doubles."""
    tier = TierSpec("vm", ServiceTime(4.0), vcpus=4)
    step = (Constant(300.0, STEP_S), Constant(700.0, END_S - STEP_S))
    apps = (
        AppSpec("stepping", Sla(40.0, 95.0), (tier,), step, timeout_s=10.0),
        AppSpec("steady", Sla(40.0, 95.0), (tier,), (Constant(200.0),), timeout_s=10.0),
    )
    batch = (BatchSpec("batch", vms=3, vcpus=2),)
    return Scenario("step", 6, apps, batch, cgroup=1, interval_s=INTERVAL_S, duration_s=END_S, seed=seed, pinning=True)


def settled_s(run: SimulatedRun) -> float:
    """From the step until both SLAs are met for a while, in seconds; the rest of the run where that never comes."""
    first = round(STEP_S / run.interval_s)
    met = [
        all(
            (time_us := each[number].percentile_us(95)) is not None and time_us <= 40_000
            for each in run.intervals.values()
        )
        for number in range(first, round(END_S / run.interval_s))
    ]
    for number in range(len(met) - CALM_INTERVALS):
        if all(met[number : number + CALM_INTERVALS]):
            return number * run.interval_s
    return len(met) * run.interval_s


def convergence(setting: RunSetting) -> FigureNumbers:
    """Slide 9: how long PARTIES and Heracles take, and what takes less."""
    seeds = range(setting.seed, setting.seed + setting.choose(1, 5))
    lines, values = [], {}
    for policy in POLICIES:
        runs = [simulate(_scenario(seed), policy) for seed in seeds]
        values[policy] = median(settled_s(run) for run in runs)
        times = runs[0].intervals["stepping"]
        points = tuple(
            (number * INTERVAL_S, (times[number].percentile_us(95) or float("nan")) / 1000)
            for number in range(round(STEP_S - 10), round(END_S), 2)
        )
        lines.append(PlotLine(policy, points))
    values["gained"] = min(values["parties"], values["heracles"]) - values["auto"]
    return FigureNumbers(tuple(lines), values)


EXPERIMENTS = (
    Experiment(
        "c-convergence",
        Study.CALADAN,
        "Slide 9",
        "PARTIES takes 10 to 20 s to converge, Heracles 30 s: far longer than interference takes to hurt.",
        ExperimentKind.SIMULATED,
        "Simulated: two services (4 ms a request, SLA 40 ms) and batch on 6 pCPUs; the load of one rises from 300"
        " to 700"
        " req/s at 120 s. The product's own PARTIES and Heracles, without frequency and power; response times each"
        " second.",
        convergence,
        PlotAxes("time, s (the step at 120 s)", "p95 of the service whose load rises, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "PARTIES: from the step to both SLAs met",
                "parties",
                15.0,
                "slide 9: 10 to 20 s",
                5,
                40,
                "s",
                below="Two resources at most are tried here, and the first step, a core of batch, was the right one.",
                above="With 2 units at stake it moves cores back and forth between the services, and batch gets"
                " some again.",
            ),
            PaperClaim(
                "Heracles: the same",
                "heracles",
                30.0,
                "slide 9: 30 s",
                10,
                60,
                "s",
                below="It gave batch so little before the step that nothing had to be taken: no maximum load is"
                " registered.",
                above="Batch is off, and the service still wants more than its pCPUs: it has no one to take from"
                " but batch.",
            ),
            PaperClaim(
                "`auto`: sooner than the sooner of both, s",
                "gained",
                None,
                "slide 11: faster reaction is the aim",
                0,
                below="`auto` believes a violation only after some intervals.",
            ),
        ),
        quick_s=6,
        full_s=40,
    ),
)
