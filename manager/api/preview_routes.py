"""Previews of a change of mode or policy, from what the manager knows. Nothing is changed.

For ``released`` and ``observe`` they are exact: settings return to their originals. For ``enforce`` they are what the
agent decides without writing it, in mode ``observe``; or else an estimate from the last minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum

from pydantic import Field
from sqlalchemy.orm import Session

from manager.api.assignments import Assignments
from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.host_routes import refuse_unknown_policy
from manager.api.queries import HostPreviewQuery, ModePreviewQuery, NamePath
from manager.api.what_if_routes import recorded
from manager.control.resolve import effective_mode
from manager.errors import NotFound
from manager.model.fields import Name, Schema, Text, as_text
from manager.model.knob_spec import Family
from manager.model.knobs import Knob, of_family
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Assignment, CacheControl, HostSpec, Mode
from manager.model.rules import IrqSteering
from manager.model.warp import Mechanism
from manager.protocol.report import CacheGroup, KnobChange, TickStatus, VmStatus
from manager.replay.policy_replay import LOOK_BACK_S, replay
from manager.store.applications import applications_of
from manager.store.hosts import statuses_on
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import get
from manager.store.vm_lists import get_vm

_CACHE_KNOBS = of_family(Family.CACHE)


class PreviewKind(StrEnum):
    """How certain a preview is: as its least certain change.

    ``exact``: settings return to their originals, or stay. ``observed``: the agent decides it and does not write it.
    ``estimated``: from the last minutes, which do not react to other settings.
    """

    EXACT = "exact"
    OBSERVED = "observed"
    ESTIMATED = "estimated"


_CERTAINTY = tuple(PreviewKind)


class PreviewChange(KnobChange):
    """One setting of a VM, or of the host itself."""

    vm: Name | None = Field(default=None, description="null: a setting of the host itself")


class PreviewOut(Schema):
    """What would change."""

    host: Name | None = Field(description="null: no agent reports the VM, or the preview is for several hosts")
    mode: Mode
    policy: Name | None = Field(description="null as `host`")
    kind: PreviewKind
    changes: list[PreviewChange]
    notes: list[Text] = Field(description="limits of this preview")


def preview_api(context: ManagerContext) -> RouteGroup:
    """The routes of previews."""
    api = RouteGroup("previews", "What a change would do, before it is made.")

    @api.at("GET /hosts/<name>/preview", VIEWER)
    def preview_host(path: NamePath, query: HostPreviewQuery) -> PreviewOut:
        """What another mode or policy of a host would change."""
        if query.policy is not None:
            refuse_unknown_policy(query.policy, context.policies)
        with context.database.reading() as session:
            seen = _look(session, path.name, context)
            host = seen.assignment.host
            host = replace(host, mode=query.mode or host.mode, policy=query.policy or host.policy)
            preview = _Preview(context, seen, replace(seen.assignment, host=host))
            preview.of_host_itself()
            return preview.of_vms(session, {status.vm for status in seen.statuses}, host.mode)

    @api.at("GET /vms/<name>/preview", VIEWER)
    def preview_vm(path: NamePath, query: ModePreviewQuery) -> PreviewOut:
        """What another mode of a VM would change."""
        with context.database.reading() as session:
            host = get_vm(session, path.name)["status_host"]
            if host is None:
                return _together([], query.mode, f"no agent sees {path.name} run: there is nothing to change")
            seen = _look(session, host, context)
            vms = tuple(replace(vm, mode=query.mode) if vm.name == path.name else vm for vm in seen.assignment.vms)
            preview = _Preview(context, seen, replace(seen.assignment, vms=vms))
            mode = preview.mode_of(path.name)
            out = preview.of_vms(session, {path.name}, mode)
        if query.mode is not None and mode is not query.mode:
            out.notes.append(f"{mode} holds, of its host or application: the most cautious mode does")
        return out

    @api.at("GET /applications/<name>/preview", VIEWER)
    def preview_application(path: NamePath, query: ModePreviewQuery) -> PreviewOut:
        """What another mode of an application would change on its VMs, on all hosts where they run."""
        with context.database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            names = applications_of(session, [row])[path.name].vms
            hosts = {get_vm(session, name)["status_host"] for name in names} - {None}
            plans = [_of_application(session, context, host, path.name, query.mode) for host in sorted(hosts)]
        return _together(plans, query.mode, "no agent sees any of its VMs run: there is nothing to change")

    return api


def _of_application(session: Session, context: ManagerContext, host: str, name: str, mode: Mode | None) -> PreviewOut:
    """What another mode of an application would change on one host."""
    seen = _look(session, host, context)
    applications = tuple(
        replace(application, mode=mode) if application.name == name else application
        for application in seen.assignment.applications
    )
    vms = {vm for application in applications if application.name == name for vm in application.vms}
    holds = effective_mode(seen.assignment.host.mode, mode)
    out = _Preview(context, seen, replace(seen.assignment, applications=applications)).of_vms(session, vms, holds)
    if mode is not None and holds is not mode:
        out.notes.append(f"{holds} holds, of host {host}: the most cautious mode does")
    return out


def _together(plans: Sequence[PreviewOut], mode: Mode | None, nowhere: str) -> PreviewOut:
    """The previews of several hosts as one; ``nowhere``: the note if there is none."""
    if len(plans) == 1:
        return plans[0]
    return PreviewOut(
        host=None,
        mode=mode or Mode.ENFORCE,
        policy=None,
        kind=max((plan.kind for plan in plans), key=_CERTAINTY.index, default=PreviewKind.EXACT),
        changes=[change for plan in plans for change in plan.changes],
        notes=[as_text(f"{plan.host}: {note}") for plan in plans for note in plan.notes] if plans else [nowhere],
    )


@dataclass(frozen=True, slots=True)
class _Reported:
    """A host as its agent last reported it, and its current registration."""

    row: HostRow
    assignment: Assignment
    tick: TickStatus | None
    statuses: Sequence[VmStatus]


def _look(session: Session, host: str, context: ManagerContext) -> _Reported:
    row = get(session, HostRow, host)
    registered = Assignments(context).whole(session, row.name)[0].assignment
    tick = None if row.tick is None else TickStatus.model_validate(row.tick)
    return _Reported(row, registered, tick, [VmStatus.model_validate_json(body) for body in statuses_on(session, row)])


class _Preview:
    """Collects the changes if ``wanted`` were registered."""

    def __init__(self, context: ManagerContext, seen: _Reported, wanted: Assignment) -> None:
        self._context = context
        self._seen = seen
        self._wanted = wanted
        self._modes = _modes(wanted)
        self._kind = PreviewKind.EXACT
        self._changes: list[PreviewChange] = []
        self._to_estimate: dict[str, VmStatus] = {}
        self._notes: list[str] = []
        now_s, last = context.clock(), seen.row.last_seen_at
        if last is None:
            self._notes.append(f"the agent of {seen.row.name} never reported")
        elif seen.row.silent:
            self._notes.append(f"the agent of {seen.row.name} last reported {now_s - last.timestamp():.0f} s ago")

    def mode_of(self, vm: str) -> Mode:
        """The mode that would be in force for a VM; an unregistered VM is released."""
        return self._modes.get(vm, Mode.RELEASED)

    @property
    def _same_policy(self) -> bool:
        """Whether the agent's last tick used the wanted policy."""
        return self._seen.tick is not None and self._seen.tick.policy == self._wanted.host.policy

    def of_vms(self, session: Session, vms: Collection[str], mode: Mode) -> PreviewOut:
        """The preview for these VMs, with the changes collected before; ``mode`` would be in force."""
        for status in self._seen.statuses:
            if status.vm in vms:
                self._of_vm(status)
        self._estimate(session)
        return PreviewOut(
            host=self._seen.row.name,
            mode=mode,
            policy=self._wanted.host.policy,
            kind=self._kind,
            changes=self._changes,
            notes=[as_text(note) for note in self._notes],
        )

    def _of_vm(self, status: VmStatus) -> None:
        mode = self.mode_of(status.vm)
        if mode is not Mode.ENFORCE:
            for knob in status.knobs:
                if knob.owned and knob.original is not None and knob.original != knob.value:
                    self._add(status.vm, knob.knob, knob.value, knob.original, f"mode {mode}", knob.index)
            for group in self._own_groups:
                if status.vm in group.vms:
                    self._add(status.vm, Knob.CACHE_GROUP, group.name, "", f"mode {mode}")
        elif self._same_policy and status.mode is Mode.OBSERVE:
            cache = self._wanted.host.cache is CacheControl.ON
            self._add_observed(
                status.vm, [change for change in status.observed if cache or change.knob not in _CACHE_KNOBS]
            )
        elif not self._same_policy or status.mode is not Mode.ENFORCE:
            self._to_estimate[status.vm] = status

    def of_host_itself(self) -> None:
        """Add changes of the host itself: cache groups, and interrupts of network interfaces."""
        tick, host = self._seen.tick, self._wanted.host
        self._of_cache(tick, host)
        if tick and tick.warp and tick.warp.mechanism is Mechanism.SCHED_EXT and host.mode is not Mode.ENFORCE:
            self._notes.append("our sched_ext scheduler is removed if it was loaded for this host; this is not listed")
        if tick is None or host.placement.irqs is IrqSteering.OFF:
            return
        steered = [change for change in tick.observed if change.knob not in _CACHE_KNOBS]
        if host.mode is Mode.ENFORCE and tick.mode is Mode.OBSERVE and steered:
            self._add_observed(None, steered)
        elif host.mode is not tick.mode:
            back = "" if host.mode is Mode.ENFORCE else " back"
            self._notes.append(f"interrupts of network interfaces are steered{back}, too; this is not listed")

    @property
    def _own_groups(self) -> list[CacheGroup]:
        cache = self._seen.tick.cache if self._seen.tick else None
        return [group for group in cache.groups if group.name and not group.external] if cache else []

    def _of_cache(self, tick: TickStatus | None, host: HostSpec) -> None:
        if host.mode is not Mode.ENFORCE:
            for group in self._own_groups:
                parts = ";".join(f"{part.domain}={part.mask}" for part in group.parts)
                ways = f"{group.name} {tick.cache.resource}:{parts}" if tick and tick.cache else group.name
                self._add(None, Knob.CACHE_WAYS, ways, "", f"mode {host.mode}")
            if self._own_groups:
                self._notes.append("what the default group of the cache had before is restored, too")
        elif tick is not None and tick.mode is not Mode.ENFORCE and host.cache is CacheControl.ON:
            observed = [change for change in tick.observed if change.knob in _CACHE_KNOBS]
            if observed:
                self._add_observed(None, observed)
            elif tick.mode is Mode.RELEASED:
                self._notes.append("the cache is divided, too; mode observe shows how, and so does `equipoise plan`")

    def _estimate(self, session: Session) -> None:
        """Add estimated weights of the other VMs, as decided on the last minutes."""
        if not self._to_estimate:
            return
        self._lower(PreviewKind.ESTIMATED)
        try:
            recording = recorded(session, self._context, self._seen.row.name, timedelta(seconds=LOOK_BACK_S))
        except NotFound as error:
            self._notes.append(f"weights cannot be estimated: {error}")
            return
        ticks = tuple(map(self._wanted_tick, recording.ticks))
        recording = replace(recording, assignment=self._wanted, ticks=ticks)
        policy = self._context.policies.get(self._wanted.host.policy)
        if policy is None:
            self._notes.append(f"policy {self._wanted.host.policy} is not installed at the manager")
            return
        replayed = replay(
            recording, policy.policy, self._wanted.host.law, self._context.stale_s, self._context.min_samples
        )
        last = replayed.steps[-1]
        for vm in last.vms:
            knobs = self._to_estimate[vm.vm].knobs if vm.vm in self._to_estimate else []
            weight = next((knob.value for knob in knobs if knob.knob == Knob.WEIGHT), None)
            if weight is not None and vm.decided and vm.replayed is not None and str(vm.replayed) != weight:
                self._add(vm.vm, Knob.WEIGHT, weight, str(vm.replayed), as_text(vm.reason))
        self._notes.append(
            f"estimated from {len(recording.ticks)} ticks of the last {recording.to_s - recording.from_s:.0f} s:"
            " weights alone, without pins, idle class, limits, memory, disks, uplinks, interrupts and the cache; what"
            " was recorded does not react to other weights"
        )
        self._notes += [last.problem] if last.problem else []
        self._notes += replayed.notes
        unseen = sorted(self._to_estimate.keys() - {vm.vm for vm in last.vms})
        if unseen:
            self._notes.append(f"not estimated, because no tick holds them: {', '.join(unseen)}")

    def _add(self, vm: str | None, knob: Knob, current: str, planned: str, reason: str, index: int = 0) -> None:
        change = PreviewChange(vm=vm, knob=knob, index=index, current=current, planned=planned, reason=reason)
        self._changes.append(change)

    def _add_observed(self, vm: str | None, changes: Iterable[KnobChange]) -> None:
        """Add changes that the agent decides without writing them."""
        self._lower(PreviewKind.OBSERVED)
        self._changes += [PreviewChange(vm=vm, **dict(change)) for change in changes]

    def _lower(self, kind: PreviewKind) -> None:
        self._kind = max(self._kind, kind, key=_CERTAINTY.index)

    def _wanted_tick(self, tick: TickRecord) -> TickRecord:
        vms: list[VmTick] = [replace(vm, mode=self.mode_of(vm.vm)) for vm in tick.vms]
        return replace(tick, mode=self._wanted.host.mode, vms=tuple(vms))


def _modes(wanted: Assignment) -> Mapping[str, Mode]:
    """The mode in force of each VM by name."""
    applications = {vm: application.mode for application in wanted.applications for vm in application.vms}
    return {vm.name: effective_mode(wanted.host.mode, applications.get(vm.name), vm.mode) for vm in wanted.vms}
