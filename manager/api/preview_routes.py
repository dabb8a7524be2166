"""What a change of mode or policy would come to, from what the manager knows. Nothing is changed or asked for.

On the way to ``released`` and ``observe`` that is exact: settings go back to their originals. On the way to ``enforce``
it is what the agent decides without writing it, in mode ``observe``; or else an estimate from the last minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.assignments import Assignments
from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.host_routes import refuse_unknown_policy
from manager.api.queries import HostPreviewQuery, ModePreviewQuery, NamePath
from manager.api.schemas.preview_shapes import PreviewChange, PreviewKind, PreviewOut
from manager.api.what_if_routes import recorded
from manager.control.resolve import effective_mode
from manager.errors import NotFound
from manager.model.fields import as_text
from manager.model.knobs import Family, Knob, of_family
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Assignment, CacheControl, Mode
from manager.model.rules import IrqSteering
from manager.model.warp import Mechanism
from manager.protocol.convert import assignment_of
from manager.protocol.report import CacheStatus, KnobChange, KnobStatus, TickStatus, VmStatus
from manager.replay.policy_replay import LOOK_BACK_S, replay
from manager.store.applications import applications_of
from manager.store.hosts import statuses_on
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import get
from manager.store.vms import get_vm

_CERTAINTY = tuple(PreviewKind)
_CACHE_KNOBS = of_family(Family.CACHE)


def preview_api(context: ManagerContext) -> APIBlueprint:
    """The routes of previews."""
    api = blueprint("previews", "What would be changed, before it is.")

    @api.get("/hosts/<name>/preview", responses=answers((200, PreviewOut)))
    @endpoint(VIEWER)
    def preview_host(path: NamePath, query: HostPreviewQuery) -> Response:
        """What another mode or policy of a host would change."""
        if query.policy is not None:
            refuse_unknown_policy(query.policy, context.policies)
        with context.database.reading() as session:
            seen = _look(session, get(session, HostRow, path.name), context)
            host = seen.assignment.host
            host = replace(host, mode=query.mode or host.mode, policy=query.policy or host.policy)
            found = _Preview(context, seen, replace(seen.assignment, host=host))
            found.of_host_itself()
            for status in seen.statuses:
                found.of_vm(status)
            found.estimate(session)
        return answer(found.out(host.mode))

    @api.get("/vms/<name>/preview", responses=answers((200, PreviewOut)))
    @endpoint(VIEWER)
    def preview_vm(path: NamePath, query: ModePreviewQuery) -> Response:
        """What another mode of a VM would change."""
        with context.database.reading() as session:
            vm = get_vm(session, path.name)
            if vm["status_host"] is None:
                note = f"no agent sees {path.name} run: there is nothing to change"
                mode = query.mode or Mode.ENFORCE
                kind = PreviewKind.EXACT
                return answer(PreviewOut(host=None, mode=mode, policy=None, kind=kind, changes=[], notes=[note]))
            seen = _look(session, get(session, HostRow, vm["status_host"]), context)
            vms = tuple(replace(one, mode=query.mode) if one.name == path.name else one for one in seen.assignment.vms)
            found = _Preview(context, seen, replace(seen.assignment, vms=vms))
            for status in seen.statuses:
                if status.vm == path.name:
                    found.of_vm(status)
            found.estimate(session)
        mode = found.mode_of(path.name)
        if query.mode is not None and mode is not query.mode:
            found.notes.append(f"{mode} holds, of its host or application: the most cautious mode does")
        return answer(found.out(mode))

    @api.get("/applications/<name>/preview", responses=answers((200, PreviewOut)))
    @endpoint(VIEWER)
    def preview_application(path: NamePath, query: ModePreviewQuery) -> Response:
        """What another mode of an application would change of its VMs, on all hosts where they run."""
        with context.database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            names = applications_of(session, [row])[path.name].vms
            hosts = {get_vm(session, name)["status_host"] for name in names} - {None}
            plans = [_of_application(session, context, host, path.name, query.mode) for host in sorted(hosts)]
        return answer(_together(plans, query.mode or Mode.ENFORCE))

    return api


def _of_application(
    session: Session, context: ManagerContext, host: str, application: str, mode: Mode | None
) -> PreviewOut:
    """What another mode of an application would change on one host."""
    seen = _look(session, get(session, HostRow, host), context)
    changed = [replace(one, mode=mode) if one.name == application else one for one in seen.assignment.applications]
    found = _Preview(context, seen, replace(seen.assignment, applications=tuple(changed)))
    vms = {vm for one in changed if one.name == application for vm in one.vms}
    for status in seen.statuses:
        if status.vm in vms:
            found.of_vm(status)
    found.estimate(session)
    holds = effective_mode(seen.assignment.host.mode, mode)
    if mode is not None and holds is not mode:
        found.notes.append(f"{holds} holds, of host {host}: the most cautious mode does")
    return found.out(holds)


def _together(plans: Sequence[PreviewOut], mode: Mode) -> PreviewOut:
    """What is planned on several hosts, as certain as the least certain of it."""
    if len(plans) == 1:
        return plans[0]
    notes = [f"{plan.host}: {note}" for plan in plans for note in plan.notes]
    return PreviewOut(
        host=None,
        mode=mode,
        policy=None,
        kind=max((plan.kind for plan in plans), key=_CERTAINTY.index, default=PreviewKind.EXACT),
        changes=[change for plan in plans for change in plan.changes],
        notes=notes if plans else ["no agent sees any of its VMs run: there is nothing to change"],
    )


@dataclass(frozen=True, slots=True)
class _Reported:
    """A host as its agent last reported it, and what is registered for it now."""

    row: HostRow
    assignment: Assignment
    tick: TickStatus | None
    statuses: Sequence[VmStatus]


def _look(session: Session, row: HostRow, context: ManagerContext) -> _Reported:
    registered, _ = assignment_of(Assignments(context).whole(session, row.name)[0])
    tick = None if row.tick is None else TickStatus.model_validate(row.tick)
    return _Reported(row, registered, tick, [VmStatus.model_validate_json(body) for body in statuses_on(session, row)])


class _Preview:
    """Collects what would be changed if ``wanted`` were registered."""

    def __init__(self, context: ManagerContext, seen: _Reported, wanted: Assignment) -> None:
        self._context = context
        self._seen = seen
        self._wanted = wanted
        self._modes = _modes(wanted)
        self._kind = PreviewKind.EXACT
        self._changes: list[PreviewChange] = []
        self._to_estimate: dict[str, VmStatus] = {}
        self.notes: list[str] = []
        now_s, last = context.clock(), seen.row.last_seen_at
        if last is None:
            self.notes.append(f"the agent of {seen.row.name} never reported")
        elif seen.row.silent:
            self.notes.append(f"the agent of {seen.row.name} last reported {now_s - last.timestamp():.0f} s ago")

    def mode_of(self, vm: str) -> Mode:
        """The mode that would hold for a VM; one that is not registered is let go."""
        return self._modes.get(vm, Mode.RELEASED)

    @property
    def _same_policy(self) -> bool:
        """Whether the agent's last tick decided as would be wanted."""
        return self._seen.tick is not None and self._seen.tick.policy == self._wanted.host.policy

    def of_vm(self, status: VmStatus) -> None:
        """Add what would be changed of a VM."""
        if self.mode_of(status.vm) is not Mode.ENFORCE:
            self._add(status.vm, _restored(status, f"mode {self.mode_of(status.vm)}"))
            self._add(status.vm, _leaving(self._cache, status.vm, f"mode {self.mode_of(status.vm)}"))
        elif self._same_policy and status.mode is Mode.OBSERVE:
            self._lower(PreviewKind.OBSERVED)
            cache = self._wanted.host.cache is CacheControl.ON
            self._add(status.vm, [one for one in status.observed if cache or one.knob not in _CACHE_KNOBS])
        elif not self._same_policy or status.mode is not Mode.ENFORCE:
            self._to_estimate[status.vm] = status

    def of_host_itself(self) -> None:
        """Add what would be changed of the host: the groups of its cache, the interrupts of its network interfaces."""
        tick, host = self._seen.tick, self._wanted.host
        self._of_cache()
        if tick and tick.warp and tick.warp.mechanism is Mechanism.SCHED_EXT and host.mode is not Mode.ENFORCE:
            self.notes.append("our sched_ext scheduler is removed if it was loaded for this host; this is not listed")
        if tick is None or host.placement.irqs is IrqSteering.OFF:
            return
        steered = [one for one in tick.observed if one.knob not in _CACHE_KNOBS]
        if host.mode is Mode.ENFORCE and tick.mode is Mode.OBSERVE and steered:
            self._lower(PreviewKind.OBSERVED)
            self._add(None, steered)
        elif host.mode is not tick.mode:
            back = "" if host.mode is Mode.ENFORCE else " back"
            self.notes.append(f"interrupts of network interfaces are steered{back}, too; this is not listed")

    @property
    def _cache(self) -> CacheStatus | None:
        return self._seen.tick.cache if self._seen.tick else None

    def _of_cache(self) -> None:
        tick, host = self._seen.tick, self._wanted.host
        if host.mode is not Mode.ENFORCE:
            gone = _removed(self._cache, f"mode {host.mode}")
            self._add(None, gone)
            self.notes += ["what the default group of the cache had before comes back, too"] if gone else []
        elif tick is not None and tick.mode is not Mode.ENFORCE and host.cache is CacheControl.ON:
            observed = [one for one in tick.observed if one.knob in _CACHE_KNOBS]
            if observed:
                self._lower(PreviewKind.OBSERVED)
                self._add(None, observed)
            elif tick.mode is Mode.RELEASED:
                self.notes.append("the cache is divided, too; mode observe shows how, and so does `equipoise plan`")

    def estimate(self, session: Session) -> None:
        """Add the weights of the VMs about which nothing is certain, as decided on the last minutes."""
        if not self._to_estimate:
            return
        self._lower(PreviewKind.ESTIMATED)
        try:
            recording = recorded(session, self._context, self._seen.row.name, timedelta(seconds=LOOK_BACK_S))
        except NotFound as error:
            self.notes.append(f"weights cannot be estimated: {error}")
            return
        ticks = tuple(map(self._wanted_tick, recording.ticks))
        recording = replace(recording, assignment=self._wanted, ticks=ticks)
        policy = self._context.policies.get(self._wanted.host.policy)
        if policy is None:
            self.notes.append(f"policy {self._wanted.host.policy} is not installed at the manager")
            return
        settings = self._context.stale_s, self._context.min_samples
        found = replay(recording, policy.policy, self._wanted.host.law, *settings)
        last = found.steps[-1]
        for vm in last.vms:
            status = self._to_estimate.get(vm.vm)
            weight = None if status is None else _weight(status)
            if weight is not None and vm.decided and vm.replayed is not None and str(vm.replayed) != weight.value:
                change = KnobChange(
                    knob=Knob.WEIGHT, index=0, current=weight.value, planned=str(vm.replayed), reason=as_text(vm.reason)
                )
                self._add(vm.vm, [change])
        self.notes.append(
            f"estimated from {len(recording.ticks)} ticks of the last {recording.to_s - recording.from_s:.0f} s:"
            " weights alone, without pins, idle class, limits, interrupts and the cache; what was recorded does not"
            " react to other weights"
        )
        self.notes += [last.problem] if last.problem else []
        self.notes += found.notes
        unseen = sorted(self._to_estimate.keys() - {vm.vm for vm in last.vms})
        if unseen:
            self.notes.append(f"not estimated, because no tick tells of them: {', '.join(unseen)}")

    def out(self, mode: Mode) -> PreviewOut:
        """All that was added."""
        return PreviewOut(
            host=self._seen.row.name,
            mode=mode,
            policy=self._wanted.host.policy,
            kind=self._kind,
            changes=self._changes,
            notes=[as_text(note) for note in self.notes],
        )

    def _add(self, vm: str | None, changes: Iterable[KnobChange]) -> None:
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


def _restored(status: VmStatus, reason: str) -> list[KnobChange]:
    """The settings that are ours and not as they were."""
    return [
        KnobChange(knob=knob.knob, index=knob.index, current=knob.value, planned=knob.original, reason=reason)
        for knob in status.knobs
        if knob.owned and knob.original is not None and knob.original != knob.value
    ]


def _removed(cache: CacheStatus | None, reason: str) -> list[KnobChange]:
    """The groups of the cache that are ours."""
    found = []
    for group in cache.groups if cache else ():
        if group.name and not group.external and cache:
            parts = ";".join(f"{part.domain}={part.mask}" for part in group.parts)
            now = f"{group.name} {cache.resource}:{parts}"
            found.append(KnobChange(knob=Knob.CACHE_WAYS, index=0, current=now, planned="", reason=reason))
    return found


def _leaving(cache: CacheStatus | None, vm: str, reason: str) -> list[KnobChange]:
    """The group of the cache that a VM is in."""
    names = [group.name for group in cache.groups if vm in group.vms and not group.external] if cache else []
    return [
        KnobChange(knob=Knob.CACHE_GROUP, index=0, current=name, planned="", reason=reason) for name in names if name
    ]


def _weight(status: VmStatus) -> KnobStatus | None:
    return next((knob for knob in status.knobs if knob.knob == Knob.WEIGHT), None)
