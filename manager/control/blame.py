"""The likely cause when an application violates its SLA: a verdict with its evidence, or none without evidence.

It is drawn from the ticks of the hosts of the application's VMs, before the violation and during it. The VM is judged
that waits most: the part of the time in which its vCPUs wanted to run that they waited for a pCPU. Where none waits and
none is full, memory, disks and network are looked at.
docs/concepts/evidence.md says the same in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from manager.control.resource_blame import blame_resources, looked_at
from manager.control.violation_case import (
    LEAST_TICKS,
    MAIN_PART,
    RISEN,
    Case,
    HostTicks,
    Measure,
    ShownNeighbour,
    Verdict,
)
from manager.model.numbers import digits
from manager.model.records import FULL_VCPU, TickRecord, VcpuTick, VmTick
from manager.model.units import percent
from manager.model.vcpu_wait import MATERIAL, wait_share
from manager.model.verdict import VerdictKind

WAIT_PER_VCPU = 0.01
"""Waiting is material from ``vcpu_wait.MATERIAL`` on, if it is so many seconds a second and vCPU."""
RISE = 0.05
"""Least rise of a VM's CPU use, as a fraction of the host, by which it is named."""
LARGE = 0.1
"""Least CPU use, as a fraction of the host, by which a VM is named where nothing has risen."""
FULL = 0.9
"""A host is full when this part of its CPU time is used."""
MAIN_TICKS = 0.5
"""A vCPU counts as full where it was so in this part of the ticks, or more."""
AT_LIMIT = 0.9
"""A VM is at its limit when it uses this part of its vCPUs, or of its max_pcpus."""


@dataclass(frozen=True, slots=True)
class _ServingVm:
    """A VM of the application on a host: means of the pCPUs it used, and of the seconds a second it waited.

    ``part`` is what it waited of its runnable time. ``hot``: a vCPU that was full in most ticks; ``hot_part`` as above.
    """

    vm: str
    host: HostTicks
    used_pcpus: float
    waited: float
    part: float
    used_before: float | None
    part_before: float | None
    hot: VcpuTick | None

    @property
    def hot_part(self) -> float:
        return wait_share(self.hot.used, self.hot.waited) if self.hot else 0.0

    @property
    def order(self) -> tuple[str, str]:
        return self.vm, self.host.host

    @property
    def measures(self) -> tuple[Measure, ...]:
        pcpus = self.host.pcpus
        used_before = None if self.used_before is None else self.used_before / pcpus
        return (
            Measure(self.vm, "wait_share", self.part_before, self.part),
            Measure(self.vm, "cpu_share", used_before, self.used_pcpus / pcpus),
        )

    @property
    def waiting(self) -> str:
        before = "" if self.part_before is None else f" (before: {percent(self.part_before)})"
        return (
            f"{self.vm} on {self.host.host}: vCPU wait (steal) {percent(self.part)}{before}, while it used"
            f" {round(self.used_pcpus, 3):g} pCPUs"
        )

    def full(self, hot: VcpuTick) -> str:
        return (
            f"vCPU {hot.index} of {self.vm} is full: it runs {percent(hot.used)} of the time,"
            f" vCPU wait (steal) {percent(hot.waited)}"
        )

    def verdict(self, kind: VerdictKind, *evidence: str, measures: tuple[Measure, ...] = ()) -> Verdict:
        """One that names no other VM."""
        return Verdict(kind, evidence, None, self.host.host, self.measures + measures)


def blame(case: Case) -> Verdict:
    """The verdict on a violation."""
    servers = [server for host in case.hosts for server in _servers(host, case.vms)]
    worst = max(servers, key=lambda server: (server.part, server.waited, *server.order), default=None)
    over = _above_agreed(case, worst)
    if over is not None:
        return over
    if case.shown is not None:
        return _shown(case, case.shown, worst)
    if worst is None:
        return Verdict(VerdictKind.UNKNOWN, (_why_nothing(case),))
    silent = sorted({server.host.host for server in servers if not server.host.waits_known})
    if silent:
        why = f"the kernel of {', '.join(silent)} does not report vCPU wait (steal)"
        return blame_resources(case) or Verdict(VerdictKind.UNKNOWN, (why,), None, worst.host.host)
    vcpus = (case.vcpus or {}).get(worst.vm, 1)
    if worst.part >= MATERIAL and worst.waited >= WAIT_PER_VCPU * vcpus:
        return _neighbour(case, worst)
    return _self_inflicted(case, servers, worst)


def _above_agreed(case: Case, worst: _ServingVm | None) -> Verdict | None:
    """The verdict where more comes than was agreed."""
    if case.rate_rps is None or case.max_rate_rps is None or case.rate_rps <= case.max_rate_rps:
        return None
    rates = (
        f"{digits(case.rate_rps)} req/s exceeds the agreed {digits(case.max_rate_rps)} req/s, so the SLA does not apply"
    )
    if worst is None:
        return Verdict(VerdictKind.OVERLOAD, (rates,))
    return worst.verdict(VerdictKind.OVERLOAD, rates, worst.waiting)


def _shown(case: Case, shown: ShownNeighbour, worst: _ServingVm | None) -> Verdict:
    """The verdict where an experiment has named the neighbour: what correlates with the violation does not count."""
    kind = (case.classes or {}).get(shown.vm)
    name = f"{kind} VM {shown.vm}" if kind else f"VM {shown.vm}"
    why = (
        f"shown by experiment: response times fell by {percent(1 - math.exp(-shown.fall))} while {name} was held back"
        f" (confidence {percent(shown.confidence, 1)})"
    )
    evidence = (why,) if worst is None else (why, worst.waiting)
    measures = () if worst is None else worst.measures
    return Verdict(VerdictKind.NEIGHBOUR, evidence, shown.vm, shown.host, measures, shown.confidence)


def _self_inflicted(case: Case, servers: Sequence[_ServingVm], worst: _ServingVm) -> Verdict:
    """The verdict where no VM of the application waits materially; one of its vCPUs may."""
    in_order = sorted(servers, key=lambda server: server.order)
    for server in in_order:
        limit = (case.limits_pcpus or {}).get(server.vm)
        if limit and server.used_pcpus >= AT_LIMIT * limit:
            uses = f"{server.vm} uses {server.used_pcpus:.2f} of its limit of {limit:g} pCPUs, with little vCPU wait"
            return server.verdict(VerdictKind.OVERLOAD, uses, server.waiting)
    hot = max((server for server in in_order if server.hot), key=lambda server: server.hot_part, default=None)
    if hot is not None and hot.hot is not None:
        return _neighbour(case, hot) if hot.hot_part >= MATERIAL else _imbalance(case, hot, hot.hot)
    found = blame_resources(case)
    if found is not None:
        return replace(found, evidence=(*found.evidence, f"not the CPU: {worst.waiting}"))
    advice = f"vCPU wait is below {percent(MATERIAL)} and no VM is at its limit: look at the application"
    return worst.verdict(VerdictKind.NOT_CPU, worst.waiting, advice, looked_at(case))


def _imbalance(case: Case, server: _ServingVm, hot: VcpuTick) -> Verdict:
    """The verdict where a vCPU is full by running; an overload, where all of them are."""
    vcpus = (case.vcpus or {}).get(server.vm)
    kind, advice = (
        VerdictKind.IMBALANCE,
        "more CPU does not help, look at how the service spreads its work over threads",
    )
    if vcpus is not None and hot.full >= vcpus:
        kind, advice = VerdictKind.OVERLOAD, "they serve more than they can"
    uses = f"while the VM uses {server.used_pcpus:.2f} pCPUs in all: {advice}"
    return server.verdict(
        kind,
        f"on {server.host.host} {server.full(hot)}",
        f"{hot.full} of {vcpus or 'its'} vCPUs are full, {uses}",
        server.waiting,
        measures=(
            Measure(server.vm, "vcpu_used", None, hot.used),
            Measure(server.vm, "vcpu_wait", None, hot.waited),
        ),
    )


def _neighbour(case: Case, worst: _ServingVm) -> Verdict:
    """The verdict where a VM of the application waits for a pCPU."""
    host = worst.host
    now, then = _uses(host.during), _uses(host.before)
    others = sorted(now.by_vm.keys() - case.vms)
    comparable = len(host.before) >= LEAST_TICKS and worst.part_before is not None
    risen = comparable and worst.part >= RISEN * (worst.part_before or 0.0)
    if risen:
        amounts = {vm: max(now.by_vm[vm] - then.by_vm.get(vm, 0.0), 0.0) for vm in others}
        rest = max(now.unregistered - then.unregistered, 0.0)
        own = math.fsum(now.by_vm.get(vm, 0.0) - then.by_vm.get(vm, 0.0) for vm in sorted(case.vms))
        least = RISE
    else:
        amounts, rest, own, least = {vm: now.by_vm[vm] for vm in others}, now.unregistered, 0.0, LARGE
    top = max(others, key=lambda vm: (amounts[vm], vm), default=None)
    all_others = math.fsum(amounts[vm] for vm in others) + rest
    evidence = [worst.waiting]
    if worst.hot is not None and worst.hot_part >= MATERIAL:
        evidence.append(worst.full(worst.hot))
    busy = Measure(host.host, "cpu_share", then.busy if comparable else None, now.busy)
    if top is not None and amounts[top] >= least and amounts[top] >= MAIN_PART * all_others and amounts[top] > own:
        kind = (case.classes or {}).get(top)
        name = f"{kind} VM {top}" if kind else f"VM {top}"
        before = then.by_vm.get(top, 0.0)
        part = percent(amounts[top] / all_others)
        evidence += [
            f"{name} rose from {percent(before, 1)} to {percent(now.by_vm[top], 1)} of the host's CPU at the same time,"
            f" {part} of all that rose"
            if risen
            else f"{name} uses {percent(now.by_vm[top], 1)} of the host's CPU, {part} of what the"
            f" application does not use itself",
            *_weights(host, (worst.vm, top)),
        ]
        measures = (*worst.measures, busy, Measure(top, "cpu_share", before if comparable else None, now.by_vm[top]))
        return Verdict(VerdictKind.NEIGHBOUR, tuple(evidence), top, host.host, measures)
    if own >= RISE:
        evidence.append(f"the application's own VMs use {percent(own, 1)} of the host's CPU more than before")
    largest = (
        f"the most is {top} with {percent(amounts[top], 1)}" if top is not None else "no other VM is registered there"
    )
    about = "rise of the CPU use" if risen else "CPU use"
    evidence.append(
        f"no single VM explains it: of the {about} of other VMs, {percent(all_others, 1)} of the host, {largest}"
    )
    if now.busy >= FULL:
        return worst.verdict(
            VerdictKind.HOST_FULL, *evidence, f"the host is {percent(now.busy, 1)} busy", measures=(busy,)
        )
    advice = f"but the host is only {percent(now.busy, 1)} busy: check pins and limits of its VMs"
    return worst.verdict(VerdictKind.UNKNOWN, *evidence, advice, measures=(busy,))


@dataclass(frozen=True, slots=True)
class _Uses:
    """Mean CPU use over ticks, as fractions of the host."""

    busy: float
    unregistered: float
    by_vm: Mapping[str, float]


def _uses(ticks: Sequence[TickRecord]) -> _Uses:
    shares: dict[str, list[float]] = {}
    for tick in ticks:
        for vm in tick.vms:
            shares.setdefault(vm.vm, []).append(vm.cpu_share)
    count = max(len(ticks), 1)
    busy = math.fsum(tick.host_cpu_share for tick in ticks) / count
    by_vm = {vm: math.fsum(values) / count for vm, values in shares.items()}
    return _Uses(busy, max(busy - math.fsum(by_vm.values()), 0.0), by_vm)


def _servers(host: HostTicks, vms: Iterable[str]) -> Iterator[_ServingVm]:
    for vm in vms:
        during, before = _ticks_of(host.during, vm), _ticks_of(host.before, vm)
        if len(during) < LEAST_TICKS:
            continue
        used, waited = _means(during, host.pcpus)
        used_before = part_before = None
        if len(before) >= LEAST_TICKS:
            used_before, waited_before = _means(before, host.pcpus)
            part_before = wait_share(used_before, waited_before)
        yield _ServingVm(vm, host, used, waited, wait_share(used, waited), used_before, part_before, _hot(during))


def _ticks_of(ticks: Iterable[TickRecord], name: str) -> list[VmTick]:
    return [vm for tick in ticks for vm in tick.vms if vm.vm == name]


def _means(ticks: Sequence[VmTick], pcpus: int) -> tuple[float, float]:
    used = math.fsum(tick.cpu_share for tick in ticks) / len(ticks) * pcpus
    return used, math.fsum(tick.run_delay_share for tick in ticks) / len(ticks)


def _hot(ticks: Sequence[VmTick]) -> VcpuTick | None:
    """Means of the busiest vCPU over the ticks in which one was full, None: there were few such."""
    full = [tick.vcpu for tick in ticks if tick.vcpu is not None and tick.vcpu.used + tick.vcpu.waited >= FULL_VCPU]
    if len(full) < LEAST_TICKS or len(full) < MAIN_TICKS * len(ticks):
        return None
    used, waited, count = (
        math.fsum(values) / len(full)
        for values in zip(*((vcpu.used, vcpu.waited, vcpu.full) for vcpu in full), strict=True)
    )
    return VcpuTick(Counter(vcpu.index for vcpu in full).most_common(1)[0][0], used, waited, round(count))


def _weights(host: HostTicks, vms: Iterable[str]) -> list[str]:
    """What changed of the weights meanwhile."""
    changes: list[str] = []
    for vm in vms:
        then, now = (
            [tick.weight for tick in _ticks_of(ticks, vm) if tick.weight is not None]
            for ticks in (host.before, host.during)
        )
        if then and now and then[-1] != now[-1]:
            changes.append(f"the weight of {vm} changed from {then[-1]:,} to {now[-1]:,} meanwhile")
    return changes


def _why_nothing(case: Case) -> str:
    if not case.vms:
        return "no VM serves the application"
    if not case.hosts:
        return "no host is known on which its VMs run"
    most = max(len(host.during) for host in case.hosts)
    names = ", ".join(sorted(host.host for host in case.hosts))
    return f"too few ticks of {names} cover its VMs during the violation: {most} of {LEAST_TICKS} needed"
