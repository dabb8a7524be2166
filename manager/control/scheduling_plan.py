"""Real-time and niced vCPUs, where an operator registered them: which settings that takes, and what is in its way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from manager.model.decision import Goal, Snapshot, VmView
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.registration import Mode, VmClass
from manager.model.scheduling import LIMIT_PERIOD_US, MOST_LIMIT_US, Scheduling, in_words
from manager.model.units import percent

_NO_LIMIT = "cannot be real-time: this kernel has no limit for real-time threads of a group (`equipoise doctor`)"
_NO_GROUP = "cannot be real-time: it has no CPU cgroup of its own that could limit it"
_INSTEAD = "its vCPUs are left as they are; give it a warp instead (docs/concepts/warp.md)"


@dataclass(frozen=True, slots=True)
class SchedulingPlan:
    """The goals, and what an operator should know of VMs that get none."""

    goals: tuple[Goal, ...] = ()
    problems: tuple[str, ...] = ()


def plan_scheduling(
    snapshot: Snapshot,
    uuids: Mapping[str, str],
    groups: Mapping[str, tuple[KnobKey, ...]],
    least_us: Mapping[KnobKey, int],
    kept_us: Mapping[KnobKey, int],
) -> SchedulingPlan:
    """What registered scheduling takes. No thread becomes real-time that the kernel would not stop at its limit.

    ``groups`` are the limits above the vCPUs of each domain, as read; those of the host get the sum of what the VMs
    below them get, but ``least_us`` at least, which they have without us, and ``kept_us``, which VMs that could not be
    read may be using. All limits of a pCPU together are bounded by the kernel: VMs that come after that in the order
    of their names get none.
    """
    goals: list[Goal] = []
    problems: list[str] = []
    limited: list[tuple[VmView, int]] = []
    for view in snapshot.vms:
        wanted = view.spec.scheduling
        if wanted is None or view.spec.vm_class is not VmClass.CRITICAL or view.mode is Mode.RELEASED:
            continue
        if wanted.real_time:
            limit_us = round((wanted.limit or 0) * LIMIT_PERIOD_US)
            taken_us = sum(others_us for _, others_us in limited)
            problem = _problem(snapshot, groups.get(uuids[view.name], ()), uuids[view.name], taken_us, limit_us)
            if problem:
                problems.append(f"{view.name} {problem}; {_INSTEAD}")
                continue
            limited.append((view, limit_us))
            goals += _limits_of(view, uuids[view.name], groups[uuids[view.name]], limit_us)
        goals += _of_threads(view, uuids[view.name], wanted)
    goals += _above(limited, uuids, groups, least_us, kept_us)
    return SchedulingPlan(tuple(goals), tuple(problems))


def _problem(snapshot: Snapshot, above: tuple[KnobKey, ...], uuid: str, taken_us: int, limit_us: int) -> str:
    if not snapshot.capabilities.limits_real_time:
        return _NO_LIMIT
    if KnobKey(uuid, Knob.RT_RUNTIME) not in above:
        return _NO_GROUP
    if taken_us + limit_us > MOST_LIMIT_US:
        left = (MOST_LIMIT_US - taken_us) / LIMIT_PERIOD_US
        return f"cannot be real-time: a limit of {limit_us / LIMIT_PERIOD_US:g} is more than the {left:g} that is left"
    return ""


def _limits_of(view: VmView, uuid: str, above: tuple[KnobKey, ...], limit_us: int) -> Iterator[Goal]:
    """The VM's own groups get all of the limit, each vCPU's an equal part: the kernel lets children have no more."""
    why = f"registered limit: {percent(limit_us / LIMIT_PERIOD_US)} of each pCPU's time"
    for key in above:
        if key.uuid == uuid:
            yield Goal(key, limit_us, why, view.mode)
    for index in range(view.vcpus):
        key = KnobKey(uuid, Knob.VCPU_RT_RUNTIME, index)
        yield Goal(key, limit_us // view.vcpus, f"{why}, for {view.vcpus} vCPUs", view.mode)


def _of_threads(view: VmView, uuid: str, wanted: Scheduling) -> Iterator[Goal]:
    for index in range(view.vcpus):
        key = KnobKey(uuid, Knob.SCHEDULING, index)
        yield Goal(key, wanted.value, f"registered scheduling: {in_words(wanted.value)}", view.mode)


def _above(
    limited: list[tuple[VmView, int]],
    uuids: Mapping[str, str],
    groups: Mapping[str, tuple[KnobKey, ...]],
    least_us: Mapping[KnobKey, int],
    kept_us: Mapping[KnobKey, int],
) -> Iterator[Goal]:
    """What groups above VMs need, by what is enforced, or if nothing is by what is observed."""
    enforced = [(view, limit_us) for view, limit_us in limited if view.mode is Mode.ENFORCE]
    needed_us = dict.fromkeys(kept_us, 0)
    for view, limit_us in enforced or limited:
        for key in groups[uuids[view.name]]:
            if key.uuid == HOST_UUID:
                needed_us[key] = needed_us.get(key, 0) + limit_us
    mode = Mode.ENFORCE if enforced or kept_us else Mode.OBSERVE
    for key, sum_us in needed_us.items():
        least = least_us.get(key, 0)
        if least != UNLIMITED:
            most_us = max(sum_us, least, kept_us.get(key, 0))
            yield Goal(key, most_us, "the limits of the real-time VMs below it", mode)
