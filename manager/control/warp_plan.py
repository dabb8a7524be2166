"""How large warps are: what was registered, by SLA where that is `auto`, and bounded for the sake of all others.

And by which mechanism a host's warps are given, and how our sched_ext scheduler is kept loaded without a loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from manager.model.decision import Owned, Snapshot, VmView, WarpGoal
from manager.model.knob_spec import KnobValue
from manager.model.numbers import digits
from manager.model.registration import Application, Assignment, HostSpec, Mode, VmClass, VmSpec
from manager.model.warp import (
    AUTO,
    EJECTED,
    LOADED,
    MOST_WARP_US,
    NO_WARPS,
    TITLES,
    UNLOADED,
    Mechanism,
    Offer,
    VmWarp,
    WarpPlan,
    WarpUse,
    chosen_only,
    standing,
)

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


def is_left_to_policy(spec: VmSpec, application: Application | None) -> bool:
    """Whether a VM has a warp by its SLA alone, as none is registered for it or its application."""
    unsaid = spec.warp_us is None and application is not None and application.warp_us is None
    return unsaid and wanted_of(spec, application).warp_us > 0


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


def warps(snapshot: Snapshot, decided: Sequence[WarpGoal] | None = None) -> Mapping[str, Wanted]:
    """The warp of each VM that is to have one, by name; ``decided``: see ``Decision.warps``.

    None is larger than the host's ``warp_max_us``. And if those of all vCPUs come to more than that on average over the
    pCPUs, all are made smaller by the same factor, which leaves their order as it is: so who has no warp waits for
    others' borrowing no longer than ``warp_max_us`` of virtual time where vCPUs are spread evenly, however many VMs
    have warps. In CPU time that is more for VMs with more weight than the default; there the scheduler's own bound on
    what a task borrows at one go counts (docs/concepts/warp.md).
    """
    host = snapshot.host
    serves = {view.application.name: view.application for view in snapshot.applications}
    by_policy = {goal.vm: Wanted(goal.warp_us, f"{goal.reason}: warp") for goal in decided or ()}
    bounded: list[tuple[VmView, Wanted]] = []
    for view in snapshot.vms:
        application = serves.get(view.application or "")
        wanted = wanted_of(view.spec, application)
        if decided is not None and is_left_to_policy(view.spec, application):
            wanted = by_policy.get(view.name, _NONE)
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
        return f"EEVDF slice {digits(value / 10**6)} ms"
    if mechanism is Mechanism.GROUP_IDENTITY:
        return f"group identity {value}"
    return {Mechanism.SCHED_EXT: "sched_ext", Mechanism.BVT: "the BVT patch"}.get(mechanism, str(mechanism))


FIRST_RETRY_S, LONGEST_RETRY_S = 10.0, 1800.0
MOST_TRIES = 8
"""So often our scheduler may fail, one time soon after the other, before it is not loaded any more."""
CALM_S = 3600.0
"""A scheduler that decided for so long without being ejected has made good for the failures before."""
_NOT_LOOKED_FOR = Offer(Mechanism.SCHED_EXT, False, "it was not looked for")


@dataclass(frozen=True, slots=True)
class LadderMemory:
    """What became of our scheduler.

    ``asked``: it was to be loaded at the last plan, where that could be written. ``since_s``: it decides since then,
    None: it does not. After ``failures`` it may be tried again at ``retry_s``. ``settings`` are those of the host that
    it was tried under: a change of them, `equipoise adopt` included, makes all forgotten.
    """

    asked: bool = False
    since_s: float | None = None
    failures: int = 0
    retry_s: float = 0.0
    thrown_out: bool = False
    settings: tuple[WarpUse, int] = (WarpUse.OFF, 0)


NOTHING_YET = LadderMemory()


@dataclass(frozen=True, slots=True)
class SchedulerSeen:
    """The knob ``scheduler`` as read, None where it was not, and what the journal has of it."""

    value: KnobValue | None = None
    owned: Owned | None = None

    @property
    def taken_away(self) -> bool:
        """Whether another tool removed it: then it stays away until that is adopted."""
        owned = self.owned
        if owned is None:
            return False
        return owned.external or (owned.settled and owned.intended == LOADED and self.value == UNLOADED)


def plan_warps(
    snapshot: Snapshot, seen: SchedulerSeen, memory: LadderMemory, decided: Sequence[WarpGoal] | None = None
) -> tuple[WarpPlan, LadderMemory]:
    """The warps of the host's VMs, and by what. Nothing is loaded for nobody, or for VMs that are only observed.

    ``decided``: see ``Decision.warps``.
    """
    host = snapshot.host
    wanted = {} if host.warp is WarpUse.OFF else warps(snapshot, decided)
    if not wanted:
        detail = "switched off" if host.warp is WarpUse.OFF else "no VM that runs here is to have a warp"
        return replace(NO_WARPS, detail=detail), replace(memory, asked=False)
    memory = _remember(memory, snapshot, seen)
    acts = any(view.mode is host.mode for view in snapshot.vms if view.name in wanted)
    plan = _choose(snapshot, seen, memory, own=host.warp is WarpUse.SCHED_EXT and acts)
    reached = {} if plan.mechanism is Mechanism.NONE else wanted
    goals = tuple(_goal(plan.mechanism, name, warp) for name, warp in reached.items() if warp.warp_us)
    asked = plan.load and host.mode is Mode.ENFORCE and not seen.taken_away
    return replace(plan, vms=goals), replace(memory, asked=asked)


def _remember(memory: LadderMemory, snapshot: Snapshot, seen: SchedulerSeen) -> LadderMemory:
    host, now_s = snapshot.host, snapshot.steady_s
    if memory.settings != (host.warp, host.adoptions):
        memory = LadderMemory(settings=(host.warp, host.adoptions))
    if snapshot.capabilities.scheduler_is_ours:
        since_s = now_s if memory.since_s is None else memory.since_s
        calm = now_s - since_s >= CALM_S
        return replace(memory, since_s=since_s, failures=0 if calm else memory.failures)
    lost = seen.value == EJECTED and not memory.failures
    if not (memory.asked or lost) or seen.taken_away:
        return replace(memory, since_s=None)
    failures = memory.failures + 1
    retry_s = now_s + min(FIRST_RETRY_S * 2 ** (failures - 1), LONGEST_RETRY_S)
    thrown_out = memory.since_s is not None or lost
    return replace(memory, since_s=None, failures=failures, retry_s=retry_s, thrown_out=thrown_out)


def _choose(snapshot: Snapshot, seen: SchedulerSeen, memory: LadderMemory, *, own: bool) -> WarpPlan:
    """The mechanism, without the VMs. ``own``: our scheduler is to be loaded for them."""
    capabilities = snapshot.capabilities
    if capabilities.scheduler_is_ours:
        return WarpPlan(Mechanism.SCHED_EXT, f"{TITLES[Mechanism.SCHED_EXT]} decides", load=own)
    if capabilities.scheduler:
        other = f"the sched_ext scheduler {capabilities.scheduler!r} of another tool decides, which no warp reaches"
        return WarpPlan(detail=other, problem=f"warps: {other}; stop it, or switch warps off")
    return _choose_to_load(snapshot, seen, memory) if own else _below(snapshot)


def _choose_to_load(snapshot: Snapshot, seen: SchedulerSeen, memory: LadderMemory) -> WarpPlan:
    """While our scheduler does not decide and is to."""
    offers = snapshot.capabilities.warps
    sched_ext = next((offer for offer in offers if offer.mechanism is Mechanism.SCHED_EXT), _NOT_LOOKED_FOR)
    if not sched_ext.available:
        return replace(_below(snapshot), problem=f"warps: our sched_ext scheduler cannot be loaded: {sched_ext.detail}")
    if seen.taken_away:  # the goal stays, so that the external change is known
        return replace(_below(snapshot), load=True)
    failed = _failed(memory, snapshot.host) if memory.failures else ""
    if memory.failures < MOST_TRIES and snapshot.steady_s >= memory.retry_s:
        return WarpPlan(detail="our sched_ext scheduler is being loaded", load=True, problem=failed)
    return replace(_below(snapshot), problem=failed)


def _failed(memory: LadderMemory, host: HostSpec) -> str:
    ours = "our sched_ext scheduler"
    what = f"the kernel threw {ours} out" if memory.thrown_out else f"{ours} did not load"
    again = "it is tried again later"
    if memory.failures >= MOST_TRIES:
        again = f"it is not tried again before `equipoise adopt --host {host.name}`"
    return f"warps: {what}, failure {memory.failures} of at most {MOST_TRIES} in a row; all tasks are EEVDF's; {again}"


def can_warp(snapshot: Snapshot) -> bool:
    """Whether the host has the mechanism that was chosen for its warps, and no scheduler of another tool decides."""
    use, capabilities = snapshot.host.warp, snapshot.capabilities
    if use is WarpUse.OFF or (capabilities.scheduler and not capabilities.scheduler_is_ours):
        return False
    loadable = any(offer.available and offer.mechanism is Mechanism.SCHED_EXT for offer in capabilities.warps)
    own = use is WarpUse.SCHED_EXT and (loadable or capabilities.scheduler_is_ours)
    return own or standing(capabilities.warps, use) is not None


def _below(snapshot: Snapshot) -> WarpPlan:
    """The mechanism for which nothing has to be loaded; none where there is none that was chosen."""
    use, offers = snapshot.host.warp, snapshot.capabilities.warps
    best = standing(offers, use)
    if best is not None:
        return WarpPlan(best.mechanism, best.detail)
    if use in {WarpUse.GROUP_IDENTITY, WarpUse.SLICE}:
        why = next((offer.detail for offer in offers if offer.mechanism == use.value), "it was not looked for")
        return WarpPlan(detail=why, note=f'warps: "{use}" was chosen, and this host has none: {why}')
    others = chosen_only(offers)
    why = "this kernel has no mechanism that was measured to help" + f"; {others}" * bool(others)
    note = f"warps are on, and nobody gets one: {why}" if use is WarpUse.ON else ""
    return WarpPlan(detail=why, note=note)


def _goal(mechanism: Mechanism, vm: str, wanted: Wanted) -> VmWarp:
    value = value_of(mechanism, wanted.warp_us)
    return VmWarp(vm, wanted.warp_us, value, f"{wanted.says} {wanted.warp_us:,} us by {in_words(mechanism, value)}")
