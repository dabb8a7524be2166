"""Hosts at a glance: of each as little as tells its health, which the database takes out of its last tick."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Double, column, func, select
from sqlalchemy.orm import Session

from manager.model.host_health import GlancedHost, health_of
from manager.store.last_ticks import with_tick
from manager.store.models import HostRow

_REGISTERED = (HostRow.id, HostRow.name, HostRow.policy, HostRow.mode, HostRow.silent, HostRow.last_seen_at)
_TICKED = (
    column("libvirt_connected", Boolean),
    column("errors", BigInteger),
    column("duration_ms", Double),
    column("host_cpu_share", Double),
)


def read_glances(session: Session, interval_s: float) -> list[GlancedHost]:
    """All hosts, by name; ``interval_s`` is how long a tick may take."""
    query = with_tick(session, select(*_REGISTERED).order_by(HostRow.name), *_TICKED)
    hosts = []
    for number, name, policy, mode, silent, last_seen_at, connected, errors, duration_ms, load in session.execute(
        query
    ):
        slow = duration_ms is not None and duration_ms > 1000 * interval_s
        reported = last_seen_at is not None and errors is not None
        health = health_of(reported=reported, silent=silent, connected=bool(connected), errors=errors or 0, slow=slow)
        hosts.append(GlancedHost(number, name, policy, mode, health, load))
    return hosts


def count_hosts(session: Session) -> int:
    """How many are registered."""
    return session.scalar(select(func.count()).select_from(HostRow)) or 0
