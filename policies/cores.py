"""What policies share: the pCPUs that they divide, the VMs these are for, and samples of response times."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile

from manager.control.batch import FLOOR_MARGIN
from manager.control.feedback_law import LEAST_SAMPLES
from manager.control.placer import usable_cpus
from manager.model.cpus import CpuSet
from manager.model.decision import ApplicationView, CpusGoal, QuotaGoal, Snapshot, VmView, WeightGoal
from manager.model.law import Law
from manager.model.registration import LEAST_LIMIT_PCPUS, Mode, Sla
from manager.model.topology import Pcpu
from manager.model.window import Window, merge

KEPT_SAMPLES = 10
"""Samples of which the mean is taken: PARTIES samples every 100 ms and averages over 1 s."""
_SAME_S = 1e-3
"""Slots that end within this of each other end at the same time: times are computed in floating point."""


def managed(snapshot: Snapshot) -> tuple[VmView, ...]:
    """The VMs that are to be decided for."""
    return tuple(vm for vm in snapshot.vms if vm.mode is not Mode.RELEASED)


def batch_vms(snapshot: Snapshot) -> tuple[VmView, ...]:
    """The managed batch VMs."""
    return tuple(vm for vm in managed(snapshot) if not vm.critical)


def enforced(vms: Iterable[VmView]) -> bool:
    """Whether what is decided for one of them at least is written."""
    return any(vm.mode is Mode.ENFORCE for vm in vms)


def owner_of(vm: VmView) -> str:
    """Who owns the pCPUs of a critical VM: its application; those without one are together ``""``."""
    return vm.application or ""


def owners(snapshot: Snapshot) -> tuple[str, ...]:
    """The owners of the managed critical VMs, sorted."""
    return tuple(sorted({owner_of(vm) for vm in managed(snapshot) if vm.critical}))


def released_applications(snapshot: Snapshot) -> frozenset[str]:
    """Those of which all critical VMs here are released: nothing is done for them, be it at the cost of others."""
    return frozenset(owner_of(vm) for vm in snapshot.vms if vm.critical).difference(owners(snapshot))


def ordered_cpus(snapshot: Snapshot) -> tuple[int, ...]:
    """The usable pCPUs, those that share a core, a cache or a node next to each other."""
    hardware = hardware_of(snapshot)
    return tuple(sorted(usable_cpus(snapshot), key=lambda cpu: (*_domains(hardware, cpu), cpu)))


def hardware_of(snapshot: Snapshot) -> Mapping[int, Pcpu]:
    """What is known of each pCPU, by number."""
    return {pcpu.number: pcpu for pcpu in snapshot.capabilities.topology.cpus}


def _domains(hardware: Mapping[int, Pcpu], cpu: int) -> tuple[int, int, int]:
    """Node, last-level cache and core of a pCPU; of one that is not known, its own core in the first of the others."""
    pcpu = hardware.get(cpu)
    return (pcpu.node, pcpu.l3, pcpu.core) if pcpu else (0, 0, cpu)


def nearest(candidates: Collection[int], to: Collection[int], hardware: Mapping[int, Pcpu]) -> int:
    """The candidate that shares most with ``to``: a core, else a cache, else a node; then the nearest number.

    Raises ValueError without candidates.
    """

    def distance(cpu: int) -> tuple[int, int, int]:
        own = _domains(hardware, cpu)
        shared = (sum(a == b for a, b in zip(own, _domains(hardware, other), strict=True)) for other in to)
        return -max(shared, default=0), min((abs(cpu - other) for other in to), default=0), cpu

    return min(candidates, key=distance)


def share_evenly(units: Iterable[int], sharers: Iterable[str]) -> dict[str, frozenset[int]]:
    """Runs of neighbouring units as long as each other; the first sharers get one more where they do not divide."""
    order, names = tuple(units), tuple(sharers)
    size, more = divmod(len(order), len(names)) if names else (0, 0)
    shares: dict[str, frozenset[int]] = {}
    start = 0
    for number, name in enumerate(names):
        end = start + size + (number < more)
        shares[name] = frozenset(order[start:end])
        start = end
    return shares


def pack(order: tuple[int, ...], names: Iterable[str]) -> dict[str, CpuSet]:
    """One pCPU each, in turn: where there are fewer pCPUs than names, some share one. Raises ValueError without any."""
    if not order:
        raise ValueError("no pCPU to pack onto")
    return {name: frozenset({order[number % len(order)]}) for number, name in enumerate(names)}


def cpus_goal(vm: VmView, cpus: CpuSet, reason: str) -> CpusGoal | None:
    """A VM on those of ``cpus`` that its registration allows; None where it allows none: then that alone counts."""
    allowed = cpus if vm.spec.cpus is None else cpus & vm.spec.cpus
    return CpusGoal(vm.name, allowed, reason) if allowed else None


def weight_goals(snapshot: Snapshot, critical: int, batch: int, reason: str) -> tuple[WeightGoal, ...]:
    """These weights for all VMs without one of their own; none where the host has no weights."""
    if snapshot.capabilities.weights is None:
        return ()
    return tuple(
        WeightGoal(vm.name, vm.spec.weight, f"{reason}: weight registered for this VM")
        if vm.spec.weight is not None
        else WeightGoal(vm.name, critical if vm.critical else batch, reason)
        for vm in snapshot.vms
    )


def least_quotas(snapshot: Snapshot, reason: str) -> tuple[QuotaGoal, ...]:
    """For each batch VM the smallest quota that leaves them their floor: what stands for stopping them."""
    batch = batch_vms(snapshot)
    floor = FLOOR_MARGIN * snapshot.host.law.batch_floor * len(snapshot.capabilities.online_cpus) / max(len(batch), 1)
    return tuple(
        QuotaGoal(vm.name, max(min(floor, vm.spec.max_pcpus or floor), LEAST_LIMIT_PCPUS), reason)
        for vm in batch
        if vm.quota_period_us is not None
    )


@dataclass(frozen=True, slots=True)
class Sampling:
    """Percentiles of an application's response times, one after the other.

    A sample is complete when enough response times ended since the one before it (``Law.min_samples``), or when
    ``Law.max_age_s`` passed and there are at least 20. ``latencies_ms`` are the last ten, newest last, and ``number``
    counts all. In steady seconds, the data of the next one begin at ``since_s``, and the newest one was complete at
    ``at_s``.
    """

    since_s: float
    number: int = 0
    latencies_ms: tuple[float, ...] = ()
    at_s: float = 0.0

    def slack(self, target_ms: float) -> float:
        """(target - latency) / target of the newest sample; 1 without any."""
        return 1 - self.latencies_ms[-1] / target_ms if self.latencies_ms else 1.0

    def long_slack(self, target_ms: float) -> float:
        """The same of the mean of those that are kept."""
        mean_ms = sum(self.latencies_ms) / max(len(self.latencies_ms), 1)
        return 1 - mean_ms / target_ms

    def is_fresh(self, steady_s: float, law: Law) -> bool:
        """Whether the newest sample still says something about now."""
        return bool(self.latencies_ms) and steady_s - self.at_s <= law.max_age_s

    def restarted(self, steady_s: float) -> Sampling:
        """The next sample is to hold only what ends from now on."""
        return replace(self, since_s=steady_s)


def sample(view: ApplicationView, sla: Sla, snapshot: Snapshot, before: Sampling | None) -> Sampling:
    """The samples as of now. At most one is complete in each tick."""
    law, steady_s = snapshot.host.law, snapshot.steady_s
    sampling = before or Sampling(steady_s - law.max_age_s)
    slots = closed_since(view, snapshot, sampling.since_s)
    aged = steady_s - sampling.since_s >= law.max_age_s - _SAME_S
    latency_ms = _percentile_ms(slots, sla, least_samples(law) if aged else law.min_samples)
    if latency_ms is not None:
        newest_s = slots[0].end_s - snapshot.ahead_s
        kept = (*sampling.latencies_ms, latency_ms)[-KEPT_SAMPLES:]
        return Sampling(newest_s, sampling.number + 1, kept, steady_s)
    return sampling.restarted(steady_s) if aged else sampling


def least_samples(law: Law) -> int:
    """Of fewer response times no percentile is taken."""
    return min(LEAST_SAMPLES, law.min_samples)


def closed_since(view: ApplicationView, snapshot: Snapshot, since_s: float) -> list[Window]:
    """The slots that ended by now and after ``since_s`` (steady seconds), newest first."""
    after_s = since_s + snapshot.ahead_s + _SAME_S
    recent = takewhile(lambda slot: slot.end_s > after_s, reversed(view.slots))
    return [slot for slot in recent if slot.end_s <= snapshot.now_s + _SAME_S]


def recent_percentile_ms(view: ApplicationView, sla: Sla, snapshot: Snapshot, length_s: float) -> float | None:
    """The percentile of the last ``length_s`` seconds, or of more where these hold too few response times.

    None where even ``Law.max_age_s`` holds fewer than 20.
    """
    law = snapshot.host.law
    taken: list[Window] = []
    count = 0
    for slot in closed_since(view, snapshot, snapshot.steady_s - max(length_s, law.max_age_s)):
        if count >= law.min_samples and slot.end_s <= snapshot.now_s - length_s + _SAME_S:
            break
        taken.append(slot)
        count += slot.histogram.count
    return _percentile_ms(taken, sla, least_samples(law))


def _percentile_ms(slots: Collection[Window], sla: Sla, at_least: int) -> float | None:
    if not slots:
        return None
    window = merge(slots)
    return window.percentile_ms(sla.percentile) if window.has_samples(at_least) else None
