"""What the agent reports of a tick."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from manager.api.convert import timestamp
from manager.api.schemas import KnobStatus, TickStatus, VmStatus
from manager.loop.journal import Entry
from manager.loop.tick import TickResult
from manager.model.host import KnobKey, KnobValue, knob_text
from manager.model.records import Knob, TickRecord, VmTick


def vm_statuses(result: TickResult, journal: Mapping[KnobKey, Entry]) -> list[VmStatus]:
    """The managed VMs as read at the begin of the tick, with the values that the tick wrote.

    ``journal`` are the journalled knobs after the tick.
    """
    views = {view.name: view for view in result.snapshot.vms}
    statuses: list[VmStatus] = []
    for domain, spec in result.specs.items():
        state, view = result.reading.states[domain], views[spec.name]
        statuses.append(
            VmStatus(
                vm=spec.name,
                libvirt_name=state.instance.libvirt_name,
                libvirt_uuid=domain,
                pid=state.instance.pid,
                vcpus=len(state.vcpus),
                cpu_share=view.cpu_share,
                run_delay_share=view.run_delay_share,
                knobs=_knobs(result.knobs(domain), journal),
            )
        )
    return sorted(statuses, key=lambda status: status.vm)


def _knobs(values: Mapping[KnobKey, KnobValue], journal: Mapping[KnobKey, Entry]) -> list[KnobStatus]:
    statuses: list[KnobStatus] = []
    for key, value in values.items():
        entry = journal.get(key)
        owned = entry.owned if entry else None
        original, foreign = (owned.original, owned.foreign) if owned else (None, False)
        statuses.append(_knob(key.knob, key.index, value, original, foreign))
    return statuses


@lru_cache(maxsize=4096)
def _knob(knob: Knob, index: int, value: KnobValue, original: KnobValue | None, foreign: bool) -> KnobStatus:
    """One knob. Most VMs of a host hold the same few values, tick after tick."""
    return KnobStatus(
        knob=knob,
        index=index,
        value=knob_text(value),
        original=None if original is None else knob_text(original),
        owned=original is not None and not foreign,
        foreign=foreign,
    )


def tick_status(result: TickResult, overruns: int, owned_knobs: int, connected: bool) -> TickStatus:
    """The tick itself."""
    return TickStatus(
        number=result.number,
        at=timestamp(result.at_s),
        duration_ms=result.duration_s * 1000,
        overruns=overruns,
        errors=len(result.troubles),
        host_cpu_share=result.use.busy,
        vms_cpu_share=result.use.managed_vms,
        owned_knobs=owned_knobs,
        mode=result.snapshot.host.mode,
        policy=result.snapshot.host.policy,
        libvirt_connected=connected,
    )


def tick_record(result: TickResult) -> TickRecord:
    """What the tick saw, for the history; shares are rounded, because there will be many of these."""
    vms = (
        VmTick(view.name, round(view.cpu_share, 5), round(view.run_delay_share, 5), view.weight, view.mode)
        for view in result.snapshot.vms
    )
    host = result.snapshot.host
    return TickRecord(result.at_s, host.policy, host.mode, round(result.use.busy, 5), tuple(vms))
