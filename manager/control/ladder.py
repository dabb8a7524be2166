"""By which mechanism a host's warps are given, and how our sched_ext scheduler is kept loaded without a loop."""

from __future__ import annotations

from dataclasses import dataclass, replace

from manager.control.warp_plan import Wanted, in_words, value_of, warps
from manager.model.decision import Owned, Snapshot
from manager.model.knobs import KnobValue
from manager.model.registration import HostSpec, Mode
from manager.model.warp import (
    EJECTED,
    LOADED,
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


def plan_warps(snapshot: Snapshot, seen: SchedulerSeen, memory: LadderMemory) -> tuple[WarpPlan, LadderMemory]:
    """The warps of the host's VMs, and by what. Nothing is loaded for nobody, or for VMs that are only observed."""
    host = snapshot.host
    wanted = {} if host.warp is WarpUse.OFF else warps(snapshot)
    if not wanted:
        detail = "switched off" if host.warp is WarpUse.OFF else "no VM that runs here is to have a warp"
        return replace(NO_WARPS, detail=detail), replace(memory, asked=False)
    memory = _remember(memory, snapshot, seen)
    acts = any(view.mode is host.mode for view in snapshot.vms if view.name in wanted)
    plan = _choose(snapshot, seen, memory, own=host.warp is WarpUse.SCHED_EXT and acts)
    given = {} if plan.mechanism is Mechanism.NONE else wanted
    goals = tuple(_goal(plan.mechanism, name, warp) for name, warp in given.items())
    asked = plan.load and host.mode is Mode.ENFORCE and not seen.taken_away
    return replace(plan, vms=tuple(goal for goal in goals if goal.warp_us)), replace(memory, asked=asked)


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
    if not sched_ext.there:
        return replace(_below(snapshot), problem=f"warps: our sched_ext scheduler cannot be loaded: {sched_ext.detail}")
    if seen.taken_away:  # the goal stays, so that the external change is known
        return replace(_below(snapshot), load=True)
    failed = _failed(memory, snapshot.host) if memory.failures else ""
    if memory.failures < MOST_TRIES and snapshot.steady_s >= memory.retry_s:
        return WarpPlan(detail="our sched_ext scheduler is being loaded", load=True, problem=failed)
    return replace(_below(snapshot), problem=failed)


def _failed(memory: LadderMemory, host: HostSpec) -> str:
    what = (
        "the kernel threw our sched_ext scheduler out" if memory.thrown_out else "our sched_ext scheduler did not load"
    )
    again = (
        "it is tried again later"
        if memory.failures < MOST_TRIES
        else f"it is not tried again before `equipoise adopt --host {host.name}`"
    )
    return f"warps: {what}, failure {memory.failures} of at most {MOST_TRIES} in a row; all tasks are EEVDF's; {again}"


def _below(snapshot: Snapshot) -> WarpPlan:
    """The mechanism for which nothing has to be loaded; none where there is none that was chosen."""
    use, offers = snapshot.host.warp, snapshot.capabilities.warps
    best = standing(offers, use)
    if best is not None:
        return WarpPlan(best.mechanism, best.detail)
    if use in {WarpUse.GROUP_IDENTITY, WarpUse.SLICE}:
        why = next((one.detail for one in offers if one.mechanism == use.value), "it was not looked for")
        return WarpPlan(detail=why, note=f'warps: "{use}" was chosen, and this host has none: {why}')
    others = chosen_only(offers)
    why = "this kernel has no mechanism that was measured to help" + f"; {others}" * bool(others)
    note = f"warps are on, and nobody gets one: {why}" if use is WarpUse.ON else ""
    return WarpPlan(detail=why, note=note)


def _goal(mechanism: Mechanism, vm: str, wanted: Wanted) -> VmWarp:
    if not wanted.warp_us:
        return VmWarp(vm, 0, 0, "")
    value = value_of(mechanism, wanted.warp_us)
    return VmWarp(vm, wanted.warp_us, value, f"{wanted.says} {wanted.warp_us:,} us by {in_words(mechanism, value)}")
