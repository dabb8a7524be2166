"""What the guard costs, and how long it takes from the first wait of a vCPU to the write that holds batch VMs.

    python -m tests.bench.guard [--vms 50] [--interval-ms 50] [--seconds 30] [--episodes 30] [--services 25]

Bars: at most 1 % of a core with 50 VMs, and 100 ms from the first wait to the write. Half of the VMs are critical, two
vCPUs each, and each serves an application of which answers are counted. VMs, control groups, the files of schedstat,
the program on taps and the journal (in the folder that TMPDIR names) are real. The VMs sleep, so for the reactions the
benchmark adds to what was read, and to what the kernel's timer compares: from a random moment on, a vCPU waits half of
the time. Told apart are the time until a
sample shows it, and the rest: the journal, the writes and reading them back.

The share of a core is the CPU time of the thread alone. On a busy machine caches are cold after each pause, so that it
costs more there: figures tell how busy the machine was.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from manager.bpf import tap, threads
from manager.control.guard_law import LEARNT_SAMPLES, LEAST_BOUND, Custom, GuardMemory
from manager.host.kernel_host import KernelHost
from manager.host.taps import of_this_machine
from manager.host.thread_times import ThreadTimes
from manager.host.wait_alarm import WaitAlarm
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.guard import Guard, GuardSettings, GuardUse
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.host import LastWaits, VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.traffic import Answered, JudgedService
from policies.installed import load_policies
from tests.bench.figures import Spread, host_cpu_s, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.times import add_times, times_of
from tests.bench.vms import HOST, Listed, Vm, Vms, assignment, running_vms

BAR_CPU_SHARE, BAR_REACTION_MS = 0.01, 100.0
WAIT_SHARE = 0.5
SETTLE_S, STEP_S = 0.6, 0.005
LOOPBACK, FIRST_PORT = 1, 8000


class WaitingAlarm(WaitAlarm):
    """What a vCPU had waited before may be below nothing; notes when that was seen first."""

    seen_s: float | None = None

    def disarm(self) -> LastWaits | None:
        last = super().disarm()
        if last is None:
            return None
        (first_ns, *others), *rest = last.before
        if first_ns >= 1 << 63:
            first_ns -= 1 << 64
        if last.now[0][0] - first_ns > LEAST_BOUND * (last.at_s - last.from_s) * 1e9:
            self.seen_s = self.seen_s or last.at_s
        return replace(last, before=((first_ns, *others), *rest))


class WaitingHost(KernelHost):
    """One vCPU waits half of the time since ``since_s``; notes when that was seen first, and when batch was held."""

    since_s: float | None = None
    seen_s: float | None = None
    first_s: float | None = None
    last_s: float | None = None

    def let_kernel_sample(self, times: ThreadTimes | None) -> None:
        """As this host does anyway, but for waits that the benchmark adds."""
        if times is not None and self._waits is not None:
            self.wait_alarm = WaitingAlarm(times, self._waits, self._handles)

    def waits(self, instances: Iterable[VmInstance]) -> Sequence[tuple[int, ...]]:
        found = list(super().waits(instances))
        if self.since_s is not None and self.first_s is None and found:
            now_s = time.monotonic()
            self.seen_s = self.seen_s or now_s
            waited_ns = round((now_s - self.since_s) * WAIT_SHARE * 1e9)
            found[0] = (found[0][0] + waited_ns, *found[0][1:])
        return found

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        held = super().write(instance, key, value)
        if self.since_s is not None and (key.knob, value) == (Knob.IDLE, 1):
            self.last_s = time.monotonic()
            self.first_s = self.first_s or self.last_s
        return held


@dataclass(frozen=True)
class Result:
    """``cpu_share`` of one core, and beside it ``kernel_share``: the timer's.

    Milliseconds from the first wait: until it was seen, the first and the last write.
    """

    vms: int
    interval_ms: float
    seconds: float
    cpu_share: float
    kernel_share: float
    looks_per_s: float
    sample_us: float
    seen_ms: Spread
    first_write_ms: Spread
    last_write_ms: Spread
    busy_share: float


@contextmanager
def answers_of(applications: int) -> Iterator[Callable[[], Answered]]:
    """Reads what so many applications have answered, as the agent does: nothing, of services that exist."""
    if not applications:
        yield Answered
        return
    places = [(LOOPBACK, FIRST_PORT + number) for number in range(applications)]
    with closing(of_this_machine()) as program:
        program.admit(LOOPBACK)
        for _, port in places:
            program._services.write(tap.KEY.pack(LOOPBACK, port, 0), bytes(8 * len(tap.COUNTERS)))
        services = tuple(JudgedService(f"app-{place[1]}", place, 0.05, 0.05) for place in places)
        counts = program.answers(places)
        yield lambda: Answered(services, counts.read(), counts)


class TimedGuard(Guard):
    """Knows the CPU time of its thread, and counts its samples."""

    cpu_s = 0.0
    samples = 0

    def look(self, rang: bool = False) -> None:
        super().look(rang)
        self.samples += 1
        self.cpu_s = time.thread_time()

    def know_all(self) -> None:
        """As after a calm while."""
        customs = {name: Custom(samples=LEARNT_SAMPLES) for name in self._names}
        self._memory = GuardMemory(time.monotonic(), customs)
        alarm = self._loop.host.wait_alarm
        if alarm is not None:
            alarm.wake()  # it is to be armed again


def measure(vms: Vms, started: list[Vm], options: argparse.Namespace, times: ThreadTimes | None) -> Result:
    """One tick, then calm, then episodes."""
    interval_ms, seconds = options.interval_ms, options.seconds
    services = len(started) // 2 if options.services is None else options.services
    busy_before = host_cpu_s()
    with ExitStack() as stack:
        journal = Journal(vms.folder / "journal.db", "bench")
        stack.callback(journal.close)
        host = WaitingHost(vms.paths, Listed.of(started), times=times)  # type: ignore[arg-type]
        host.let_kernel_sample(times)
        stack.callback(host.forget, frozenset())
        policies = {name: one.policy for name, one in load_policies(on_error=print).items()}
        loop = ControlLoop(host, journal, policies, LoopSettings(HOST, 1.0, 30.0, 20))
        stack.callback(loop.release, "end of the benchmark")
        turn = threading.RLock()
        crashes: list[BaseException] = []
        guard = TimedGuard(
            loop,
            GuardSettings(GuardUse.ON, interval_ms / 1000),
            turn,
            say=lambda *_: None,
            crashed=lambda _what, error: crashes.append(error),
            metrics=AgentMetrics(),
            answered=stack.enter_context(answers_of(services)),
        )
        with turn:
            loop.tick(assignment(len(started), "priority"), {})
            guard.ticked()
        guard.start()
        stack.callback(guard.stop)
        time.sleep(1.0)
        with turn:
            guard.know_all()
        cpu_s, samples, began_s, kernel_ns = guard.cpu_s, guard.samples, time.monotonic(), took_ns(times)
        time.sleep(seconds)
        share = (guard.cpu_s - cpu_s) / (time.monotonic() - began_s)
        guard_samples = guard.samples
        sample_us = (guard.cpu_s - cpu_s) / (guard.samples - samples) * 1e6
        kernel_share = (took_ns(times) - kernel_ns) / 1e9 / (time.monotonic() - began_s)
        reactions = [_episode(guard, host, turn, times) for _ in range(options.episodes)]
        if crashes:
            raise crashes[0]
    busy = host_cpu_s()
    return Result(
        len(started),
        interval_ms,
        seconds,
        share,
        kernel_share,
        (guard_samples - samples) / seconds,
        sample_us,
        *(Spread.of([reaction[part] for reaction in reactions]) for part in range(3)),
        (busy[0] - busy_before[0]) / (busy[1] - busy_before[1]),
    )


def took_ns(times: ThreadTimes | None) -> int:
    """The CPU time of the kernel's samples until now."""
    return times.timer.took_ns if times is not None else 0


def _let_wait(host: WaitingHost, times: ThreadTimes | None, seconds: float) -> None:
    """For the kernel's timer, too, the first vCPU waits a part of the time: what it had waited before becomes less."""
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        time.sleep(STEP_S)
        if times is not None and host.first_s is None:
            first = threads.WATCH["wait_ns"].start
            times.timer._words[first] = (times.timer._words[first] - round(STEP_S * WAIT_SHARE * 1e9)) % (1 << 64)


def _episode(
    guard: TimedGuard, host: WaitingHost, turn: threading.RLock, times: ThreadTimes | None
) -> tuple[float, float, float]:
    """A vCPU begins to wait at a random moment; milliseconds until seen, first and last write."""
    with turn:
        guard.let_go()
        guard.know_all()
        host.seen_s = host.first_s = host.last_s = None
    time.sleep(random.uniform(0.2, 0.3))
    alarm = host.wait_alarm
    if isinstance(alarm, WaitingAlarm):
        alarm.seen_s = None
    host.since_s = time.monotonic()
    _let_wait(host, times, SETTLE_S)
    since_s, host.since_s = host.since_s, None
    if isinstance(alarm, WaitingAlarm) and alarm.seen_s:
        host.seen_s = alarm.seen_s
    if host.seen_s is None or host.first_s is None or host.last_s is None:
        raise RuntimeError("batch VMs were not held")
    return (host.seen_s - since_s) * 1000, (host.first_s - since_s) * 1000, (host.last_s - since_s) * 1000


def show(result: Result) -> None:
    """Print one figure a line."""
    table = Table("", "", "bar", show_header=False)
    table.add_row("VMs, interval", f"{result.vms}, {result.interval_ms:g} ms", "")
    bar = f"<= {BAR_CPU_SHARE:.0%}: {verdict(result.cpu_share, BAR_CPU_SHARE)}"
    table.add_row("CPU, share of one core", f"{result.cpu_share:.2%}", bar)
    table.add_row("beside it, the kernel's samples", f"{result.kernel_share:.3%}", "")
    table.add_row("looks a second", f"{result.looks_per_s:.1f}", "")
    table.add_row("one look", f"{result.sample_us:.0f} us", "")
    for what, spread in (("a sample shows it", result.seen_ms), ("first VM held", result.first_write_ms)):
        table.add_row(f"first wait until {what}", f"median {spread.median:.0f} ms, most {spread.largest:.0f} ms", "")
    last = result.last_write_ms
    bar = f"<= {BAR_REACTION_MS:g} ms: {verdict(last.largest, BAR_REACTION_MS)}"
    table.add_row("until all are", f"median {last.median:.0f} ms, most {last.largest:.0f} ms", bar)
    table.add_row("machine busy", f"{result.busy_share:.0%}", "")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=50)
    parser.add_argument("--interval-ms", type=float, default=50.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--episodes", type=int, default=30)
    parser.add_argument("--services", type=int, help="whose answers are counted (half of the VMs)")
    add_times(parser)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with undone_when_told_to_end(), running_vms(options.vms) as (vms, started), times_of(options.times) as times:
        result = measure(vms, started, options, times)
    print(machine())
    show(result)
    bars = {"cpu_share": BAR_CPU_SHARE, "reaction_ms": BAR_REACTION_MS}
    write_json(options.json, {"bars": bars, "result": asdict(result)})


if __name__ == "__main__":
    main()
