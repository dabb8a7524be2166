"""How fast pCPUs are to wake up and clock, where critical vCPUs are pinned, and only there.

A vCPU that wakes on a pCPU in a deep idle state, or at a low clock, answers later by what that takes to leave: R (Lo et
al., EuroSys 2014, section 3.2.1) measured both to be of the size of a tail of memcached.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from manager.model.decision import Goal, Placement, Snapshot
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.power import ANOTHER_GOVERNOR, ANY_LATENCY, PERFORMANCE, ClockDomain
from manager.model.registration import Mode


@dataclass(frozen=True, slots=True)
class PowerSeen:
    """What the host has: what each knob holds without us, and the pCPUs of each clock, by number of the policy.

    ``kept``: what was set for VMs that cannot be read now; it stays.
    """

    originals: Mapping[KnobKey, int] = field(default_factory=dict)
    clocks: Mapping[int, ClockDomain] = field(default_factory=dict)
    kept: Mapping[KnobKey, int] = field(default_factory=dict)


def plan_power(snapshot: Snapshot, placement: Placement, seen: PowerSeen) -> tuple[Goal, ...]:
    """The goals of a tick. A stricter limit that an operator set stays, and so does a governor that is not known."""
    rules = snapshot.host.placement
    if not rules.powers:
        return ()
    goals = {goal.key: goal for goal in _goals(snapshot, _critical_cpus(snapshot, placement), seen)}
    kept = (
        Goal(key, value, "its VM cannot be read now", snapshot.host.mode)
        for key, value in seen.kept.items()
        if key not in goals
    )
    return (*goals.values(), *kept)


def _goals(snapshot: Snapshot, pinned: Mapping[int, list[tuple[str, Mode]]], seen: PowerSeen) -> Iterator[Goal]:
    rules, most_us = snapshot.host.placement, snapshot.host.placement.resume_latency_us
    for cpu, vms in sorted(pinned.items()):
        key = KnobKey(HOST_UUID, Knob.RESUME_LATENCY, cpu)
        original = seen.originals.get(key)
        if most_us is not None and original is not None and (original == ANY_LATENCY or original > most_us):
            yield Goal(key, most_us, _why(vms), _mode(vms))
    if not rules.performance_governor:
        return
    for number, clock in sorted(seen.clocks.items()):
        key = KnobKey(HOST_UUID, Knob.GOVERNOR, number)
        on_it = [vm for cpu in sorted(clock.cpus & pinned.keys()) for vm in pinned[cpu]]
        known = seen.originals.get(key, ANOTHER_GOVERNOR) != ANOTHER_GOVERNOR
        if on_it and clock.performance and known:
            yield Goal(key, PERFORMANCE, _why(on_it), _mode(on_it))


def _critical_cpus(snapshot: Snapshot, placement: Placement) -> Mapping[int, list[tuple[str, Mode]]]:
    """Who is pinned to each pCPU."""
    modes = {view.name: view.mode for view in snapshot.vms if view.critical}
    pinned: dict[int, list[tuple[str, Mode]]] = defaultdict(list)
    for vm in placement.vms:
        if modes.get(vm.vm, Mode.RELEASED) is not Mode.RELEASED:
            for cpu in {vcpu.cpu for vcpu in vm.vcpus}:
                pinned[cpu].append((vm.vm, modes[vm.vm]))
    return pinned


def _why(vms: list[tuple[str, Mode]]) -> str:
    return f"vCPUs of {', '.join(sorted({name for name, _ in vms}))} are pinned here"


def _mode(vms: list[tuple[str, Mode]]) -> Mode:
    return Mode.ENFORCE if any(mode is Mode.ENFORCE for _, mode in vms) else Mode.OBSERVE
