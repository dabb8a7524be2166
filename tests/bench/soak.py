"""What an agent costs its host over time: CPU and memory of the whole process.

    python -m tests.bench.soak [--vms 50] [--interval-s 1] [--minutes 10] [--json FILE]

Bars (design, section 9): with 50 VMs and an interval of 1 s at most 0.5 % of one core, at most 120 MiB, and flat. The
agent is a process of its own with a manager on SQLite, everything real but the connection to libvirt, whose stand-in
lets each call take ``--call-ms``. Half of the VMs serve applications under the policy `fair`, and the benchmark posts a
hundred response times of each application to the manager each second. Memory grows for five minutes, the time for which
an agent remembers response times (manager.loop.link), and must not grow after that.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from manager.model.registration import Application
from tests.bench.figures import Spread, host_cpu_s, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.site import AgentProcess, Site, Usage, running_agent, running_site, usage
from tests.bench.vms import BenchError, Vm, Vms, assignment, running_vms

BAR_CPU_SHARE, BAR_MIB = 0.005, 120.0
EARLY_S, SETTLED_S = 120.0, 330.0
SAMPLES = 100


@dataclass(frozen=True)
class Reading:
    """The agent's process so many seconds after the begin."""

    at_s: float
    used: Usage


@dataclass(frozen=True)
class Result:
    """What an agent used. Shares are of one core, after ``settled_s``, when memory begins to be compared.

    ``early_mib`` is resident memory after two minutes (or a third of the time, where that is less), and
    ``growth_mib_per_hour`` the slope of a line through it after ``settled_s``. ``ticks_share`` is the part of
    ``cpu_share`` that ticks use; the rest is reporting, talking with the manager and the interpreter's own.
    """

    vms: int
    interval_s: float
    minutes: float
    settled_s: float
    cpu_share: float
    ticks_share: float
    most_mib: float
    early_mib: float
    settled_mib: float
    last_mib: float
    growth_mib_per_hour: float
    tick_ms: Spread
    ticks: int
    libvirt_calls: int
    busy_share: float
    readings: tuple[tuple[float, float, float], ...]


def post(site: Site, applications: Sequence[Application], chance: random.Random) -> None:
    """A hundred response times of each application, log-normal about 10 ms."""
    for app in applications:
        times = [round(chance.lognormvariate(math.log(10), 0.5), 3) for _ in range(SAMPLES)]
        site.client.post(f"/applications/{app.name}/samples", json={"times_ms": times}).raise_for_status()


def require_managed(site: Site, count: int) -> None:
    """Raises BenchError when the agent does not manage so many VMs: its figures would be those of an idle one."""
    managed = sum(1 for vm in site.client.get("/vms").raise_for_status().json()["items"] if vm["status"])
    if managed != count:
        raise BenchError(f"the agent manages {managed} of {count} VMs")


def soak(
    vms: Vms,
    started: Sequence[Vm],
    site: Site,
    agent: AgentProcess,
    applications: Sequence[Application],
    minutes: float,
    interval_s: float,
) -> Result:
    """Let it run, and read what it uses once a second."""
    chance = random.Random(1)
    length_s = minutes * 60
    settled_s = min(SETTLED_S, length_s / 2)
    readings: list[Reading] = []
    ticks_before: list[float] = []
    machine_s = host_cpu_s()
    began_s = time.monotonic()
    while (at_s := time.monotonic() - began_s) < length_s:
        readings.append(Reading(at_s, usage(agent.pid)))
        if not ticks_before and at_s >= settled_s:
            ticks_before = agent.figures()["tick_cpu_ms"]
        if len(readings) == 5:
            vms.burst(started[0::2])
        post(site, applications, chance)
        time.sleep(max(began_s + len(readings) - time.monotonic(), 0.0))
    readings.append(Reading(time.monotonic() - began_s, usage(agent.pid)))
    require_managed(site, len(started))
    figures, busy_s = agent.figures(), host_cpu_s()
    later = [one for one in readings if one.at_s >= settled_s]
    spent_s = later[-1].at_s - later[0].at_s
    return Result(
        len(started),
        interval_s,
        minutes,
        settled_s,
        (later[-1].used.cpu_s - later[0].used.cpu_s) / spent_s,
        sum(figures["tick_cpu_ms"][len(ticks_before) :]) / 1000 / spent_s,
        later[-1].used.most_mib,
        next(one.used.rss_mib for one in readings if one.at_s >= min(EARLY_S, length_s / 3)),
        later[0].used.rss_mib,
        later[-1].used.rss_mib,
        _slope(later) * 3600,
        Spread.of(figures["tick_ms"]),
        len(figures["tick_ms"]),
        sum(figures["calls"].values()),
        (busy_s[0] - machine_s[0]) / (busy_s[1] - machine_s[1]),
        tuple((round(one.at_s, 1), one.used.cpu_s, round(one.used.rss_mib, 2)) for one in readings[::10]),
    )


def _slope(readings: Sequence[Reading]) -> float:
    """MiB a second of the line with the least squared distance from resident memory."""
    mean_s = sum(one.at_s for one in readings) / len(readings)
    mean_mib = sum(one.used.rss_mib for one in readings) / len(readings)
    spread = sum((one.at_s - mean_s) ** 2 for one in readings)
    return sum((one.at_s - mean_s) * (one.used.rss_mib - mean_mib) for one in readings) / spread if spread else 0.0


def show(result: Result) -> None:
    """Print one figure a line."""
    table = Table("", "", "bar", show_header=False)
    table.add_row("VMs, interval, minutes", f"{result.vms}, {result.interval_s:g} s, {result.minutes:g}", "")
    bar = f"<= {BAR_CPU_SHARE:.1%}: {verdict(result.cpu_share, BAR_CPU_SHARE)}"
    table.add_row("CPU, share of one core", f"{result.cpu_share:.2%}", bar)
    table.add_row("of that in ticks", f"{result.ticks_share:.2%}", "")
    bar = f"<= {BAR_MIB:g} MiB: {verdict(result.most_mib, BAR_MIB)}"
    table.add_row("resident memory at most", f"{result.most_mib:.1f} MiB", bar)
    table.add_row("after two minutes", f"{result.early_mib:.1f} MiB", "")
    span = f"{result.settled_mib:.1f} to {result.last_mib:.1f} MiB"
    table.add_row(f"from {result.settled_s:g} s to the end", f"{span}, {result.growth_mib_per_hour:+.2f} MiB/h", "flat")
    table.add_row("tick, median and p99", f"{result.tick_ms.median:.1f} ms, {result.tick_ms.p99:.1f} ms", "")
    table.add_row("ticks, calls to libvirt", f"{result.ticks}, {result.libvirt_calls}", "")
    table.add_row("machine busy", f"{result.busy_share:.0%}", "")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=50)
    parser.add_argument("--interval-s", "--interval", type=float, default=1.0)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--call-ms", type=float, default=1.0, help="what each call to libvirt takes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    wanted = assignment(options.vms, "fair")
    with undone_when_told_to_end(), ExitStack() as stack:
        vms, started = stack.enter_context(running_vms(options.vms))
        site = stack.enter_context(running_site(vms.folder, vms.paths.root, options.interval_s, wanted))
        agent = stack.enter_context(running_agent(site, started, options.call_ms))
        result = soak(vms, started, site, agent, wanted.applications, options.minutes, options.interval_s)
    print(machine())
    show(result)
    bars = {"cpu_share": BAR_CPU_SHARE, "mib": BAR_MIB}
    write_json(options.json, {"bars": bars, "result": asdict(result)})


if __name__ == "__main__":
    main()
