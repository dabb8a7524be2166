"""Many VMs that start within a second: how long until all are managed, and what that costs the agent.

    python -m tests.bench.storm [--vms 100] [--within-s 1] [--interval-s 1] [--call-ms 1] [--json FILE]

The agent is a process of its own with a manager on SQLite, everything real but the connection to libvirt: its stand-in
tells of each VM by a lifecycle event, and lets each call take ``--call-ms``, about what libvirtd needs. The VMs are
sleeping processes in real control groups. A VM is managed once its CPU weight in the kernel is not the kernel's default
any more; that cannot be before the tick after its start.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.bench.figures import Spread, host_cpu_s, machine, undone_when_told_to_end, write_json
from tests.bench.site import AgentProcess, running_agent, running_site, usage
from tests.bench.vms import BenchError, Vm, Vms, assignment, running_vms, vm_name

POLL_S = 0.005
WAIT_S = 60.0
AFTER_S = 5.0


@dataclass(frozen=True)
class Result:
    """What a storm did. Times are from the event of each VM, ``all_managed_s`` from the first event.

    ``listings`` and ``libvirt_calls`` are those of the storm; ``agent_cpu_s`` is counted until five seconds after it,
    and ``quiet_cpu_s`` over as long a time before it. ``busy_share`` is how busy the machine was, the storm included.
    """

    vms: int
    within_s: float
    interval_s: float
    events: int
    all_managed_s: float
    managed_s: Spread
    listings: int
    libvirt_calls: int
    ticks: int
    longest_tick_ms: float
    longest_tick_cpu_ms: float
    agent_cpu_s: float
    quiet_cpu_s: float
    busy_share: float


def storm(vms: Vms, agent: AgentProcess, count: int, within_s: float, interval_s: float) -> Result:
    """Start the VMs and watch."""
    time.sleep(2 * interval_s)
    length_s = within_s + 2 * interval_s + AFTER_S
    quiet = usage(agent.pid).cpu_s
    time.sleep(length_s)
    before, used_s, machine_s = agent.figures(), usage(agent.pid).cpu_s, host_cpu_s()
    quiet_s = used_s - quiet
    began_s = time.monotonic()
    started: list[Vm] = []
    told_s: dict[str, float] = {}
    managed_s: dict[str, float] = {}
    waiting: dict[str, Vm] = {}
    default = str(vms.cpu.scale.default)
    while len(managed_s) < count:
        now_s = time.monotonic()
        if now_s > began_s + WAIT_S:
            raise BenchError(f"{count - len(managed_s)} VMs are not managed after {WAIT_S:g} s")
        due = min(int((now_s - began_s) / within_s * count) + 1, count)
        if due > len(started):
            fresh = vms.start(vm_name(number) for number in range(len(started), due))
            for vm in fresh:
                agent.start(vm)
                told_s[vm.name] = time.monotonic()
                waiting[vm.name] = vm
            started += fresh
        else:
            time.sleep(POLL_S)
        for vm in list(waiting.values()):
            if vm.weight_file.read_text().strip() != default:
                managed_s[vm.name] = time.monotonic() - told_s[vm.name]
                del waiting[vm.name]
    all_managed_s = time.monotonic() - min(told_s.values())
    time.sleep(max(began_s + length_s - time.monotonic(), 0.0))
    after, busy_s = agent.figures(), host_cpu_s()
    calls = {name: number - before["calls"].get(name, 0) for name, number in after["calls"].items()}
    return Result(
        count,
        within_s,
        interval_s,
        len(started),
        all_managed_s,
        Spread.of(list(managed_s.values())),
        calls["listAllDomains"],
        sum(calls.values()),
        len(after["tick_ms"]) - len(before["tick_ms"]),
        _largest_since(before, after, "tick_ms"),
        _largest_since(before, after, "tick_cpu_ms"),
        usage(agent.pid).cpu_s - used_s,
        quiet_s,
        (busy_s[0] - machine_s[0]) / (busy_s[1] - machine_s[1]),
    )


def _largest_since(before: dict[str, Any], after: dict[str, Any], name: str) -> float:
    values: Sequence[float] = after[name][len(before[name]) :]
    return max(values, default=0.0)


def show(result: Result) -> None:
    """Print one figure a line."""
    managed = result.managed_s
    table = Table("", "", show_header=False)
    table.add_row("VMs started, within", f"{result.vms}, {result.within_s:g} s")
    table.add_row("from the first event until all are managed", f"{result.all_managed_s:.2f} s")
    table.add_row(
        "from a VM's event until it is managed", f"{managed.median:.2f} s median, {managed.largest:.2f} s most"
    )
    table.add_row("listings, libvirt calls in all", f"{result.listings}, {result.libvirt_calls}")
    table.add_row("ticks, the longest", f"{result.ticks}, {result.longest_tick_ms:.1f} ms")
    table.add_row("its CPU time", f"{result.longest_tick_cpu_ms:.1f} ms")
    table.add_row("agent's CPU time, without the storm", f"{result.agent_cpu_s:.2f} s, {result.quiet_cpu_s:.2f} s")
    table.add_row("machine busy", f"{result.busy_share:.0%}")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=100)
    parser.add_argument("--within-s", type=float, default=1.0)
    parser.add_argument("--interval-s", "--interval", type=float, default=1.0)
    parser.add_argument("--call-ms", type=float, default=1.0, help="what each call to libvirt takes")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    wanted = assignment(options.vms, "priority")
    with undone_when_told_to_end(), ExitStack() as stack:
        vms, _ = stack.enter_context(running_vms(0))
        site = stack.enter_context(running_site(vms.folder, vms.paths.root, options.interval_s, wanted))
        agent = stack.enter_context(running_agent(site, (), options.call_ms))
        result = storm(vms, agent, options.vms, options.within_s, options.interval_s)
    print(machine())
    show(result)
    write_json(options.json, {"result": asdict(result)})


if __name__ == "__main__":
    main()
