"""Hosts at a glance: of each as little as tells its health, which the database takes out of its last tick."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Boolean, Double, Integer, Select, column, func, select, true
from sqlalchemy.orm import Session

from manager.model.host_health import GlancedHost, health_of
from manager.store.database import is_postgresql
from manager.store.models import HostRow

_REGISTERED = (HostRow.id, HostRow.name, HostRow.policy, HostRow.mode, HostRow.silent, HostRow.last_seen_at)


def read_glances(session: Session, interval_s: float) -> list[GlancedHost]:
    """All hosts, by name; ``interval_s`` is how long a tick may take."""
    query = _on_postgresql() if is_postgresql(session) else _on_sqlite()
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


def _on_postgresql() -> Select[*tuple[Any, ...]]:
    """``->>`` would parse the whole tick for each of its fields."""
    fields = (
        column("libvirt_connected", Boolean),
        column("errors", Integer),
        column("duration_ms", Double),
        column("host_cpu_share", Double),
    )
    tick = func.json_to_record(HostRow.tick).table_valued(*fields).render_derived(with_types=True).lateral()
    return select(*_REGISTERED, *tick.c).outerjoin(tick, true()).order_by(HostRow.name)


def _on_sqlite() -> Select[*tuple[Any, ...]]:
    tick = HostRow.tick
    fields = (
        tick["libvirt_connected"].as_boolean(),
        tick["errors"].as_integer(),
        tick["duration_ms"].as_float(),
        tick["host_cpu_share"].as_float(),
    )
    return select(*_REGISTERED, *fields).order_by(HostRow.name)
