"""What the agent reports of a tick."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from manager.control.resolve import WARP_KNOBS
from manager.control.vcpus import busiest_vcpu, busy_vms
from manager.loop.journal import Entry, Journal
from manager.loop.tick import TickResult
from manager.model.cache import Mask, Resctrl, Schemata
from manager.model.fields import as_text, timestamp
from manager.model.knobs import HOST_UUID, Knob, KnobKey, KnobValue, knob_text
from manager.model.problem import ProblemKind
from manager.model.records import OutcomeKind, TickRecord, VmTick
from manager.model.registration import CacheControl
from manager.model.warp import ABILITIES, WarpUse
from manager.protocol.report import (
    MOST_BUSY_VMS,
    MOST_VCPUS,
    BatchStatus,
    CacheStatus,
    KnobChange,
    KnobStatus,
    TickStatus,
    VcpusStatus,
    VmStatus,
    WarpStatus,
)


class VmStatuses:
    """What is told of VMs, made again only when something besides their shares may have changed: there are many."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[object, ...], VmStatus]] = {}

    def of(self, result: TickResult, journal: Journal) -> list[VmStatus]:
        """The managed VMs by name, as read at the begin of the tick, with the values that the tick wrote.

        ``journal`` is as it is after the tick. The same object is returned while nothing but shares changed.
        """
        views = {view.name: view for view in result.snapshot.vms}
        observed, in_force = _observed(result), warps_in_force(result)
        made: dict[str, tuple[tuple[object, ...], VmStatus]] = {}
        for domain, spec in result.specs.items():
            state, view, knobs = result.reading.states[domain], views[spec.name], result.knobs(domain)
            changes, warp_us = observed.get(domain, []), in_force.get(domain)
            of = spec.name, state.instance, len(state.vcpus), knobs, journal.revision, view.mode, changes, warp_us
            before = self._made.get(domain)
            if before is not None and before[0] == of:
                made[domain] = before
                continue
            status = VmStatus(
                vm=spec.name,
                libvirt_name=state.instance.libvirt_name,
                libvirt_uuid=domain,
                pid=state.instance.pid,
                vcpus=len(state.vcpus),
                cpu_share=view.cpu_share,
                run_delay_share=view.run_delay_share,
                knobs=_knobs(knobs, journal.entries),
                mode=view.mode,
                observed=changes,
                warp_us=warp_us,
            )
            made[domain] = of, before[1] if before is not None and _same(before[1], status) else status
        self._made = made
        return sorted((status for _, status in made.values()), key=lambda status: status.vm)


def _same(before: VmStatus, now: VmStatus) -> bool:
    """Whether nothing but shares changed."""
    shares = {"cpu_share": now.cpu_share, "run_delay_share": now.run_delay_share}
    return before.model_copy(update=shares) == now


def _observed(result: TickResult) -> dict[str, list[KnobChange]]:
    """What was not written because of mode observe, by domain UUID; groups of the cache are the host's own."""
    found: dict[str, list[KnobChange]] = {}
    for step in result.cache.outcomes:
        if step.kind is OutcomeKind.OBSERVED:
            told = {"current": as_text(step.before), "planned": as_text(step.after), "reason": as_text(step.reason)}
            found.setdefault(step.vm or HOST_UUID, []).append(KnobChange(knob=step.knob, index=0, **told))
    for outcome in result.outcomes:
        if outcome.kind is OutcomeKind.OBSERVED:
            key, current, planned = (
                outcome.change.key,
                knob_text(outcome.change.before),
                knob_text(outcome.change.after),
            )
            change = KnobChange(
                knob=key.knob, index=key.index, current=current, planned=planned, reason=as_text(outcome.change.reason)
            )
            found.setdefault(key.uuid, []).append(change)
    return found


def _knobs(values: Mapping[KnobKey, KnobValue], journal: Mapping[KnobKey, Entry]) -> list[KnobStatus]:
    statuses: list[KnobStatus] = []
    for key, value in values.items():
        entry = journal.get(key)
        owned = entry.owned if entry else None
        original, external = (owned.original, owned.external) if owned else (None, False)
        statuses.append(_knob(key.knob, key.index, value, original, external))
    return statuses


@lru_cache(maxsize=4096)
def _knob(knob: Knob, index: int, value: KnobValue, original: KnobValue | None, external: bool) -> KnobStatus:
    """One knob. Most VMs of a host hold the same few values, tick after tick."""
    return KnobStatus(
        knob=knob,
        index=index,
        value=knob_text(value),
        original=None if original is None else knob_text(original),
        owned=original is not None and not external,
        external=external,
    )


def tick_status(
    result: TickResult,
    overruns: int,
    owned_knobs: int,
    connected: bool,
    assignment_revision: int | None = None,
    discovery_age_s: float | None = None,
) -> TickStatus:
    """The tick itself. ``assignment_revision`` is that of the assignment it acted on, None: unknown.

    ``discovery_age_s``: since libvirt last listed all domains.
    """
    shares = {True: 0.0, False: 0.0}
    for view in result.snapshot.vms:
        shares[view.critical] += view.cpu_share
    return TickStatus(
        number=result.number,
        at=timestamp(result.at_s),
        duration_ms=result.duration_s * 1000,
        overruns=overruns,
        errors=sum(problem.kind is not ProblemKind.LIMITED for problem in result.problems),
        limited=[as_text(problem.text) for problem in result.problems if problem.kind is ProblemKind.LIMITED],
        host_cpu_share=result.use.busy,
        vms_cpu_share=result.use.managed_vms,
        owned_knobs=owned_knobs,
        mode=result.snapshot.host.mode,
        policy=result.snapshot.host.policy,
        libvirt_connected=connected,
        critical_cpu_share=min(shares[True], 1.0),
        batch_cpu_share=min(shares[False], 1.0),
        batch=_batch(result),
        observed=_observed(result).get(HOST_UUID, []),
        assignment_revision=assignment_revision,
        discovery_age_s=discovery_age_s,
        busy_vcpus=_busy_vcpus(result),
        warp=_warp(result),
        cache=_cache(result),
    )


def _busy_vcpus(result: TickResult) -> list[VcpusStatus]:
    """Use and wait of each vCPU, of the VMs where one is busy."""
    return [
        VcpusStatus.model_construct(  # ours, and many: not looked at once more
            vm=view.name,
            used=[round(one, 3) for one in view.vcpu_pcpus[:MOST_VCPUS]],
            waited=[round(vcpu_wait, 3) for vcpu_wait in view.vcpu_waits[:MOST_VCPUS]],
        )
        for view in busy_vms(result.snapshot.vms, MOST_BUSY_VMS)
    ]


def warps_in_force(result: TickResult) -> dict[str, int]:
    """The warps by domain UUID, in microseconds, of the VMs that were seen to have what they are to have."""
    if not result.warp.vms:
        return {}
    wanted, knob = {warp.vm: warp for warp in result.warp.vms}, WARP_KNOBS[result.warp.mechanism]
    found: dict[str, int] = {}
    for domain, spec in result.specs.items():
        warp = wanted.get(spec.name)
        held = [value for key, value in result.knobs(domain).items() if key.knob is knob] if warp else []
        if warp and held and all(value == warp.value for value in held):
            found[domain] = warp.warp_us
    return found


def _warp(result: TickResult) -> WarpStatus | None:
    if result.snapshot.host.warp is WarpUse.OFF:
        return None
    can, cannot = ABILITIES[result.warp.mechanism]
    return WarpStatus(
        mechanism=result.warp.mechanism,
        detail=as_text(result.warp.detail),
        can=can,
        cannot=cannot,
        vms=len(warps_in_force(result)),
        counters=dict(result.warp_counters),
    )


def ways_in_force(result: TickResult) -> dict[str, dict[int, Mask]]:
    """The ways by name of the group and domain of the cache; data and code have the same."""
    resource = result.cache.offered.divided[0].name if result.cache.offered and result.cache.offered.caches else ""
    return {
        group.name: {slot.domain: Mask(value) for slot, value in group.values.items() if slot.resource == resource}
        for group in result.cache.groups
    }


def bandwidth_text(values: Schemata, offered: Resctrl | None) -> str:
    """To which least of its domains' limits the memory traffic of a group is held; empty where it is not."""
    for one in offered.bandwidths[:1] if offered else ():
        held = [value for slot, value in values.items() if slot.resource == one.name and value < one.most]
        if held:
            return one.unit.in_words(min(held))
    return ""


def _cache(result: TickResult) -> CacheStatus | None:
    """None where the cache is not to be divided."""
    if result.snapshot.host.cache is CacheControl.OFF:
        return None
    seen, ways = result.cache, ways_in_force(result)
    notes = [*seen.notes, *(problem.text for problem in result.problems if problem.kind is ProblemKind.CACHE)]
    cache = seen.offered.divided[0] if seen.offered and seen.offered.caches else None
    return CacheStatus.model_validate(
        {
            "resource": cache.name if cache else "",
            "ways": cache.ways.ways if cache else 0,
            "shareable": str(cache.shareable) if cache else "0",
            "groups": [
                {
                    "name": as_text(group.name),
                    "applications": group.apps,
                    "vms": group.vms,
                    "parts": [
                        {"domain": domain, "ways": mask.ways, "mask": str(mask)}
                        for domain, mask in sorted(ways[group.name].items())
                    ],
                    "external": group.external,
                    "bandwidth": bandwidth_text(group.values, seen.offered),
                }
                for group in seen.groups
            ],
            "groups_of_others": seen.groups_of_others,
            "notes": [as_text(note) for note in notes],
            "vms": [
                {
                    "vm": vm,
                    "parts": [
                        {
                            "domain": part.domain,
                            "occupancy_bytes": part.occupancy_bytes,
                            "bandwidth_total_bytes_per_s": part.total,
                            "bandwidth_local_bytes_per_s": part.local,
                        }
                        for part in parts
                    ],
                }
                for vm, parts in sorted(seen.measured.vms.items())
            ],
            "memories": [
                {
                    "domain": memory.domain,
                    "bandwidth_bytes_per_s": memory.rate,
                    "maximum_bytes_per_s": memory.maximum,
                    "saturated": memory.saturated,
                }
                for memory in seen.measured.memories
            ],
        }
    )


def _batch(result: TickResult) -> BatchStatus | None:
    batch, floor = result.batch, result.snapshot.host.law.batch_floor
    if batch.measured_share is None:
        return None
    share = min(batch.measured_share, 1.0)
    return BatchStatus(cpu_share=share, floor=floor, window_s=batch.measured_s, raised=batch.raised)


def tick_record(result: TickResult) -> TickRecord:
    """What the tick saw, for the history; shares are rounded, because there will be many of these."""
    vms = (
        VmTick(
            view.name,
            round(view.cpu_share, 5),
            round(view.run_delay_share, 5),
            view.weight,
            view.mode,
            busiest_vcpu(view),
        )
        for view in result.snapshot.vms
    )
    host = result.snapshot.host
    return TickRecord(result.at_s, host.policy, host.mode, round(result.use.busy, 5), tuple(vms))
