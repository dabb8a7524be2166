"""What the agent reports of a tick."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache

from manager.control.resolve import WARP_KNOBS
from manager.control.tick_means import busiest_vcpu, busy_vms
from manager.loop.journal import Entry, Journal
from manager.loop.tick import TickResult
from manager.model.decision import ShownCause
from manager.model.fields import as_text, timestamp
from manager.model.job import BatchVm
from manager.model.knob_spec import KnobValue
from manager.model.knob_text import knob_text
from manager.model.knobs import HOST_UUID, POWERS, Knob
from manager.model.problem import ProblemKind
from manager.model.records import OutcomeKind, TickRecord, VmTick
from manager.model.registration import CacheControl
from manager.model.warp import ABILITIES, WarpUse
from manager.protocol.report import (
    MOST_BATCH_VMS,
    MOST_BUSY_VMS,
    MOST_VCPUS,
    BatchStatus,
    CacheGroup,
    CacheMemory,
    CacheStatus,
    CacheTraffic,
    CacheVm,
    ExplanationStatus,
    GuardStatus,
    KnobChange,
    KnobStatus,
    PowerControlStatus,
    ShownCauseStatus,
    TickStatus,
    VcpusStatus,
    VmStatus,
    WarpStatus,
)


class VmStatuses:
    """The statuses of VMs, made again only when something besides their shares may have changed: there are many."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[tuple[object, ...], VmStatus]] = {}
        self._of: tuple[object, ...] = ()
        self._statuses: list[VmStatus] = []

    def of(self, result: TickResult, journal: Journal, migrating: Collection[str] = ()) -> list[VmStatus]:
        """The managed VMs by name, as read at the begin of the tick, with the values that the tick wrote.

        ``journal`` is as it is after the tick, ``migrating`` are the domains that migrate to other hosts. The same
        object is returned while nothing but shares changed.
        """
        observed, in_force = _observed(result), warps_in_force(result)
        runs = [state.instance for state in result.reading.states.values()]
        modes = [view.mode for view in result.snapshot.vms]
        knobs_of = (result.reading.knobs, result.written, journal.revision)
        of_all = (result.specs, runs, modes, knobs_of, observed, in_force, frozenset(migrating))
        if of_all != self._of:  # mostly all is as it was
            self._statuses = self._changed(result, journal, migrating, observed, in_force)
            self._of = of_all
        return self._statuses

    def _changed(
        self,
        result: TickResult,
        journal: Journal,
        migrating: Collection[str],
        observed: Mapping[str, list[KnobChange]],
        in_force: Mapping[str, int],
    ) -> list[VmStatus]:
        views = {view.name: view for view in result.snapshot.vms}
        made: dict[str, tuple[tuple[object, ...], VmStatus]] = {}
        for domain, spec in result.specs.items():
            state, view, knobs = result.reading.states[domain], views[spec.name], result.knobs(domain)
            changes, warp_us = observed.get(domain, []), in_force.get(domain)
            leaves = domain in migrating
            of = (
                spec.name,
                state.instance,
                len(state.vcpus),
                knobs,
                journal.revision,
                view.mode,
                changes,
                warp_us,
                leaves,
            )
            before_of, before = self._made.get(domain, (None, None))
            if before is not None and before_of == of:
                made[domain] = of, before
                continue
            status = VmStatus(
                vm=spec.name,
                libvirt_name=state.instance.libvirt_name,
                libvirt_uuid=domain,
                pid=state.instance.pid,
                vcpus=len(state.vcpus),
                cpu_share=view.cpu_share,
                run_delay_share=view.run_delay_share,
                knobs=[_knob(key.knob, key.index, value, journal.entries.get(key)) for key, value in knobs.items()],
                mode=view.mode,
                observed=changes,
                warp_us=warp_us,
                migrating=leaves,
            )
            shares = {"cpu_share": view.cpu_share, "run_delay_share": view.run_delay_share}
            same = before is not None and before.model_copy(update=shares) == status
            made[domain] = of, before if before is not None and same else status
        self._made = made
        return sorted((status for _, status in made.values()), key=lambda status: status.vm)


def _observed(result: TickResult) -> dict[str, list[KnobChange]]:
    """What was not written because of mode observe, by domain UUID; groups of the cache are the host's own."""
    observed: dict[str, list[KnobChange]] = {}
    for outcome in (*result.cache.outcomes, *result.outcomes):
        if outcome.kind is OutcomeKind.OBSERVED:
            change = KnobChange(
                knob=outcome.key.knob,
                index=outcome.key.index,
                current=as_text(outcome.before),
                planned=as_text(outcome.after),
                reason=as_text(outcome.reason),
            )
            observed.setdefault(outcome.key.uuid, []).append(change)
    return observed


def _knob(knob: Knob, index: int, value: KnobValue, entry: Entry | None) -> KnobStatus:
    original, external = (entry.owned.original, entry.owned.external) if entry else (None, False)
    return _knob_status(knob, index, value, original, external)


@lru_cache(maxsize=4096)
def _knob_status(knob: Knob, index: int, value: KnobValue, original: KnobValue | None, external: bool) -> KnobStatus:
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
    guard: GuardStatus | None = None,
    power_controls: PowerControlStatus | None = None,
) -> TickStatus:
    """The tick itself. ``assignment_revision`` is that of the assignment it acted on, None: unknown.

    ``discovery_age_s``: since libvirt last listed all domains. ``guard`` None: it is switched off. ``power_controls``
    None: nothing of it is changed.
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
        host_cpu_share=result.busy or 0.0,
        vms_cpu_share=min(sum(shares.values()), 1.0),
        owned_knobs=owned_knobs,
        mode=result.snapshot.host.mode,
        policy=result.snapshot.host.policy,
        libvirt_connected=connected,
        critical_cpu_share=min(shares[True], 1.0) if result.busy is not None else None,
        batch_cpu_share=min(shares[False], 1.0) if result.busy is not None else None,
        batch=_batch(result),
        batch_vms=_batch_vms(result),
        guard=guard,
        observed=_observed(result).get(HOST_UUID, []),
        assignment_revision=assignment_revision,
        discovery_age_s=discovery_age_s,
        busy_pcpus={str(number): round(share, 3) for number, share in result.busy_pcpus.items()},
        busy_vcpus=_busy_vcpus(result),
        warp=_warp(result),
        cache=_cache(result),
        resources=result.kept_resources,
        power=result.power,
        power_controls=power_controls,
        explanations=[
            ExplanationStatus(application=each.application, text=as_text(each.text), cause=_cause(each.cause))
            for each in result.explanations
        ],
    )


def _cause(cause: ShownCause | None) -> ShownCauseStatus | None:
    if cause is None:
        return None
    return ShownCauseStatus(vm=cause.vm, fall=cause.fall, confidence=cause.confidence, age_s=cause.age_s)


def _busy_vcpus(result: TickResult) -> list[VcpusStatus]:
    """Use and wait of each vCPU, of the VMs where one is busy."""
    return [
        VcpusStatus.model_construct(  # ours, and many: not validated again
            vm=view.name,
            used=[round(use, 3) for use in view.vcpu_pcpus[:MOST_VCPUS]],
            waited=[round(wait, 3) for wait in view.vcpu_waits[:MOST_VCPUS]],
        )
        for view in busy_vms(result.snapshot.vms, MOST_BUSY_VMS)
    ]


def warps_in_force(result: TickResult) -> dict[str, int]:
    """The warps by domain UUID, in microseconds, of the VMs that were seen to have what they are to have."""
    if not result.warp.vms:
        return {}
    wanted, knob = {warp.vm: warp for warp in result.warp.vms}, WARP_KNOBS[result.warp.mechanism]
    in_force: dict[str, int] = {}
    for domain, spec in result.specs.items():
        warp = wanted.get(spec.name)
        held = [value for key, value in result.knobs(domain).items() if key.knob is knob] if warp else []
        if warp and held and all(value == warp.value for value in held):
            in_force[domain] = warp.warp_us
    return in_force


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


def _cache(result: TickResult) -> CacheStatus | None:
    """None where the cache is not to be divided."""
    if result.snapshot.host.cache is CacheControl.OFF:
        return None
    seen, problems = result.cache, (problem.text for problem in result.problems if problem.kind is ProblemKind.CACHE)
    cache = seen.offered.divided[0] if seen.offered and seen.offered.caches else None
    vms = [
        CacheVm(
            vm=vm,
            parts=[
                CacheTraffic(
                    domain=traffic.domain,
                    occupancy_bytes=traffic.occupancy_bytes,
                    bandwidth_total_bytes_per_s=traffic.total,
                    bandwidth_local_bytes_per_s=traffic.local,
                )
                for traffic in traffics
            ],
        )
        for vm, traffics in sorted(seen.measured.vms.items())
    ]
    memories = [
        CacheMemory(
            domain=memory.domain,
            bandwidth_bytes_per_s=memory.rate,
            maximum_bytes_per_s=memory.maximum,
            saturated=memory.saturated,
        )
        for memory in seen.measured.memories
    ]
    return CacheStatus(
        resource=cache.name if cache else "",
        ways=cache.ways.ways if cache else 0,
        shareable=str(cache.shareable) if cache else "0",
        groups=[CacheGroup.model_validate(group, from_attributes=True) for group in seen.groups],
        groups_of_others=seen.groups_of_others,
        notes=[as_text(note) for note in (*seen.notes, *problems)],
        vms=vms,
        memories=memories,
    )


def power_controls(journal: Journal) -> PowerControlStatus | None:
    """What is changed of the power settings of pCPUs, None for nothing."""
    if not journal.runs.knobs & POWERS:
        return None
    ours = [key.knob for key, entry in journal.entries.items() if key.knob in POWERS and not entry.owned.external]
    latencies = ours.count(Knob.RESUME_LATENCY)
    return PowerControlStatus(pcpus=latencies, clocks=len(ours) - latencies) if ours else None


def _batch(result: TickResult) -> BatchStatus | None:
    batch, floor = result.batch, result.snapshot.host.law.batch_floor
    if batch.measured_share is None:
        return None
    share = min(batch.measured_share, 1.0)
    return BatchStatus(cpu_share=share, floor=floor, window_s=batch.measured_s, raised=batch.raised)


def _batch_vms(result: TickResult) -> list[BatchVm]:
    """How batch VMs fare: those with a job first, then the slowest."""

    def order(vm: BatchVm) -> tuple[bool, bool, float, str]:
        return vm.state is None, not vm.too_slow, -(vm.slowdown or 0.0), vm.vm

    return sorted(result.batch_vms, key=order)[:MOST_BATCH_VMS]


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
    resources = result.kept_resources if result.new_resources else None
    watts = None if result.power is None else round(result.power.watts, 2)
    return TickRecord(result.at_s, host.policy, host.mode, round(result.busy or 0.0, 5), tuple(vms), resources, watts)
