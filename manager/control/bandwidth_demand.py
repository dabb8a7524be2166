"""Whose memory bandwidth is to be held back on a host, from its registrations, response times and what was measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from manager.control.bandwidth import BandwidthMemory, BandwidthSeen, bandwidth_of, next_held
from manager.control.cache_demand import Placed
from manager.control.cache_plan import CacheDemand
from manager.control.monitoring import DomainMemory, Measured
from manager.model.cache import BandwidthResource
from manager.model.decision import ApplicationView, Snapshot
from manager.model.registration import Mode
from manager.model.window import SlaState


@dataclass(frozen=True, slots=True)
class HeldBack:
    """What is known of those held back, as of the window that ended at ``window_s``; ``why`` that changed last."""

    memory: BandwidthMemory = field(default_factory=BandwidthMemory)
    why: str = ""
    window_s: float = 0.0


NOBODY = HeldBack()


def holding(
    demand: CacheDemand, held: HeldBack, placed: Mapping[str, Placed], resource: BandwidthResource | None
) -> CacheDemand:
    """What is asked for, with those held back who are batch VMs of it."""
    keys = frozenset(placed[vm].key for vm in held.memory.held if vm in placed) & demand.batch
    if not keys or resource is None:
        return demand
    return replace(demand, held=keys, bandwidth=bandwidth_of(held.memory, resource))


def judge_held(
    held: HeldBack,
    snapshot: Snapshot,
    demand: CacheDemand,
    placed: Mapping[str, Placed],
    measured: Measured,
    resource: BandwidthResource | None,
    *,
    busy: bool,
) -> HeldBack:
    """What response times and traffic make of it, for the next plan; each window counts once.

    Nobody is held back without counters of memory traffic. ``busy``: a trial of ways runs.
    """
    batch = [vm for vm, place in placed.items() if place.key in demand.batch]
    if resource is None or not measured.able or not batch:
        return NOBODY
    suffering = max(_suffering(snapshot, placed), default=None)
    if suffering is None:
        memory, why = next_held(
            held.memory, BandwidthSeen(snapshot.steady_s, None, dict.fromkeys(batch), 0.0, resource)
        )
        return HeldBack(memory, why or held.why, held.window_s)
    ratio, app, end_s, domains = suffering
    if end_s <= held.window_s:
        return held
    here = [one for one in measured.memories if one.domain in domains]
    worst = max(here, key=lambda one: (one.rate or 0.0, -one.domain), default=None)
    seen = BandwidthSeen(snapshot.steady_s, ratio, *_traffic(batch, measured, worst), resource, busy)
    memory, why = next_held(held.memory, seen)
    return HeldBack(memory, f"for {app}: {why}" if why else held.why, end_s)


def _suffering(
    snapshot: Snapshot, placed: Mapping[str, Placed]
) -> Collection[tuple[float, str, float, tuple[int, ...]]]:
    """Of each critical application that is controlled here and has response times to believe: how they compare to its
    SLA, its name, the end of its window, and the domains where it runs.
    """
    found = []
    for view in snapshot.applications:
        time_ms = _time_ms(view)
        own = [
            placed[vm.name].domains
            for vm in snapshot.vms
            if vm.critical and vm.application == view.application.name and vm.mode is Mode.ENFORCE and vm.name in placed
        ]
        if view.application.sla and view.window and own and time_ms is not None:
            ratio, domains = time_ms / view.application.sla.response_time_ms, frozenset[int]().union(*own)
            found.append((ratio, view.application.name, view.window.end_s, tuple(sorted(domains))))
    return found


def _time_ms(view: ApplicationView) -> float | None:
    if view.application.sla is None or view.window is None or view.sla_state is SlaState.NO_DATA:
        return None
    return view.window.percentile_ms(view.application.sla.percentile)


def _traffic(
    batch: Collection[str], measured: Measured, memory: DomainMemory | None
) -> tuple[dict[str, float | None], float]:
    """What each batch VM takes of a domain, and all together; where that is not known now, nobody is guilty."""
    if memory is None or memory.rate is None:
        return dict.fromkeys(batch), math.inf
    parts = {vm: {one.domain: one.total for one in measured.vms.get(vm, ())} for vm in batch}
    return {vm: of.get(memory.domain) for vm, of in parts.items()}, memory.rate
