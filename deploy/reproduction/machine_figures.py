"""What this machine's kernel and programs do: Table IV and Figure 4 of the 2017 study."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from deploy.reproduction.benchmark_process import json_of_module, lacks_programs
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
from manager.load import LoadSpec, MemcachedOptions, Phase
from manager.load.runner import run as run_load

MECHANISMS = {"weight": 1, "vCPU affinity": 2, "quota": 3, "memory ceiling": 4}
VALUE_BYTES = (2, 200, 2000, 20_000, 200_000)
RATE_RPS = 150.0


def actuators(setting: RunSetting) -> FigureNumbers:
    """Table IV: the mean time to apply a mechanism once."""
    size = setting.choose(("--vms", "4", "--times", "300"), ("--vms", "20", "--times", "10000"))
    rows = json_of_module("tests.bench.actuators", size)["results"]
    us = {row["what"]: row["us"]["mean"] for row in rows if row["us"] is not None}
    points = tuple((float(place), us[name] / 1000) for name, place in MECHANISMS.items() if name in us)
    values = {}
    if "weight" in us:
        values["cpu_ms"] = max(us[name] for name in ("weight", "vCPU affinity", "quota") if name in us) / 1000
    if "memory ceiling" in us:
        values["memory_ms"] = us["memory ceiling"] / 1000
    skipped = tuple(f"{row['what']}: {row['note']}" for row in rows if row["us"] is None)
    return FigureNumbers((PlotLine("this machine", points),), values, skipped)


@contextmanager
def _memcached() -> Iterator[int]:
    """The port of a memcached of our own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = ["memcached", "-u", "nobody", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-t", "1", "-m", "512"]
    with subprocess.Popen(command) as server:
        try:
            yield port
        finally:
            server.terminate()


def value_sizes(setting: RunSetting) -> FigureNumbers:
    """Figure 4: the response time by the size of values, at a rate that all sizes bear."""
    sizes = setting.choose((200, 20_000, 200_000), VALUE_BYTES)
    points: dict[str, list[tuple[float, float]]] = {"p50": [], "p99": []}
    notes = []
    with _memcached() as port:
        for size in sizes:
            options = MemcachedOptions(keys=200, value_bytes=size, set_share=0.0)
            schedule = (Phase(setting.choose(1.5, 20.0), RATE_RPS),)
            spec = LoadSpec("127.0.0.1", port, options, schedule, warmup_s=0.3, connections=8, seed=setting.seed)
            result = run_load(spec)
            for name, percentile in (("p50", 50), ("p99", 99)):
                time_us = result.histogram.percentile_us(percentile)
                points[name].append((float(size), float("nan") if time_us is None else time_us / 1000))
            notes += [f"{size} bytes: {limit}" for limit in result.client_limits]
    median, tail = (dict(points[name]) for name in ("p50", "p99"))
    values = {"p50": median[200_000] / median[200]}
    if not notes:  # else the tail is that of the load generator
        values["p99"] = tail[200_000] / tail[200]
    return FigureNumbers(tuple(PlotLine(name, tuple(each)) for name, each in points.items()), values, tuple(notes))


EXPERIMENTS = (
    Experiment(
        "s-table4",
        Study.SERVICES,
        "Table IV",
        "Applying an isolation mechanism takes a few milliseconds, so that each needless decision costs tail latency.",
        ExperimentKind.MACHINE,
        "`python -m tests.bench.actuators`: processes with threads and control groups like those of VMs, written to by"
        " the agent's own code and read back; theirs started programs for each.",
        actuators,
        PlotAxes("1 weight, 2 affinity, 3 quota, 4 memory", "mean time, ms", logarithmic=True),
        (
            line("Xeon", (1, 6.5), (2, 6.5), (3, 6.5), (4, 6.9)),
            line("ThunderX", (1, 11.7), (2, 11.7), (3, 11.7), (4, 11.9)),
        ),
        (
            PaperClaim(
                "CPU: slowest of weight, affinity and quota, ms",
                "cpu_ms",
                6.5,
                "Table IV, Xeon: 6.5 ms",
                0.0,
                6.5,
                above="This machine was busy, or a write waited for a lock of the kernel.",
            ),
            PaperClaim(
                "memory ceiling, ms",
                "memory_ms",
                6.9,
                "Table IV, Xeon: 6.9 ms",
                0.0,
                6.9,
                above="This machine was busy, or a write waited for a lock of the kernel.",
            ),
        ),
        quick_s=0,
        full_s=90,
        lacks=lambda: lacks_programs("gcc", root=True),
    ),
    Experiment(
        "s-fig4",
        Study.SERVICES,
        "Figure 4",
        "Memcached's latency grows dramatically with the size of values.",
        ExperimentKind.MACHINE,
        f"memcached with one thread, and the product's load generator (open loop, {RATE_RPS:g} req/s) beside it on"
        f" this machine,"
        " without a network; theirs ran at 70 % of their peak, where queues multiply each delay.",
        value_sizes,
        PlotAxes("size of values, bytes", "response time, ms", logarithmic=True),
        (),
        (
            PaperClaim(
                "p99 with values of 200,000 bytes over 200",
                "p99",
                None,
                "IV.C1: latencies increase dramatically",
                1.5,
                unit="x",
                below="At this low rate a long answer delays no other, and there is no network to fill.",
            ),
            PaperClaim(
                "median: the same",
                "p50",
                None,
                "Figure 4",
                1.2,
                unit="x",
                below="At this low rate a long answer delays no other, and there is no network to fill.",
            ),
        ),
        quick_s=7,
        full_s=110,
        lacks=lambda: lacks_programs("memcached"),
    ),
)
