"""Figures of the 2017 study on load, threads and colocation, in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
)
from deploy.reproduction.simulated_host import SimulatedRun, simulate
from manager.control.load_search import LoadPoint, LoadVerdict, NextLoad, SearchRules, next_load
from manager.control.pair_map import PairPoint, PairVerdict, most_together, next_pair, pair_map
from manager.model.registration import Sla
from manager.sim.scenario import AppSpec, Constant, Scenario, ServiceTime, TierSpec

REQUEST_MS = 0.1
SLA_REQUESTS = {"memcached": 96.0, "nginx": 1200.0}
"""The study's SLAs, 1 ms and 20 ms, in times that a request takes: 7 cores serve 672,000 and 420,000 a second."""


def _service(name: str, rate_rps: float, sla_ms: float, vms: int = 1, request_ms: float = REQUEST_MS) -> AppSpec:
    tier = TierSpec("vm", ServiceTime(request_ms), vms=vms)
    return AppSpec(name, Sla(sla_ms, 99.0), (tier,), (Constant(rate_rps),), timeout_s=20.0)


def _play(setting: RunSetting, apps: tuple[AppSpec, ...], pcpus: int, duration_s: float) -> SimulatedRun:
    scenario = Scenario("load", pcpus, apps, cgroup=1, interval_s=0.5, duration_s=duration_s, settle_s=0.0)
    return simulate(replace(scenario, seed=setting.seed), "equal")


def _sweep(setting: RunSetting, name: str) -> tuple[PlotLine, float]:
    """p99 by load in percent of peak, and the largest load in percent that meets the SLA, by the product's search."""
    peak_rps = 1000 / REQUEST_MS
    sla_ms = SLA_REQUESTS[name] * REQUEST_MS
    rules = SearchRules(steps=setting.choose(4, 10), span=setting.choose(0.04, 0.02))
    times_ms: dict[float, float] = {}
    points: list[LoadPoint] = []
    while isinstance(found := next_load(peak_rps, points, True, rules), NextLoad):
        run = _play(setting, (_service(name, found.rate_rps, sla_ms),), 1, setting.choose(4.0, 30.0))
        time_ms = run.percentile_ms(name, 99)
        times_ms[100 * found.rate_rps / peak_rps] = time_ms
        verdict = LoadVerdict.MET if time_ms <= sla_ms else LoadVerdict.VIOLATED
        points.append(LoadPoint(found.rate_rps, verdict))
    return PlotLine(name, tuple(sorted(times_ms.items()))), 100 * (found.qos_rps or 0.0) / peak_rps


def input_load(setting: RunSetting) -> FigureNumbers:
    """Figure 1: p99 by load, and where the SLA ends."""
    (memcached, qos), (nginx, nginx_qos) = (_sweep(setting, name) for name in SLA_REQUESTS)
    low = min(memcached.points)
    near = min(memcached.points, key=lambda point: abs(point[0] - 88))
    values = {"memcached": qos, "nginx": nginx_qos, "later": nginx_qos - qos, "growth": near[1] / low[1]}
    return FigureNumbers((memcached, nginx), values)


def threads_and_cores(setting: RunSetting) -> FigureNumbers:
    """Figures 9 and 10: seven threads on fewer cores, at 60 % of what seven serve; and as many threads as cores."""
    counts = setting.choose((7, 5), (7, 6, 5))
    rate_rps = 0.6 * 7 * 1000 / REQUEST_MS

    def p99_ms(threads: int, cores: int) -> float:
        app = _service("service", rate_rps, SLA_REQUESTS["memcached"] * REQUEST_MS, threads)
        return _play(setting, (app,), cores, setting.choose(1.0, 5.0)).percentile_ms("service", 99)

    seven = PlotLine("7 threads", tuple((float(cores), p99_ms(7, cores)) for cores in counts))
    same = PlotLine("as many as cores", tuple((float(cores), p99_ms(cores, cores)) for cores in counts))
    crowded, fewer = dict(seven.points), dict(same.points)
    return FigureNumbers(
        (seven, same),
        {
            "five_requests": crowded[5] / REQUEST_MS,
            "five_to_seven": crowded[5] / crowded[7],
            "five_to_fewer": crowded[5] / fewer[5],
        },
    )


def _map(judge: Callable[[tuple[int, int]], PairPoint], levels: int) -> Sequence[PairPoint]:
    points: list[PairPoint] = []
    while (pair := next_pair(levels, points)) is not None:
        points.append(judge(pair))
    return points


def colocation(setting: RunSetting) -> FigureNumbers:
    """Figure 11a: two services on the same core at every pair of loads."""
    levels = setting.choose(4, 5)
    request_ms = {"memcached": 0.1, "nginx": 0.16}  # as 672,000 to 420,000

    def judge(pair: tuple[int, int]) -> PairPoint:
        apps = tuple(
            _service(name, level / levels * 1000 / work_ms, SLA_REQUESTS[name] * 0.1, request_ms=work_ms)
            for level, (name, work_ms) in zip(pair, request_ms.items(), strict=True)
        )
        run = _play(setting, apps, 1, setting.choose(1.5, 6.0))
        met = [run.percentile_ms(app.name, 99) <= app.sla.response_time_ms for app in apps]
        first, second = (LoadVerdict.MET if each else LoadVerdict.VIOLATED for each in met)
        return PairPoint(pair, (first, second))

    known = pair_map(levels, _map(judge, levels))
    lines = tuple(
        PlotLine(
            name,
            tuple((100 * a / levels, 100 * b / levels) for (a, b), seen in sorted(known.items()) if seen is verdict),
        )
        for verdict, name in _VERDICTS.items()
        if verdict in known.values()
    )
    best = most_together(known)
    only_nginx = sum(verdict is PairVerdict.SECOND for verdict in known.values())
    only_memcached = sum(verdict is PairVerdict.FIRST for verdict in known.values())
    return FigureNumbers(
        lines,
        {
            "together": 100 * sum(best) / levels if best else 0.0,
            "both_share": 100 * sum(verdict is PairVerdict.BOTH for verdict in known.values()) / len(known),
            "nginx_more": float(only_nginx - only_memcached),
        },
    )


_VERDICTS = {
    PairVerdict.BOTH: "both",
    PairVerdict.FIRST: "only memcached",
    PairVerdict.SECOND: "only NGINX",
    PairVerdict.NONE: "neither",
}
_NO_BUNCHES = (
    "A request costs the same at any load in the simulator. Theirs waited for epoll and libevent to hand over"
    " batches of"
    " requests, and their peak is a rate at which requests are dropped, beyond what a queue would bear."
)
EXPERIMENTS = (
    Experiment(
        "s-fig1",
        Study.SERVICES,
        "Figure 1",
        "The p99 SLA holds up to about 70 % of the maximum load for memcached, and 80 % for NGINX; then queues"
        " explode.",
        ExperimentKind.SIMULATED,
        "Simulated: one single-threaded service on a core, 0.1 ms a request (exponential). SLAs are those of the"
        " study in"
        " times that a request takes (96 and 1,200). The largest load is found by `equipoise profile load`'s search.",
        input_load,
        PlotAxes("load, % of peak", "p99, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "largest load of memcached, % of peak",
                "memcached",
                70.0,
                "IV.A",
                56,
                84,
                "%",
                below="The search's runs are short: a queue that grew by chance counts.",
                above=_NO_BUNCHES,
            ),
            PaperClaim(
                "largest load of NGINX, % of peak",
                "nginx",
                80.0,
                "IV.A",
                64,
                96,
                "%",
                below="The search's runs are short: a queue that grew by chance counts.",
                above=_NO_BUNCHES,
            ),
            PaperClaim(
                "NGINX's less memcached's, points",
                "later",
                10.0,
                "IV.A: higher, by its more relaxed SLA",
                0.5,
                20,
                below="Both end so near to the peak that the search cannot tell them apart.",
                above="Memcached's load ends sooner than theirs.",
            ),
            PaperClaim(
                "p99 of memcached near 90 % over that at low load",
                "growth",
                None,
                "Table II: queueing dominates at 90 %, 1,806 of 20 us on average",
                4.0,
                unit="x",
                below="Near 88 % a queue takes longer to build up than this run lasts.",
            ),
        ),
        quick_s=4,
        full_s=90,
    ),
    Experiment(
        "s-fig9-10",
        Study.SERVICES,
        "Figures 9 and 10",
        "Fewer cores than threads violate the SLA though they would suffice; as many threads as cores do better.",
        ExperimentKind.SIMULATED,
        "Simulated: threads of 0.1 ms a request (exponential) at 60 % of what seven serve, on 7 to 5 cores, in"
        " scheduler"
        " ticks of 4 ms and slices of 3 ms.",
        threads_and_cores,
        PlotAxes("cores", "p99, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "7 threads on 5 cores: p99 in times that a request takes",
                "five_requests",
                96.0,
                "V.B1: SLA violated, which is 96 of them",
                96.0,
                unit="x",
                below="Threads move at once to a core that is free in the simulator, so that few wait for slices of"
                " another.",
            ),
            PaperClaim(
                "p99 on 5 cores over that on 7",
                "five_to_seven",
                None,
                "V.B1, Figure 9",
                2.0,
                unit="x",
                below="Five cores bear the load, and the simulator shares them evenly among threads at any moment, so"
                " that none waits for the slice of another for long.",
            ),
            PaperClaim(
                "p99 on 5 cores: 7 threads over 5",
                "five_to_fewer",
                None,
                "V.B1: context switching is dominant",
                1.2,
                unit="x",
                below="Seven threads do better than five in the simulator: switches cost nothing, and more queues"
                " share the cores evenly.",
            ),
        ),
        quick_s=6,
        full_s=60,
    ),
    Experiment(
        "s-fig11a",
        Study.SERVICES,
        "Figure 11a",
        "Of two services on the same cores both meet their SLAs only at moderate loads, and memcached loses first.",
        ExperimentKind.SIMULATED,
        "Simulated: memcached (0.1 ms a request, SLA 9.6 ms) and NGINX (0.16 ms, SLA 120 ms), a vCPU each at equal"
        " weights"
        " on one pCPU, at every pair of loads, in `equipoise profile pair`'s order. The cells of their figure are"
        " not in its text.",
        colocation,
        PlotAxes("load of memcached, %", "load of NGINX, %"),
        (),
        (
            PaperClaim(
                "largest sum of loads at which both meet theirs, %",
                "together",
                None,
                "V.B2: cores are shared in time",
                40,
                100,
                below="Time slices of 3 ms and ticks of 4 ms are long beside an SLA of 9.6 ms.",
                above="Beyond 100 % queues grow for longer than this run takes to show it.",
            ),
            PaperClaim(
                "pairs at which both meet theirs",
                "both_share",
                None,
                "Figure 11a",
                8,
                60,
                "%",
                below="Time slices of 3 ms and ticks of 4 ms are long beside an SLA of 9.6 ms.",
                above="In runs this short queues near to a full pCPU have no time to grow.",
            ),
            PaperClaim(
                "pairs with NGINX alone less pairs with memcached alone",
                "nginx_more",
                None,
                "VI: memcached is the more sensitive",
                1,
                below="NGINX asks for more CPU time a request, so it is the one that is full first.",
            ),
        ),
        quick_s=5,
        full_s=40,
    ),
)
