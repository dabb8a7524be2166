"""What interference tables say of more batch load on a host: of each application there, at its present load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.api.interference_job import type_of
from manager.control.admission_opinions import Opinion, most_careful
from manager.control.interference_table import TableVerdict, batch_class, judged_by
from manager.model.interference import ANY_LOSS, BatchClass, LargestLoad
from manager.model.verdict import FitVerdict
from manager.model.window import merge
from manager.store.interference_tables import tables_of
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import find
from manager.store.vm_lists import VmFilter, list_vms
from manager.store.windows import list_windows

PRESENT = timedelta(minutes=5)
"""The present load of an application is that of so long."""
_LEAST_SLOTS = 3
"""And of so many slots at least: the newest is not over, and that before it may not be reported yet."""
_ALL = 2**31 - 1


@dataclass(frozen=True, slots=True)
class PresentLoad:
    """An application on a host: its load in req/s (None: not known), and the table for hosts of that type."""

    application: str
    host_type: str
    rate_rps: float | None
    loads: tuple[LargestLoad, ...]


@dataclass(frozen=True, slots=True)
class JudgedLoad:
    """What a table says: of the SLA, and of what batch VMs lose (None: nobody asked)."""

    present: PresentLoad
    batch: BatchClass
    sla: TableVerdict
    loss: TableVerdict | None

    @property
    def verdict(self) -> FitVerdict | None:
        """Of the SLA, and of the loss where that is known, whose rows are about both; None: the table does not say."""
        return self._said.verdict

    @property
    def reason(self) -> str:
        """The reason of the verdict."""
        return self._said.reason

    @property
    def _said(self) -> TableVerdict:
        return self.loss if self.loss is not None and self.loss.verdict is not None else self.sla


def present_loads(session: Session, context: ManagerContext, host: HostRow) -> tuple[PresentLoad, ...]:
    """The applications with an SLA that run on a host, by name; none where its agent never reported."""
    if host.capabilities is None:
        return ()
    kind = type_of(host)
    names = {
        vm["application"]
        for vm in list_vms(session, VmFilter(host=host.name), None, _ALL)
        if vm["application"] is not None and vm["status_host"] == host.name
    }
    rows = [row for name in sorted(names) if (row := find(session, ApplicationRow, name)) is not None and row.sla]
    return tuple(_present(session, context, row, kind) for row in rows)


def judged_loads(
    loads: Sequence[PresentLoad], batch_pcpus: float, pcpus: int, max_loss: float | None
) -> tuple[JudgedLoad, ...]:
    """What the tables say of batch VMs that want ``batch_pcpus`` of a host of ``pcpus``, and may lose ``max_loss``."""
    batch = batch_class(batch_pcpus / pcpus)
    return tuple(
        JudgedLoad(
            load, batch, _judged(load, batch, ANY_LOSS), None if max_loss is None else _judged(load, batch, max_loss)
        )
        for load in loads
    )


def opinion_of(judged: Sequence[JudgedLoad]) -> Opinion | None:
    """What the tables of all applications say together; None: nothing."""
    known = [
        (each.verdict, f"{each.present.application}: {each.reason}") for each in judged if each.verdict is not None
    ]
    if not known:
        return None
    verdict = most_careful(*(verdict for verdict, _ in known))
    reasons = tuple(f"interference table of {reason}" for found, reason in known if found is verdict)
    return Opinion("interference tables", verdict, reasons)


def _present(session: Session, context: ManagerContext, row: ApplicationRow, kind: str) -> PresentLoad:
    now = context.now()
    since = now - max(PRESENT, _LEAST_SLOTS * context.slot_length)
    windows = [window for _, window in list_windows(session, row, since, now, _ALL)]
    rate_rps = merge(windows).rate_rps if windows else None
    loads = next((table.loads for table in tables_of(session, row) if table.host_type == kind), ())
    return PresentLoad(row.name, kind, rate_rps, loads)


def _judged(load: PresentLoad, batch: BatchClass, max_loss: float) -> TableVerdict:
    if not load.loads:
        return TableVerdict(None, f"there is no interference table for hosts of its type, {load.host_type}")
    if load.rate_rps is None:
        return TableVerdict(None, "its present load is not known")
    return judged_by(load.loads, batch, max_loss, load.rate_rps)
