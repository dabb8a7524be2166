"""Admission: may a VM come to a host, and what becomes of everybody's response times there?"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any

from sqlalchemy.orm import Session
from werkzeug.exceptions import ServiceUnavailable

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.host_routes import refuse_unknown_policy
from manager.api.queries import NamePath
from manager.api.schemas.admission_shapes import (
    AdmissionFactors,
    AdmissionIn,
    AdmissionOut,
    AdmissionTable,
    AdmissionVm,
)
from manager.api.table_verdicts import JudgedLoad, PresentLoad, judged_loads, opinion_of, present_loads
from manager.api.vm_demand import pcpus_of, wanted_pcpus
from manager.api.what_if_routes import TWIN_EFFORT, recorded
from manager.control.admission_opinions import Opinion, combined
from manager.control.consolidation import Consolidation, consolidation, overfull
from manager.errors import InvalidRequest, NotFound, TwinRefused
from manager.model.registration import VmClass
from manager.model.verdict import FitVerdict
from manager.protocol.report import VmStatus
from manager.replay.recording import Recording
from manager.sim.parallel import one_by_one
from manager.sim.twin import Twin, calibrate
from manager.sim.twin_admission import Admission, NewVm, may_come, models_of
from manager.sim.twin_report import admission_json
from manager.store.applications import applications_of
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import get
from manager.store.vm_lists import get_vm

MAX_ADMISSION_S = 30.0
"""Longest time that a simulation may have taken when another of its runs begins: nobody looks at a page meanwhile."""
_RETRY_AFTER_S = 5


@dataclass(frozen=True, slots=True)
class Newcomer:
    """The VM that may come, as far as it is known.

    ``demand_pcpus`` None: all its vCPUs, or what the requests of those that it is ``like`` take. ``max_batch_loss``:
    the part of their CPU time that batch VMs may lose; None: any.
    """

    name: str | None
    vm_class: VmClass
    vcpus: int
    demand_pcpus: float | None
    like: str
    rate_rps: float | None
    max_batch_loss: float | None = None

    @property
    def wants_pcpus(self) -> float | None:
        """CPU seconds a second; None: only a simulation knows."""
        if self.demand_pcpus is None and not self.like:
            return self.vcpus
        return self.demand_pcpus


def admission_api(context: ManagerContext) -> RouteGroup:
    """The route of admission."""
    api = RouteGroup("admission", "May a VM come?")
    busy = threading.Lock()

    @api.at("POST /hosts/<name>/admission", VIEWER)
    def admit(path: NamePath, body: AdmissionIn) -> AdmissionOut:
        """Say whether a VM may come to a host, and what becomes of all SLAs there. Nothing is changed.

        Response times are predicted by the host's twin where its history suffices. One request at a time.
        """
        if not busy.acquire(blocking=False):
            raise ServiceUnavailable("another admission is being computed: try again", retry_after=_RETRY_AFTER_S)
        try:
            with context.database.reading() as session:
                host = get(session, HostRow, path.name)
                policy = body.policy or host.policy
                refuse_unknown_policy(policy, context.policies)
                newcomer = _newcomer(session, path.name, body)
                recording, missing = _history(session, context, path.name, body.minutes)
                loads = present_loads(session, context, host) if newcomer.vm_class is VmClass.BATCH else ()
            return _Judged(path.name, policy, newcomer, recording, missing, loads).answer(
                body.max_batch_loss is not None
            )
        finally:
            busy.release()

    return api


def _newcomer(session: Session, host: str, body: AdmissionIn) -> Newcomer:
    """What was asked about. Raises InvalidRequest where that is not enough, or the VM is there already."""
    known = _known(session, host, body) if body.vm is not None else {}
    vm_class, vcpus = body.vm_class or known.get("class"), body.vcpus or known.get("vcpus")
    if vm_class is None:
        raise InvalidRequest("class", "is required without `vm`; allowed: critical, batch")
    if vcpus is None:
        unseen = f"no agent has seen VM {body.vm} run" if body.vm else "there is no `vm` to take them from"
        raise InvalidRequest("vcpus", f"is required, 1 to 256: {unseen}")
    critical = vm_class is VmClass.CRITICAL
    if body.like is not None and not critical:
        raise InvalidRequest("like", f'"{body.like}" is refused for a batch VM, which serves no requests')
    if body.like is not None and body.demand_pcpus is not None:
        raise InvalidRequest("demand_pcpus", f"{body.demand_pcpus:g} is refused with `like`; use rate_rps")
    like = body.like or ("" if not critical or body.demand_pcpus is not None else known.get("like", ""))
    if body.rate_rps is not None and not like:
        raise InvalidRequest("rate_rps", f"{body.rate_rps:g} is refused without `like`")
    if body.max_batch_loss is not None and critical:
        refused = f"{body.max_batch_loss:g} is refused for a critical VM: it is about more batch load"
        raise InvalidRequest("max_batch_loss", refused)
    demand = body.demand_pcpus or known.get("demand")
    if body.demand_pcpus is not None and body.demand_pcpus > vcpus:
        raise InvalidRequest("demand_pcpus", f"{body.demand_pcpus:g} is refused; use at most its vCPUs, {vcpus}")
    loss = body.max_batch_loss or known.get("loss")
    return Newcomer(body.vm, vm_class, vcpus, None if demand is None else min(demand, vcpus), like, body.rate_rps, loss)


def _known(session: Session, host: str, body: AdmissionIn) -> dict[str, Any]:
    """What is known of a registered VM. Raises InvalidRequest for one that is unknown, or runs there."""
    try:
        vm = get_vm(session, body.vm or "")
    except NotFound as error:
        raise InvalidRequest("vm", str(error)) from error
    known: dict[str, Any] = {"class": vm["vm_class"]}
    if vm["job"] is not None and vm["job"].max_slowdown is not None:
        known["loss"] = 1 - 1 / vm["job"].max_slowdown
    if vm["application"] is not None:
        row = get(session, ApplicationRow, vm["application"])
        application = applications_of(session, [row])[row.name]
        tier = next(each.name for each in application.tiers if vm["name"] in each.vms)
        known["like"] = f"{application.name}/{tier}"
    if vm["status"] is None:
        return known
    if vm["status_host"] == host:
        raise InvalidRequest("vm", f'"{vm["name"]}" is refused: it runs on {host} already')
    status = VmStatus.model_validate_json(vm["status"])
    known["vcpus"] = status.vcpus or None
    known["demand"] = max(wanted_pcpus(status, vm["batch"], pcpus_of(get(session, HostRow, vm["status_host"]))), 0.01)
    return known


def _history(
    session: Session, context: ManagerContext, host: str, minutes: float
) -> tuple[Recording | None, tuple[str, ...]]:
    """What was recorded of a host, or what is missing."""
    try:
        return recorded(session, context, host, timedelta(minutes=minutes)), ()
    except NotFound as error:
        return None, (str(error),)


@dataclass(frozen=True, slots=True)
class _Judged:
    """A question with all that is known."""

    host: str
    policy: str
    newcomer: Newcomer
    recording: Recording | None
    missing: tuple[str, ...]
    loads: tuple[PresentLoad, ...]

    def answer(self, loss_matters: bool = False) -> AdmissionOut:
        """By arithmetic, and by the twin and interference tables where there are any.

        ``loss_matters``: where it is not known what batch VMs would lose, the verdict is unsure.
        """
        missing = list(self.missing)
        found: dict[str, Any] = {"applications": [], "refused": [], "seeds": 0}
        verdict, reasons, gets_pcpus, like = FitVerdict.UNSURE, list[str](), None, self.newcomer.like
        before = self._before()
        if self.recording is not None:
            try:
                twin, admission, like = self._simulated(self.recording, missing)
                found = admission_json(admission, twin)
                verdict, reasons, gets_pcpus = admission.verdict, list(admission.reasons), admission.gets_pcpus
            except TwinRefused as error:
                missing.append(str(error))
        if self.newcomer.like and not like and verdict is FitVerdict.YES:
            verdict, reasons = FitVerdict.UNSURE, []
        wants_pcpus = found["vm"]["wants_pcpus"] if "vm" in found else self.newcomer.wants_pcpus
        after = None
        if before is not None and wants_pcpus is not None:
            after = before.with_vm(self.newcomer.vm_class is VmClass.CRITICAL, wants_pcpus)
        judged = self._by_tables(after)
        simulated = Opinion("the twin", verdict, tuple(reasons)) if gets_pcpus is not None else None
        opinion = _opinion(simulated, judged)
        if opinion is not None:
            verdict, reasons = opinion.verdict, list(opinion.reasons)
        unknown = [each.loss.reason for each in judged if each.loss is not None and each.loss.verdict is None]
        missing += [f"what batch VMs lose: {reason}" for reason in unknown]
        if loss_matters and unknown and verdict is FitVerdict.YES:
            verdict, reasons = FitVerdict.UNSURE, []
        if after is not None and (full := overfull(after)) and verdict is not FitVerdict.NO:
            verdict, reasons = FitVerdict.NO, [full]
        if verdict is FitVerdict.UNSURE:
            reasons += [f"not known: {text}" for text in missing]
        return AdmissionOut(
            host=self.host,
            vm=AdmissionVm.model_validate(
                {
                    "vm": self.newcomer.name,
                    "class": self.newcomer.vm_class,
                    "vcpus": self.newcomer.vcpus,
                    "like": like or None,
                    "wants_pcpus": None if wants_pcpus is None else round(wants_pcpus, 3),
                    "gets_pcpus": None if gets_pcpus is None else round(gets_pcpus, 3),
                }
            ),
            policy=self.policy,
            verdict=verdict,
            reasons=reasons,
            simulated=gets_pcpus is not None,
            seeds=found["seeds"],
            consolidation=_factors(before, after) if before is not None else None,
            applications=found["applications"],
            refused=found["refused"],
            tables=list(map(_table_out, judged)),
            missing=missing,
        )

    def _by_tables(self, after: Consolidation | None) -> tuple[JudgedLoad, ...]:
        """What tables say of each application there; nothing where it is not known what batch VMs will want."""
        if after is None:
            return ()
        return judged_loads(self.loads, after.batch_pcpus, after.pcpus, self.newcomer.max_batch_loss)

    def _before(self) -> Consolidation | None:
        if self.recording is None or not self.recording.capabilities.online_cpus:
            return None
        vcpus = {vm.vm: vm.vcpus for vm in self.recording.vms}
        critical = frozenset(vm.name for vm in self.recording.assignment.vms if vm.vm_class is VmClass.CRITICAL)
        return consolidation(self.recording.ticks, vcpus, critical, len(self.recording.capabilities.online_cpus))

    def _simulated(self, recording: Recording, missing: list[str]) -> tuple[Twin, Admission, str]:
        """The twin, its answer, and after whom the VM serves. Raises TwinRefused. Takes some seconds."""
        until_s = monotonic() + MAX_ADMISSION_S

        def in_time() -> None:
            if monotonic() > until_s:
                raise TwinRefused(
                    f"it takes longer than {MAX_ADMISSION_S:g} s: use `equipoise record` and `equipoise sim fits`"
                )

        twin = calibrate(recording, TWIN_EFFORT, one_by_one, in_time)
        new, like = self.newcomer, self.newcomer.like
        if like and like not in models_of(twin):
            missing.append(f"response times of the VM itself: {self.host} has no predicted application or tier {like}")
            like = ""
        demand = None if like else new.demand_pcpus
        vm = NewVm(new.vm_class, new.vcpus, demand, like, new.rate_rps if like else None)
        return twin, may_come(twin, vm, self.policy, one_by_one, in_time), like


def _factors(before: Consolidation, after: Consolidation | None) -> AdmissionFactors:
    return AdmissionFactors(
        pcpus=before.pcpus,
        critical_without=round(before.critical, 3),
        critical_with=None if after is None else round(after.critical, 3),
        total_without=round(before.total, 3),
        total_with=None if after is None else round(after.total, 3),
    )


def _opinion(twin: Opinion | None, judged: Sequence[JudgedLoad]) -> Opinion | None:
    """The more careful of what the twin and the tables say; None: they say nothing.

    Without the twin tables that speak for the VM count only where they do for all applications there.
    """
    tables = opinion_of(judged)
    if twin is None or tables is None:
        partly = (
            tables is not None and tables.verdict is FitVerdict.YES and any(each.verdict is None for each in judged)
        )
        return twin if partly else twin or tables
    return combined(twin, tables)


def _table_out(judged: JudgedLoad) -> AdmissionTable:
    present, row = judged.present, (judged.loss or judged.sla).row
    return AdmissionTable(
        application=present.application,
        host_type=present.host_type,
        batch=judged.batch,
        max_loss=row.max_loss if judged.loss is not None and row is not None else None,
        rate_rps=present.rate_rps,
        load_rps=row.load_rps if row is not None else None,
        violated_rps=row.violated_rps if row is not None else None,
        verdict=judged.verdict,
        reason=judged.reason,
    )
