"""What is left of the tail: who keeps critical VMs' threads waiting, traced on real VMs, with batch VMs and without.

    python -m tests.bench.tail_trace [--batch 2x2] [--seconds 8] [--turns 3] [--phase NAME] [--folder DIR] [--json FILE]

The demonstration's VMs, load and phases. In each turn each phase is measured twice: without the trace for response
times, then with it (``perf record`` of wake-ups, switches and interrupts) for waits. Per thread of a critical VM: how
long it waited to run after it woke up, and, for waits of ``LONG_MS`` or more, who had its pCPU. Also what an answer
costs in CPU time of the vCPU: more beside batch VMs is what they took of caches, TLBs and branch history, and no
scheduler gives it back. Needs root, the lab (deploy/lab/setup.sh) and ``perf`` (Debian: linux-perf).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.lab.commands import LabError
from deploy.lab.demo.measure import measure
from deploy.lab.demo.phases import load_it_bears
from deploy.lab.demo.scene import PHASES, WARMUP_S, DemoPhase, parse_shape, phases_scene
from deploy.lab.demo.stage import Stage, paused, set_up
from deploy.lab.lab_lock import only_user
from manager.model.histogram import Histogram
from tests.bench.figures import machine, undone_when_told_to_end, write_json
from tests.bench.waits import Waits, parse, waits_of

LONG_MS = 0.3
TRACED = ("alone-pinned", "weighted", "protected")
EVENTS = "sched:sched_switch,sched:sched_wakeup,sched:sched_wakeup_new,irq:softirq_entry,irq:softirq_exit"
EVENTS += ",irq:irq_handler_entry,irq:irq_handler_exit,irq_vectors:local_timer_entry,irq_vectors:local_timer_exit"
MEMORY = Path("/dev/shm")


def roles(stage: Stage) -> dict[int, str]:
    """Who each thread of this machine is."""
    pids = {int(Path(f"/run/libvirt/qemu/{vm.name}.pid").read_text()): vm.name for vm in stage.scene.vms}
    batch = {vm.name for vm in stage.scene.batch}
    named: dict[int, str] = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            threads = [(int(task.name), (task / "comm").read_text().strip()) for task in (process / "task").iterdir()]
        except OSError:  # it has ended
            continue
        for tid, comm in threads:
            vm = pids.get(int(process.name))
            if vm is not None:
                kind = "vCPU" if comm.startswith("CPU ") else "emulator"
                named[tid] = f"batch {kind}" if vm in batch else f"{vm} {kind}"
            elif "load_process" in command:
                named[tid] = "load generator"
            elif "manager.cli" in command:
                named[tid] = "Equipoise"
            elif command:
                named[tid] = f"host: {comm.partition('-')[0]}"
            else:
                named[tid] = f"kernel: {comm.partition('/')[0].partition(':')[0]}"
    return named


@contextmanager
def recorded(file: Path) -> Iterator[None]:
    """Have the kernel's events of all CPUs in a file when the block ends. Raises LabError."""
    command = ["perf", "record", "-q", "-a", "-m", "16M", "-e", EVENTS, "-o", str(file)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as perf:
        time.sleep(1.0)
        try:
            yield
        finally:
            perf.terminate()
            _, errors = perf.communicate()
    if "lost" in errors.lower() or not file.exists():
        raise LabError(f"perf: {errors}")


def events(file: Path) -> Iterator[str]:
    """The lines of a recording."""
    command = ["perf", "script", "--ns", "-F", "tid,cpu,time,event,trace", "-i", str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as perf:
        assert perf.stdout is not None
        yield from perf.stdout


def traced(stage: Stage, seconds: float, folder: Path) -> dict[str, Waits]:
    """The waits of critical VMs' threads under load, by role."""
    file, named = folder / "perf.data", {}

    def look() -> None:
        """In the middle of the load: the load generators run then."""
        time.sleep(WARMUP_S + 1.0)
        with recorded(file):
            named.update(roles(stage))
            time.sleep(seconds - 3.0)

    looking = threading.Thread(target=look)
    looking.start()
    measure(stage.scene, stage.meter, seconds, stage.service.push, lambda _gone_s: None)
    looking.join()
    critical = {service.vm.name for service in stage.scene.services}
    tids = [tid for tid, role in named.items() if role.rpartition(" ")[0] in critical]
    found = waits_of(parse(events(file)), tids, lambda tid, comm: named.get(tid, f"other: {comm}"), LONG_MS)
    waits: dict[str, Waits] = {}
    for tid, one in found.items():
        together = waits.setdefault(named[tid], Waits())
        together.add(one)
    return waits


def cpu_ms_per_answer(stage: Stage, seconds: float) -> tuple[Mapping[str, Any], dict[str, float]]:
    """The results of the load without a trace, and CPU milliseconds of the vCPU for each answer, by service."""
    files = {}
    for service in stage.scene.services:
        pid = int(Path(f"/run/libvirt/qemu/{service.vm.name}.pid").read_text())
        tasks = Path(f"/proc/{pid}/task").iterdir()
        files[service.name] = [task / "schedstat" for task in tasks if (task / "comm").read_text().startswith("CPU ")]

    def ran_ms() -> dict[str, float]:
        return {name: sum(int(one.read_text().split()[0]) for one in held) / 1e6 for name, held in files.items()}

    before = ran_ms()
    measured = measure(stage.scene, stage.meter, seconds, stage.service.push, lambda _gone_s: None)
    after = ran_ms()
    answers = {service.name: service.rate_rps * (seconds + WARMUP_S) for service in stage.scene.services}
    return measured.loads, {name: (after[name] - before[name]) / answers[name] for name in files}


def experiment(options: argparse.Namespace, console: Console) -> dict[str, Any]:
    """All turns of all phases."""
    histograms: dict[tuple[str, str], Histogram] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    waits: dict[tuple[str, str], Waits] = {}
    with ExitStack() as stack:
        stack.enter_context(only_user("tests.bench.tail_trace"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=MEMORY)))
        stage = set_up(console, stack, phases_scene(parse_shape(options.batch)), load_it_bears(console))
        stage.service.needs_batch_group()
        for _turn in range(options.turns):
            for phase in [phase for phase in PHASES if phase.name in (options.phase or TRACED)]:
                console.print(f"      {phase.name}")
                with in_phase(stage, phase):
                    loads, cost = cpu_ms_per_answer(stage, options.seconds)
                    for name, load in loads.items():
                        key = phase.name, name
                        buckets = Histogram({int(edge): count for edge, count in load["histogram"]["buckets"].items()})
                        histograms[key] = histograms.get(key, Histogram()).merge(buckets)
                        costs.setdefault(key, []).append(cost[name])
                    for role, one in traced(stage, options.seconds, options.folder or folder).items():
                        waits.setdefault((phase.name, role), Waits()).add(one)
        changed = stage.close(keep=False)
    return {
        "batch": options.batch,
        "long_ms": LONG_MS,
        "response_times": {
            f"{phase}, {name}": {
                **{f"p{at}_ms": one.percentile_us(at) / 1000 for at in (50, 95, 99)},
                "cpu_ms_per_answer": sum(costs[phase, name]) / len(costs[phase, name]),
            }
            for (phase, name), one in histograms.items()
        },
        "waits": {f"{phase}, {role}": dict(one.figures()) for (phase, role), one in sorted(waits.items())},
        "restored": changed == [],
    }


@contextmanager
def in_phase(stage: Stage, phase: DemoPhase) -> Iterator[None]:
    """The host is controlled as in that phase."""
    stage.service.control(phase.settings)
    with paused(stage.lab, () if phase.batch_runs else stage.scene.batch):
        yield


def show(console: Console, result: Mapping[str, Any]) -> None:
    """All tables."""
    times = Table("phase, service", "p50 ms", "p95 ms", "p99 ms", "vCPU ms an answer")
    for name, one in result["response_times"].items():
        times.add_row(name, *(f"{one[key]:.3f}" for key in ("p50_ms", "p95_ms", "p99_ms", "cpu_ms_per_answer")))
    console.print(times)
    table = Table(
        "phase, thread", "wake-ups", "p50", "p95", "p99", "greatest ms", "preempted", "long", "who had the pCPU, ms"
    )
    for name, one in result["waits"].items():
        who = ", ".join(f"{role} {spent:.1f}" for role, spent in list(one["blamed_ms"].items())[:6])
        numbers = (f"{one[key]:.3f}" for key in ("p50_ms", "p95_ms", "p99_ms", "greatest_ms"))
        table.add_row(name, str(one["wake_ups"]), *numbers, str(one["preempted"]), str(one["long_waits"]), who)
    console.print(table)
    table = Table("phase, thread", "ran s", "of each second of that interrupted, ms")
    for name, one in result["waits"].items():
        if one["ran_s"]:
            by = ", ".join(f"{what} {spent / one['ran_s']:.2f}" for what, spent in one["interrupted_ms"].items())
            table.add_row(name, f"{one['ran_s']:.2f}", by)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", default="2x2", help="batch VMs x vCPUs of each")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each phase in each turn, once and once traced")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--phase", choices=TRACED, action="append", help="by default all")
    parser.add_argument("--folder", type=Path, help="keep the last recording there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    with undone_when_told_to_end():
        result = experiment(options, console)
    console.print(machine())
    show(console, result)
    write_json(options.json, result)


if __name__ == "__main__":
    main()
