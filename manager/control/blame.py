"""The likely cause when an application violates its SLA: a verdict with its evidence, or none without evidence.

It is drawn from the ticks of the hosts of the application's VMs, before the violation and during it. The VM is judged
that waits most: the part of the time in which its vCPUs wanted to run that they waited for a pCPU.
docs/concepts/evidence.md says the same in words.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from manager.model.records import FULL_VCPU, TickRecord, VcpuTick, VmTick
from manager.model.registration import VmClass
from manager.model.vcpu_wait import MATERIAL, wait_share
from manager.model.verdict import VerdictKind

LEAST_TICKS = 2
"""Ticks that a mean needs."""
WAIT_PER_VCPU = 0.01
"""Waiting is material from ``vcpu_wait.MATERIAL`` on, if it is so many seconds a second and vCPU."""
RISEN = 1.5
"""Waiting has risen when it is so many times what it was before."""
RISE = 0.05
"""Least rise of a VM's CPU use, as a fraction of the host, by which it is named."""
LARGE = 0.1
"""Least CPU use, as a fraction of the host, by which a VM is named where nothing has risen."""
MAIN_PART = 0.5
"""A VM is named for this part, or more, of all that is not the application's own."""
FULL = 0.9
"""A host is full when this part of its CPU time is used."""
MAIN_TICKS = 0.5
"""A vCPU counts as full where it was so in this part of the ticks, or more."""
AT_LIMIT = 0.9
"""A VM is at its limit when it uses this part of its vCPUs, or of its max_pcpus."""


@dataclass(frozen=True, slots=True)
class HostTicks:
    """A host's ticks before and during the violation. ``waits_known``: its kernel tells how long vCPUs wait."""

    host: str
    pcpus: int
    waits_known: bool
    before: tuple[TickRecord, ...]
    during: tuple[TickRecord, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """An application that misses its SLA: its VMs, its rate then, and the ticks of the hosts of its VMs.

    ``vcpus`` and ``limits_pcpus`` (CPU seconds a second that a VM may use) are by VM, where known; ``classes`` are of
    all registered VMs. The rates are None where nobody knows them, or none was agreed.
    """

    application: str
    vms: frozenset[str]
    hosts: tuple[HostTicks, ...]
    rate_rps: float | None = None
    max_rate_rps: float | None = None
    vcpus: Mapping[str, int] | None = None
    limits_pcpus: Mapping[str, float] | None = None
    classes: Mapping[str, VmClass] | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean before the violation (None: too few ticks) and during it.

    ``what`` is ``cpu_share`` (a fraction of the host), ``wait_part`` (of the time in which the vCPUs wanted to run), or
    of the vCPU that is full, as parts of the time, ``vcpu_used`` and ``vcpu_wait``.
    """

    subject: str
    what: str
    before: float | None
    during: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """``vm`` is the noisy neighbour; ``host`` where it happened. ``evidence`` are sentences with numbers."""

    kind: VerdictKind
    evidence: tuple[str, ...]
    vm: str | None = None
    host: str | None = None
    measures: tuple[Measure, ...] = ()


@dataclass(frozen=True, slots=True)
class _Own:
    """A VM of the application on a host: means of the pCPUs it used, and of the seconds a second it waited.

    ``hot``: a vCPU that was full in most ticks.
    """

    vm: str
    host: HostTicks
    used_pcpus: float
    waited: float
    part: float
    part_before: float | None
    hot: VcpuTick | None = None


def blame(case: Case) -> Verdict:
    """The verdict on a violation."""
    own = [one for host in case.hosts for one in _own_vms(host, case.vms)]
    worst = max(own, key=lambda one: (one.part, one.waited, one.vm, one.host.host), default=None)
    measures = () if worst is None else _measures(worst)
    if case.rate_rps is not None and case.max_rate_rps is not None and case.rate_rps > case.max_rate_rps:
        rates = f"{case.rate_rps:.3g} req/s exceeds the agreed {case.max_rate_rps:.3g} req/s"
        more = (_waiting(worst),) if worst else ()
        return Verdict(
            VerdictKind.OVERLOAD,
            (f"{rates}, so the SLA does not apply", *more),
            None,
            worst.host.host if worst else None,
            measures,
        )
    if worst is None:
        return _unknown(_why_nothing(case))
    host = worst.host.host
    if not all(one.host.waits_known for one in own):
        silent = sorted({one.host.host for one in own if not one.host.waits_known})
        return _unknown(f"the kernel of {', '.join(silent)} does not report vCPU wait (steal)", host)
    vcpus = (case.vcpus or {}).get(worst.vm, 1)
    if worst.part >= MATERIAL and worst.waited >= WAIT_PER_VCPU * vcpus:
        return _who_takes_it(case, worst)
    return _own_doing(case, own, worst)


def _own_doing(case: Case, own: Sequence[_Own], worst: _Own) -> Verdict:
    """The verdict where no VM of the application waits materially; one of its vCPUs may."""
    in_order = sorted(own, key=lambda one: (one.vm, one.host.host))
    for one in in_order:
        limit = (case.limits_pcpus or {}).get(one.vm)
        if limit and one.used_pcpus >= AT_LIMIT * limit:
            text = f"{one.vm} uses {one.used_pcpus:.2f} of its limit of {limit:g} pCPUs, with little vCPU wait"
            return Verdict(VerdictKind.OVERLOAD, (text, _waiting(one)), None, one.host.host, _measures(one))
    hot = max((one for one in in_order if one.hot), key=_hot_part, default=None)
    if hot is not None:
        return _who_takes_it(case, hot) if _hot_part(hot) >= MATERIAL else _imbalance(case, hot)
    text = (
        f"vCPU wait is below {MATERIAL:.0%} and no VM is at its limit: look at the application, its disks, the network"
    )
    return Verdict(VerdictKind.NOT_CPU, (_waiting(worst), text), None, worst.host.host, _measures(worst))


def _hot_part(own: _Own) -> float:
    return wait_share(own.hot.used, own.hot.waited) if own.hot else 0.0


def _imbalance(case: Case, own: _Own) -> Verdict:
    """The verdict where a vCPU is full by running; an overload, where all of them are."""
    hot, vcpus = own.hot or VcpuTick(0, 0.0, 0.0, 0), (case.vcpus or {}).get(own.vm)
    every = vcpus is not None and hot.full >= vcpus
    advice = (
        "they serve more than they can"
        if every
        else "more CPU does not help, look at how the service spreads its work over threads"
    )
    evidence = (
        f"on {own.host.host} {_full(own)}",
        f"{hot.full} of {vcpus or 'its'} vCPUs are full, while the VM uses {own.used_pcpus:.2f} pCPUs in all: {advice}",
        _waiting(own),
    )
    measures = (
        *_measures(own),
        Measure(own.vm, "vcpu_used", None, hot.used),
        Measure(own.vm, "vcpu_wait", None, hot.waited),
    )
    kind = VerdictKind.OVERLOAD if every else VerdictKind.IMBALANCE
    return Verdict(kind, evidence, None, own.host.host, measures)


def _full(own: _Own) -> str:
    hot = own.hot
    return (
        f"vCPU {hot.index} of {own.vm} is full: it runs {hot.used:.0%} of the time, vCPU wait (steal) {hot.waited:.0%}"
        if hot
        else ""
    )


def _hot(seen: Sequence[VmTick]) -> VcpuTick | None:
    """Means of the busiest vCPU over the ticks in which one was full, None: there were few such."""
    full = [one.vcpu for one in seen if one.vcpu is not None and one.vcpu.used + one.vcpu.waited >= FULL_VCPU]
    if len(full) < LEAST_TICKS or len(full) < MAIN_TICKS * len(seen):
        return None
    used, waited = (
        math.fsum(values) / len(full) for values in zip(*((one.used, one.waited) for one in full), strict=True)
    )
    index = Counter(one.index for one in full).most_common(1)[0][0]
    return VcpuTick(index, used, waited, round(math.fsum(one.full for one in full) / len(full)))


def _who_takes_it(case: Case, worst: _Own) -> Verdict:
    """The verdict where a VM of the application waits for a pCPU."""
    host = worst.host
    now, then = _uses(host.during), _uses(host.before)
    others = sorted(now.by_vm.keys() - case.vms)
    told = len(host.before) >= LEAST_TICKS and worst.part_before is not None
    risen = told and worst.part >= RISEN * (worst.part_before or 0.0)
    if risen:
        amounts = {vm: max(now.by_vm[vm] - then.by_vm.get(vm, 0.0), 0.0) for vm in others}
        rest = max(now.unregistered - then.unregistered, 0.0)
        own = math.fsum(now.by_vm.get(vm, 0.0) - then.by_vm.get(vm, 0.0) for vm in sorted(case.vms))
        least = RISE
    else:
        amounts, rest, own, least = {vm: now.by_vm[vm] for vm in others}, now.unregistered, 0.0, LARGE
    top = max(others, key=lambda vm: (amounts[vm], vm), default=None)
    all_others = math.fsum(amounts[vm] for vm in others) + rest
    evidence = [_waiting(worst)]
    if worst.hot is not None and _hot_part(worst) >= MATERIAL:
        evidence.append(_full(worst))
    measures = [*_measures(worst), Measure(host.host, "cpu_share", then.busy if told else None, now.busy)]
    if top is not None and amounts[top] >= least and amounts[top] >= MAIN_PART * all_others and amounts[top] > own:
        kind = (case.classes or {}).get(top)
        name = f"{kind} VM {top}" if kind else f"VM {top}"
        before = then.by_vm.get(top, 0.0)
        evidence += [
            f"{name} rose from {before:.1%} to {now.by_vm[top]:.1%} of the host's CPU at the same time,"
            f" {_part(amounts[top], all_others)} of all that rose"
            if risen
            else f"{name} uses {now.by_vm[top]:.1%} of the host's CPU, {_part(amounts[top], all_others)} of what the"
            f" application does not use itself",
            *_weights(host, (worst.vm, top)),
        ]
        measures.append(Measure(top, "cpu_share", before if told else None, now.by_vm[top]))
        return Verdict(VerdictKind.NEIGHBOUR, tuple(evidence), top, host.host, tuple(measures))
    if own >= RISE:
        evidence.append(f"the application's own VMs use {own:.1%} of the host's CPU more than before")
    largest = f"the most is {top} with {amounts[top]:.1%}" if top is not None else "no other VM is registered there"
    about = "rise of the CPU use" if risen else "CPU use"
    evidence.append(f"no single VM explains it: of the {about} of other VMs, {all_others:.1%} of the host, {largest}")
    if now.busy >= FULL:
        evidence.append(f"the host is {now.busy:.1%} busy")
        return Verdict(VerdictKind.HOST_FULL, tuple(evidence), None, host.host, tuple(measures))
    evidence.append(f"but the host is only {now.busy:.1%} busy: check pins and limits of its VMs")
    return Verdict(VerdictKind.UNKNOWN, tuple(evidence), None, host.host, tuple(measures))


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
    by_vm = {vm: math.fsum(found) / count for vm, found in shares.items()}
    return _Uses(busy, max(busy - math.fsum(by_vm.values()), 0.0), by_vm)


def _own_vms(host: HostTicks, vms: Iterable[str]) -> list[_Own]:
    found: list[_Own] = []
    for vm in vms:
        during, before = _seen(host.during, vm), _seen(host.before, vm)
        if len(during) < LEAST_TICKS:
            continue
        used, waited = _means(during, host.pcpus)
        earlier = wait_share(*_means(before, host.pcpus)) if len(before) >= LEAST_TICKS else None
        found.append(_Own(vm, host, used, waited, wait_share(used, waited), earlier, _hot(during)))
    return found


def _seen(ticks: Iterable[TickRecord], vm: str) -> list[VmTick]:
    return [one for tick in ticks for one in tick.vms if one.vm == vm]


def _means(seen: Sequence[VmTick], pcpus: int) -> tuple[float, float]:
    used = math.fsum(one.cpu_share for one in seen) / len(seen) * pcpus
    return used, math.fsum(one.run_delay_share for one in seen) / len(seen)


def _measures(own: _Own) -> tuple[Measure, ...]:
    before = _seen(own.host.before, own.vm)
    used = _means(before, own.host.pcpus)[0] / own.host.pcpus if len(before) >= LEAST_TICKS else None
    return (
        Measure(own.vm, "wait_part", own.part_before, own.part),
        Measure(own.vm, "cpu_share", used, own.used_pcpus / own.host.pcpus),
    )


def _waiting(own: _Own) -> str:
    before = "" if own.part_before is None else f" (before: {own.part_before:.0%})"
    return (
        f"{own.vm} on {own.host.host}: vCPU wait (steal) {own.part:.0%}{before}, while it used"
        f" {round(own.used_pcpus, 3):g} pCPUs"
    )


def _weights(host: HostTicks, vms: Iterable[str]) -> list[str]:
    """What changed of the weights meanwhile."""
    found: list[str] = []
    for vm in vms:
        then, now = (
            [one.weight for one in _seen(ticks, vm) if one.weight is not None] for ticks in (host.before, host.during)
        )
        if then and now and then[-1] != now[-1]:
            found.append(f"the weight of {vm} changed from {then[-1]:,} to {now[-1]:,} meanwhile")
    return found


def _part(amount: float, whole: float) -> str:
    return f"{amount / whole:.0%}" if whole > 0 else "all"


def _why_nothing(case: Case) -> str:
    if not case.vms:
        return "no VM serves the application"
    if not case.hosts:
        return "no host is known on which its VMs run"
    most = max(len(host.during) for host in case.hosts)
    names = ", ".join(sorted(host.host for host in case.hosts))
    return f"too few ticks of {names} cover its VMs during the violation: {most} of {LEAST_TICKS} needed"


def _unknown(why: str, host: str | None = None) -> Verdict:
    return Verdict(VerdictKind.UNKNOWN, (why,), None, host)
