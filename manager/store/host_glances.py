"""Hosts at a glance: of each as little as tells its health."""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from manager.model.host_health import GlancedHost, TickHealth, health_of
from manager.store.models import HostRow

_REGISTERED = HostRow.id, HostRow.name, HostRow.policy, HostRow.mode, HostRow.silent, HostRow.last_seen_at
_HEALTH = tuple(getattr(HostRow, name) for name in TickHealth._fields)


def read_glances(session: Session, interval_s: float) -> list[GlancedHost]:
    """All hosts, by name; ``interval_s`` is how long a tick may take."""
    query = select(*_REGISTERED, *_HEALTH).order_by(HostRow.name)
    hosts = []
    for number, name, policy, mode, silent, last_seen_at, *ticked in session.execute(query):
        tick = TickHealth(*ticked)
        slow = tick.tick_ms is not None and tick.tick_ms > 1000 * interval_s
        reported = last_seen_at is not None and tick.tick_errors is not None
        connected, errors = bool(tick.libvirt_connected), tick.tick_errors or 0
        health = health_of(reported=reported, silent=silent, connected=connected, errors=errors, slow=slow)
        hosts.append(GlancedHost(number, name, policy, mode, health, tick.busy_share))
    return hosts


def count_hosts(session: Session) -> int:
    """How many are registered."""
    return session.scalar(select(func.count()).select_from(HostRow)) or 0
