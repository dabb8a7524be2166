"""What VMs and pCPUs did between two readings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from manager.loop.reading import Reading
from manager.model.cpus import CpuSet
from manager.model.host import VmState


class Rates(NamedTuple):
    """What a VM did since the last reading; all 0 at its first.

    ``cpu_share`` is CPU time used as a fraction of the whole host, ``run_delay_share`` seconds its vCPUs waited for a
    pCPU per second, ``vcpu_pcpus`` CPU seconds per second that each used and ``vcpu_waits`` those that each waited,
    empty where that is not known.
    """

    cpu_share: float = 0.0
    run_delay_share: float = 0.0
    vcpu_pcpus: tuple[float, ...] = ()
    vcpu_waits: tuple[float, ...] = ()


_NO_RATES = Rates()


def rates(uuid: str, now: Reading, before: Reading | None, pcpus: int) -> Rates:
    """The rates of a VM on a host of so many pCPUs."""
    state, earlier = now.states[uuid], before.states.get(uuid) if before else None
    if before is None or earlier is None or earlier.instance != state.instance:
        return _NO_RATES
    elapsed_ns = (now.monotonic_s - before.monotonic_s) * 1e9
    if elapsed_ns <= 0:
        return _NO_RATES
    cpu_ns, run_ns, delay_ns = now.counters[uuid]
    cpu_then_ns, run_then_ns, delay_then_ns = before.counters[uuid]
    if state is not earlier and [vcpu.index for vcpu in state.vcpus] != [vcpu.index for vcpu in earlier.vcpus]:
        run_then_ns, delay_then_ns = (_for_vcpus(state, earlier, then) for then in (run_then_ns, delay_then_ns))
    cpu_share = _share(cpu_ns - cpu_then_ns, elapsed_ns * pcpus)
    waited_ns = 0
    used: list[float] = []
    waits: list[float] = []
    # Without calls: it is for each vCPU in each tick.
    for ran_ns, ran_then_ns, delayed_ns, delayed_then_ns in zip(
        run_ns, run_then_ns, delay_ns, delay_then_ns, strict=True
    ):
        wait = 0.0
        if delayed_ns is not None and delayed_then_ns is not None and delayed_ns > delayed_then_ns:
            waited_ns += delayed_ns - delayed_then_ns
            wait = (delayed_ns - delayed_then_ns) / elapsed_ns
        if ran_ns is not None and ran_then_ns is not None:
            ran = (ran_ns - ran_then_ns) / elapsed_ns
            used.append(0.0 if ran <= 0.0 else ran if ran < 1.0 else 1.0)
            waits.append(wait if wait < 1.0 else 1.0)
    if len(used) != len(state.vcpus):
        return Rates(cpu_share, waited_ns / elapsed_ns)
    return Rates(cpu_share, waited_ns / elapsed_ns, tuple(used), tuple(waits))


def _for_vcpus(state: VmState, earlier: VmState, counted_ns: Sequence[int | None]) -> list[int | None]:
    """What was counted of each vCPU of ``earlier``, in the order of those of ``state``; None for one that is new."""
    by_index = dict(zip([vcpu.index for vcpu in earlier.vcpus], counted_ns, strict=True))
    return [by_index.get(vcpu.index) for vcpu in state.vcpus]


def _share(part: float, whole: float) -> float:
    """Between 0 and 1."""
    return 0.0 if part <= 0 else 1.0 if part >= whole else part / whole


def busy_share(now: Reading, before: Reading | None) -> float | None:
    """Busy share of the host since the last reading; None: this is the first, which measures nothing."""
    if before is None:
        return None
    if now.times is None or before.times is None:
        return 0.0
    total_ns = now.times.total_ns - before.times.total_ns
    return _share(now.times.busy_ns - before.times.busy_ns, total_ns) if total_ns > 0 else 0.0


def pcpu_shares(now: Reading, before: Reading | None, pcpus: CpuSet) -> tuple[dict[int, float], dict[int, float]]:
    """How much of its time each of these pCPUs was busy since the last reading, and on interrupts.

    Of those that were online all the time.
    """
    if before is None or now.times is None or before.times is None:
        return {}, {}
    busy: dict[int, float] = {}
    interrupts: dict[int, float] = {}
    for number in sorted(now.times.pcpus.keys() & before.times.pcpus.keys() & pcpus):
        total_ns, busy_ns, interrupts_ns = now.times.pcpus[number]
        total_before_ns, busy_before_ns, interrupts_before_ns = before.times.pcpus[number]
        if total_ns > total_before_ns:
            busy[number] = _share(busy_ns - busy_before_ns, total_ns - total_before_ns)
            interrupts[number] = _share(interrupts_ns - interrupts_before_ns, total_ns - total_before_ns)
    return busy, interrupts
