"""Items of reports that were left out: told of where an agent does not do so itself."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.model.records import Severity
from manager.store.decision_records import store_new
from manager.store.models import EventRow
from manager.store.silence import host_event

ITEMS_REFUSED = "items-refused"
_AGAIN = timedelta(minutes=10)


def tell_refused(session: Session, host: str, message: str, now: datetime) -> None:
    """Store an event about items that were left out, unless a recent one tells of such."""
    alike = select(EventRow.id).where(EventRow.host == host, EventRow.kind == ITEMS_REFUSED)
    if session.scalars(alike.where(EventRow.at > now - _AGAIN, EventRow.at <= now).limit(1)).first() is None:
        store_new(session, EventRow, [host_event(host, now, Severity.WARNING, ITEMS_REFUSED, message)])
