"""How large warps are: what was registered, by SLA where that is `auto`, and bounded for the sake of all others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from manager.model.decision import Snapshot, VmView
from manager.model.registration import Application, Assignment, Mode, VmClass, VmSpec
from manager.model.warp import AUTO, MOST_WARP_US, Mechanism, WarpUse

SLOWEST_MS = 100.0
"""An SLA of this or more needs no warp: who waits that long for a CPU waits for its share, which the weight gives."""
LEAST_US = 25_000
STEP_US = 1400
MAX_US = 50_000

SHORTEST_SLICE_NS, LONGEST_SLICE_NS = 100_000, 3_000_000
"""The shortest that the kernel takes (kernel/sched/syscalls.c, __setparam_fair), and one that is hardly a warp."""
HIGHEST_CLASS_US = 32_000
"""`auto` for an SLA of 3 ms."""


def auto_warp_us(response_time_ms: float) -> int:
    """The warp for an SLA: rate monotonic, as the 2014 study gave them.

    None from 100 ms on; below that 25 ms, and 1.4 ms for each halving: 34 ms for 1 ms, at most 50 ms. All are large, so
    that they last against who has none; they lie close together, so that the service with the looser SLA waits for the
    other no longer than it can afford to (docs/concepts/warp.md).

    Raises ValueError unless the response time is positive.
    """
    if not response_time_ms > 0:
        raise ValueError(f"a response time of {response_time_ms} ms")
    if response_time_ms >= SLOWEST_MS:
        return 0
    return min(MAX_US, round(LEAST_US + STEP_US * math.log2(SLOWEST_MS / response_time_ms)))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The warp of a VM, and where it comes from, in words."""

    warp_us: int
    says: str


_NONE = Wanted(0, "")


def wanted_of(spec: VmSpec, application: Application | None) -> Wanted:
    """What was registered for a VM that serves that application, or none.

    Its own word counts before the application's; a critical VM of an application with an SLA for which nobody said
    anything has `auto`. `auto` is 0 without an SLA, and for batch VMs, which none is given for. No warp reaches
    real-time threads.
    """
    if spec.real_time:
        return _NONE
    sla = application.sla if application else None
    critical = spec.vm_class is VmClass.CRITICAL
    said = spec.warp_us
    if said is None and application is not None and critical:
        said = AUTO if application.warp_us is None else application.warp_us
    if said is None or said == 0:
        return _NONE
    if said != AUTO:
        return Wanted(said, "warp as registered:")
    if sla is None or not critical:
        return _NONE
    return Wanted(auto_warp_us(sla.response_time_ms), f"warp auto: SLA {sla.response_time_ms:g} ms ->")


def warped_vms(assignment: Assignment) -> frozenset[str]:
    """The registered VMs that are to have a warp, by name; none on a host where that is switched off."""
    host = assignment.host
    if host.warp is WarpUse.OFF or host.mode is Mode.RELEASED:
        return frozenset()
    serves = {vm: application for application in assignment.applications for vm in application.vms}
    return frozenset(spec.name for spec in assignment.vms if wanted_of(spec, serves.get(spec.name)).warp_us)


def warps(snapshot: Snapshot) -> Mapping[str, Wanted]:
    """The warp of each VM that is to have one, by name.

    None is larger than the host's ``warp_max_us``. And if those of all vCPUs come to more than that on average over the
    pCPUs, all are made smaller by the same factor, which leaves their order as it is: so who has no warp waits for
    others' borrowing no longer than ``warp_max_us`` of virtual time where vCPUs are spread evenly, however many VMs
    have warps. In CPU time that is more for VMs with more weight than the default; there the scheduler's own bound on
    what a task borrows at one go counts (docs/concepts/warp.md).
    """
    host = snapshot.host
    serves = {view.application.name: view.application for view in snapshot.applications}
    bounded: list[tuple[VmView, Wanted]] = []
    for view in snapshot.vms:
        wanted = wanted_of(view.spec, serves.get(view.application or ""))
        if wanted.warp_us and view.mode is not Mode.RELEASED:
            bounded.append((view, _at_most(wanted, min(host.warp_max_us, MOST_WARP_US))))
    together_us = sum(view.vcpus * wanted.warp_us for view, wanted in bounded)
    allowed_us = host.warp_max_us * len(snapshot.capabilities.online_cpus)
    if together_us <= allowed_us:
        return {view.name: wanted for view, wanted in bounded}
    factor = allowed_us / together_us
    why = f"all made {factor:.2g} x, so that together they are no more than {host.warp_max_us:,} us a pCPU:"
    return {
        view.name: Wanted(int(wanted.warp_us * factor), f"{wanted.says} {wanted.warp_us:,} us, {why}")
        for view, wanted in bounded
    }


def _at_most(wanted: Wanted, most_us: int) -> Wanted:
    if wanted.warp_us <= most_us:
        return wanted
    return Wanted(most_us, f"{wanted.says} {wanted.warp_us:,} us, this host's largest:")


def value_of(mechanism: Mechanism, warp_us: int) -> int:
    """What a positive warp is in the unit of a mechanism.

    The slice is the shorter the larger the warp, 0.1 ms from 10 ms on. Of the classes of group identity the larger
    warps get the higher.
    """
    if mechanism is Mechanism.BVT:
        return warp_us * 1000
    if mechanism is Mechanism.GROUP_IDENTITY:
        return 2 if warp_us >= HIGHEST_CLASS_US else 1
    if mechanism is Mechanism.SLICE:
        return min(max(10**9 // warp_us, SHORTEST_SLICE_NS), LONGEST_SLICE_NS)
    return warp_us


def in_words(mechanism: Mechanism, value: int) -> str:
    """How a mechanism does it, such as ``EEVDF slice 0.1 ms``."""
    if mechanism is Mechanism.SLICE:
        return f"EEVDF slice {value / 10**6:.3g} ms"
    if mechanism is Mechanism.GROUP_IDENTITY:
        return f"group identity {value}"
    return {Mechanism.SCHED_EXT: "sched_ext", Mechanism.BVT: "the BVT patch"}.get(mechanism, str(mechanism))
