"""Response times beside bursts of batch work, with and without the guard: real VMs, the same load in both.

    python -m tests.bench.guard_bursts [--policy priority] [--batch 2x2] [--on-ms 100] [--off-ms 1900] [--seconds 20]
                                       [--turns 3] [--rate 500] [--png FILE] [--json FILE]

The experiment of Caladan (Fried et al., OSDI 2020): batch VMs that work for 100 ms every 2 s beside a service, and p99
for each 100 ms over time. The service is memcached in a VM of one vCPU, which ``priority`` pins; ``equal`` gives no
weights and no pins. Turns with and without the guard alternate, so that both have the same share of what else the
machine does; compare their ratios, not milliseconds. Needs root and the lab (deploy/lab/setup.sh).

Also measured is the reaction, by a thread of its own that reads the service's vCPU every 5 ms: from when the wait of
the last 50 ms first exceeds the guard's bound to its next write.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from deploy.lab.accelerator import decide
from deploy.lab.demo.load_process import to_json
from deploy.lab.demo.originals import settings_of_all
from deploy.lab.guest import build
from deploy.lab.lab_lock import only_user
from deploy.lab.lab_vms import MEMCACHED_PORT, PREFIX, URI, GuestRole, LabHost, LabVm, connect
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.load import LoadSpec, MemcachedOptions, Phase
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.guard import Guard, GuardSettings, GuardUse
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.histogram import Histogram
from manager.model.host import VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import KnobKey
from manager.model.limits import EVERYTHING
from manager.model.registration import Assignment, HostSpec, VmClass, VmSpec
from policies.installed import load_policies
from tests.bench.figures import host_cpu_s, machine, undone_when_told_to_end, write_json
from tests.live.conftest import before_all_else

LAB_PREFIX = f"{PREFIX}burst-"
CACHE = LabVm(f"{LAB_PREFIX}cache", GuestRole.MEMCACHED, "192.168.122.211")
SLOT_S, LOOK_S, WINDOW_S = 0.1, 0.005, 0.05
LEARN_S = 14.0
WARMUP_S = 1.0
LOADGROUP = Path(__file__).parents[2] / "deploy/lab/loadgroup.sh"


@dataclass
class Turn:
    """One run of the load. Times are monotonic seconds, ``slots`` those of ``SLOT_S`` by their begin."""

    guarded: bool
    begin_s: float = 0.0
    slots: list[tuple[float, Histogram]] = field(default_factory=list)
    looks: list[tuple[float, int, int]] = field(default_factory=list)
    """Time, nanoseconds that the service's vCPU waited, and that all batch vCPUs ran."""
    writes: list[float] = field(default_factory=list)
    episodes: list[str] = field(default_factory=list)
    bound: float = 0.0


class NotingHost(KernelHost):
    """Notes the times of all writes to VMs."""

    written: list[float]

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        held = super().write(instance, key, value)
        self.written.append(time.monotonic())
        return held


class Site:
    """The host under control, the same for all turns."""

    def __init__(self, stack: ExitStack, folder: Path, policy: str, batch: Sequence[LabVm]) -> None:
        self.batch = batch
        paths = HostPaths(Path("/"))
        watch = HypervisorWatch(URI, paths, 30.0)
        watch.start()
        stack.callback(watch.stop)
        self.host = NotingHost(paths, watch)
        self.host.written = []
        journal = Journal(folder / "journal.db", self.host.boot_id)
        stack.callback(journal.close)
        policies = {name: one.policy for name, one in load_policies(on_error=print).items()}
        self.loop = ControlLoop(self.host, journal, policies, LoopSettings("lab", 1.0, 30.0, 20), limits=EVERYTHING)
        stack.callback(self.loop.release, "end of the experiment")
        specs = [VmSpec(CACHE.name, VmClass.CRITICAL), *(VmSpec(vm.name, VmClass.BATCH) for vm in batch)]
        specs.sort(key=lambda spec: spec.name)
        self.assignment = Assignment(HostSpec("lab", policy=policy, pinning=policy != "equal"), tuple(specs))
        self.turn_lock = threading.RLock()
        self.said: list[str] = []
        self.crashes: list[BaseException] = []
        self.guard: Guard | None = None

    def tick(self) -> None:
        """As the agent does."""
        with self.turn_lock:
            self.loop.tick(self.assignment, {})
            if self.guard:
                self.guard.ticked()

    def start_guard(self) -> Guard:
        """A guard that knows nothing yet."""
        self.guard = Guard(
            self.loop,
            GuardSettings(GuardUse.ON),
            self.turn_lock,
            say=lambda _severity, _kind, text: self.said.append(text),
            crashed=lambda _what, error: self.crashes.append(error),
            metrics=AgentMetrics(),
        )
        self.tick()
        self.guard.start()
        return self.guard

    def stop_guard(self) -> None:
        """And let go of what it holds."""
        if self.guard:
            self.guard.stop()
            self.guard.let_go()
            self.guard = None


@contextmanager
def beside_vms() -> Iterator[None]:
    """This process, and those it starts, are in the group of the load generators, with the weight of all VMs."""
    subprocess.run([LOADGROUP, "make"], check=True)
    subprocess.run(["cgclassify", "-g", "cpu:equipoise-lab-load", str(os.getpid())], check=True)
    try:
        yield
    finally:
        subprocess.run(["cgclassify", "-g", "cpu:/", str(os.getpid())], check=True)


def vcpu_files(name: str) -> list[Path]:
    """The schedstat of each vCPU of a VM."""
    pid = int(Path(f"/run/libvirt/qemu/{name}.pid").read_text())
    threads = Path(f"/proc/{pid}/task").iterdir()
    return [thread / "schedstat" for thread in threads if (thread / "comm").read_text().startswith("CPU ")]


@contextmanager
def watched(turn: Turn, batch: Sequence[LabVm]) -> Iterator[None]:
    """Look at the vCPUs meanwhile."""
    waits = [os.open(file, os.O_RDONLY) for file in vcpu_files(CACHE.name)]
    runs = [os.open(file, os.O_RDONLY) for vm in batch for file in vcpu_files(vm.name)]
    stopping = threading.Event()

    def look() -> None:
        while not stopping.wait(LOOK_S):
            waited_ns = sum(int(os.pread(one, 64, 0).split()[1]) for one in waits)
            ran_ns = sum(int(os.pread(one, 64, 0).split()[0]) for one in runs)
            turn.looks.append((time.monotonic(), waited_ns, ran_ns))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        for one in (*waits, *runs):
            os.close(one)


def run_turn(site: Site, guarded: bool, rate_rps: float, seconds: float) -> Turn:
    """The load, in the group of the load generators, while ticks go on."""
    turn = Turn(guarded)
    guard = site.start_guard() if guarded else None
    extra_s = LEARN_S if guarded else 0.0  # its bound is to be that under load
    spec = LoadSpec(
        CACHE.ip,
        MEMCACHED_PORT,
        MemcachedOptions(),
        (Phase(seconds + extra_s, rate_rps),),
        warmup_s=WARMUP_S,
        interval_s=SLOT_S,
    )
    offset_s = time.time() - time.monotonic()
    command = [LOADGROUP, "run", "--", sys.executable, "-m", "deploy.lab.demo.load_process", to_json(spec)]
    said = len(site.said)
    with watched(turn, site.batch), subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        ticks = threading.Event()
        ticking = threading.Thread(target=lambda: [site.tick() for _ in iter(lambda: ticks.wait(1.0), True)])
        ticking.start()
        for line in load.stdout:
            interval = json.loads(line).get("interval")
            if interval is None:
                continue
            begin_s = interval["start_epoch_s"] - offset_s
            turn.slots.append((begin_s, Histogram({int(key): count for key, count in interval["buckets"].items()})))
            if guard is not None and guard._memory.customs:
                turn.bound = max(one.bound for one in guard._memory.customs.values())
        ticks.set()
        ticking.join()
    if guarded:
        site.stop_guard()
    first_s = turn.slots[0][0] + extra_s
    turn.begin_s = first_s
    turn.slots = [slot for slot in turn.slots if slot[0] >= first_s]
    turn.looks = [look for look in turn.looks if look[0] >= first_s]
    turn.writes = [at_s for at_s in site.host.written if at_s >= first_s]
    turn.episodes = site.said[said:]
    return turn


def busy(turn: Turn) -> list[float]:
    """The begins of slots in which batch vCPUs used more than a fifth of a pCPU."""
    found = []
    for begin_s, _ in turn.slots:
        inside = [look for look in turn.looks if begin_s <= look[0] < begin_s + SLOT_S]
        if len(inside) > 1 and inside[-1][2] - inside[0][2] > 0.2 * SLOT_S * 1e9:
            found.append(begin_s)
    return found


def reactions_ms(turn: Turn) -> list[float]:
    """From the first look at which the last 50 ms had more wait than the bound, to the first write after it."""
    found: list[float] = []
    since_s: float | None = None
    write = 0
    first = 0
    for at_s, waited_ns, _ in turn.looks:
        while turn.looks[first][0] < at_s - WINDOW_S:
            first += 1
        while write < len(turn.writes) and turn.writes[write] <= at_s:
            if since_s is not None:
                found.append((turn.writes[write] - since_s) * 1000)
            since_s = None
            write += 1
        excess = waited_ns - turn.looks[first][1] > turn.bound * WINDOW_S * 1e9
        if excess and since_s is None:
            since_s = at_s
        elif since_s is not None and at_s - since_s > 0.3:
            since_s = None  # it ended by itself
    return found


def summary(turns: Sequence[Turn]) -> dict[str, Any]:
    """Of all turns of one kind together."""
    whole = Histogram().merge(*(histogram for turn in turns for _, histogram in turn.slots))
    bursts = [set(busy(turn)) for turn in turns]
    hit = Histogram().merge(
        *(one for turn, begins in zip(turns, bursts, strict=True) for begin_s, one in turn.slots if begin_s in begins)
    )
    slots = [one.percentile_us(99) / 1000 for turn in turns for _, one in turn.slots if one.count]
    ran = [(turn.looks[-1][2] - turn.looks[0][2]) / 1e9 / (turn.looks[-1][0] - turn.looks[0][0]) for turn in turns]
    waited = [(turn.looks[-1][1] - turn.looks[0][1]) / 1e9 / (turn.looks[-1][0] - turn.looks[0][0]) for turn in turns]
    return {
        "p50_ms": whole.percentile_us(50) / 1000,
        "p95_ms": whole.percentile_us(95) / 1000,
        "p99_ms": whole.percentile_us(99) / 1000,
        "burst_p99_ms": hit.percentile_us(99) / 1000 if hit.count else None,
        "burst_slots": sum(map(len, bursts)),
        "slots_above_10_ms": sum(value > 10 for value in slots) / len(slots),
        "batch_pcpus": statistics.fmean(ran),
        "vcpu_wait": statistics.fmean(waited),
        "episodes": sum(len(turn.episodes) for turn in turns),
        "reactions_ms": [round(value, 1) for turn in turns for value in reactions_ms(turn)],
        "bound": max(turn.bound for turn in turns),
    }


def draw(turns: Sequence[Turn], file: Path, title: str) -> None:
    """p99 for each 100 ms over time, without and with the guard, bursts grey, writes of the guard as lines."""
    mpl.use("agg")
    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for panel, guarded in zip(panels, (False, True), strict=True):
        turn = next(turn for turn in reversed(turns) if turn.guarded is guarded)
        at_s = [begin_s - turn.begin_s for begin_s, _ in turn.slots]
        p99 = [one.percentile_us(99) / 1000 if one.count else float("nan") for _, one in turn.slots]
        panel.plot(at_s, p99, color="#0072b2", linewidth=1)
        for begin_s in busy(turn):
            panel.axvspan(begin_s - turn.begin_s, begin_s - turn.begin_s + SLOT_S, color="0.88", zorder=0)
        for write_s in turn.writes if guarded else ():
            panel.axvline(write_s - turn.begin_s, color="#d55e00", linewidth=0.6, zorder=1)
        panel.set_yscale("log")
        panel.set_ylabel("p99 of 100 ms, ms")
        panel.set_title("with the guard (orange: it writes)" if guarded else "without the guard (grey: batch runs)")
    panels[1].set_xlabel("seconds")
    figure.suptitle(title)
    figure.savefig(file, dpi=100)


def experiment(options: argparse.Namespace) -> tuple[list[Turn], dict[str, Any]]:
    """All turns."""
    count, vcpus = map(int, options.batch.split("x"))
    wave: Mapping[str, int] = {"on_ms": options.on_ms, "off_ms": options.off_ms} if options.off_ms else {}
    batch = [
        LabVm(f"{LAB_PREFIX}batch-{number}", GuestRole.BATCH, f"192.168.122.{212 + number}", vcpus=vcpus, options=wave)
        for number in range(count)
    ]
    turns: list[Turn] = []
    with ExitStack() as stack:
        stack.enter_context(only_user("tests.bench.guard_bursts"))
        events = EventLoop()  # before the first connection
        events.start()
        stack.callback(events.stop)
        guest = build()
        lab = LabHost(connect(), guest, decide(guest).accelerator)
        lab.destroy_all(LAB_PREFIX)
        stack.callback(lab.destroy_all, LAB_PREFIX)
        for vm in (CACHE, *batch):
            lab.start(vm)
        for vm in (CACHE, *batch):
            lab.wait_ready(vm)
        stack.enter_context(before_all_else(CACHE))
        stack.enter_context(beside_vms())  # as the agent would be, not behind them
        names = [CACHE.name, *(vm.name for vm in batch)]
        before = settings_of_all(names)
        busy_before = host_cpu_s()
        with ExitStack() as control:
            site = Site(control, options.folder, options.policy, batch)
            deadline_s = time.monotonic() + 30
            while len(site.host.running()) < len(names) and time.monotonic() < deadline_s:
                time.sleep(0.1)
            site.tick()
            for number in range(2 * options.turns):
                turns.append(run_turn(site, number % 2 == 1, options.rate, options.seconds))
                print(f"turn {number + 1}: {summary(turns[-1:])}", flush=True)
                print(*turns[-1].episodes, sep="\n", flush=True)
            if site.crashes:
                raise site.crashes[0]
        after = settings_of_all(names)
        busy_after = host_cpu_s()
    result = {
        "policy": options.policy,
        "batch": options.batch,
        "on_ms": options.on_ms,
        "off_ms": options.off_ms,
        "rate_rps": options.rate,
        "without": summary([turn for turn in turns if not turn.guarded]),
        "with": summary([turn for turn in turns if turn.guarded]),
        "restored": before == after,
        "busy_share": (busy_after[0] - busy_before[0]) / (busy_after[1] - busy_before[1]),
    }
    return turns, result


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="priority")
    parser.add_argument("--batch", default="2x2", help="batch VMs x vCPUs of each")
    parser.add_argument("--on-ms", type=int, default=100)
    parser.add_argument("--off-ms", type=int, default=1900)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rate", type=float, default=500.0)
    parser.add_argument("--folder", type=Path, default=Path("/tmp"))
    parser.add_argument("--png", type=Path)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with undone_when_told_to_end():
        turns, result = experiment(options)
    print(machine())
    print(json.dumps(result, indent=1))
    if options.png:
        draw(turns, options.png, f"memcached beside {options.batch} batch vCPUs, policy {options.policy}")
    write_json(options.json, result)


if __name__ == "__main__":
    main()
