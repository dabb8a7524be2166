"""Live reports: what is so now on a host, in its row alone, until history brings it for good.

A live report of a host whose applications nobody else serves, measures or looks at is stored by one statement. Its
windows make no rows: they stay in the host's row until the next live report, and readers of the present look there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from functools import cache

from sqlalchemy import (
    JSON,
    Boolean,
    ColumnElement,
    String,
    Update,
    bindparam,
    cast,
    exists,
    func,
    or_,
    select,
    text,
    true,
    update,
)
from sqlalchemy.orm import Session

from manager.control.tenure_rules import Who
from manager.model.host_health import TickHealth
from manager.model.packed_live import pack_live, unpack_live
from manager.model.window import Window
from manager.store.access_models import TokenRow
from manager.store.database import Database
from manager.store.models import HostRow, TierRow, TierVmRow, UtcDateTime, VmRow, WindowRow
from manager.store.pack_models import WindowMinuteRow
from manager.store.revisions import revision_assigned
from manager.store.row_writes import among, is_one_of
from manager.store.watched_hosts import WATCHED_FOR
from manager.store.window_packs import YOUNG, StoredWindow, as_packed, unpacked


@dataclass(frozen=True, slots=True)
class LiveReport:
    """A live report of a host, by an agent (None: one without an id), as of a revision of its assignment.

    ``clock_ahead_s`` None: unknown; ``tick``: JSON; ``windows`` None: there are none; ``glances``: at these windows.
    ``measured`` and ``unmeasured`` are the row numbers of the applications of which it has windows, and of the others
    that the host serves.
    """

    host: str
    agent: Who | None
    agent_version: str
    clock_ahead_s: float | None
    tick: str
    health: TickHealth
    windows: bytes | None
    glances: bytes | None
    revision: int
    measured: Collection[int]
    unmeasured: Collection[int]


def store_live(
    database: Database, report: LiveReport, now: datetime, since: datetime, token: str | None = None
) -> bool:
    """Store a live report by one statement. False: nothing was stored, because there is more to do than that.

    ``token``: the hash of the secret it came with, where it is still to be shown that this is valid ``now``.

    So it is where the token is not, where the host is new, watched, served by another agent, or its clock is off; where
    anything was registered for it after the revision; and where others measured a ``measured`` application from
    ``since`` on, or another one at all. Times are in UTC. Raises DatabaseUnavailable; then nothing was stored.
    """
    who = report.agent
    given = {
        "host": report.host,
        "any_agent": who is None,
        "instance": who.instance if who else "",
        "boot": who.boot if who else "",
        "now": now,
        "reported_version": report.agent_version,
        "ahead": report.clock_ahead_s,
        "reported_tick": report.tick,
        **report.health._asdict(),
        "windows": report.windows,
        "glances": report.glances,
        "revision": report.revision,
        "measured": sorted(report.measured),
        "unmeasured": sorted(report.unmeasured),
        "since": since,
        "watched": now + WATCHED_FOR,
        "any_token": token is None,
        "token": token or "",
    }
    return bool(database.change(_statement(database.file is None), given))


@cache
def _statement(arrays: bool) -> Update:
    """The statement for a database with arrays, whose text is the same for any number of applications, or without."""
    hosts = HostRow.metadata.tables["hosts"]
    column, now = hosts.c, bindparam("now", type_=UtcDateTime())
    tenure = (column.agent_instance == bindparam("instance", type_=String())) & (
        column.agent_boot == bindparam("boot", type_=String())
    )
    watched = (column.watched_until > now) & (column.watched_until <= bindparam("watched", type_=UtcDateTime()))
    since = bindparam("since", type_=UtcDateTime())
    valid = (TokenRow.secret_hash == bindparam("token", type_=String())) & (
        TokenRow.expires_at.is_(None) | (TokenRow.expires_at > now)
    )
    tick = bindparam("reported_tick", type_=String())
    changed = {
        "last_seen_at": now,
        "agent_version": bindparam("reported_version", type_=String()),
        "clock_ahead_s": func.coalesce(bindparam("ahead", type_=column.clock_ahead_s.type), column.clock_ahead_s),
        "tick": cast(tick, JSON()) if arrays else tick,
        **{name: bindparam(name, type_=column[name].type) for name in TickHealth._fields},
        "live": func.coalesce(bindparam("windows", type_=column.live.type), column.live),
        "glances": func.coalesce(bindparam("glances", type_=column.glances.type), column.glances),
    }
    statement = (
        update(hosts)
        .values(changed)
        .where(
            column.name == bindparam("host", type_=String()),
            column.last_seen_at.is_not(None),
            ~column.clock_off,
            or_(bindparam("any_agent", type_=Boolean()) == true(), tenure),
            or_(column.watched_until.is_(None), ~watched),
            revision_assigned(hosts) == bindparam("revision", type_=column.assigned_revision.type),
            *(~exists().where(_by_others(kind, "measured", arrays), moment >= since) for kind, moment in YOUNG),
            *(~exists().where(_by_others(kind, "unmeasured", arrays)) for kind, _ in YOUNG),
            or_(bindparam("any_token", type_=Boolean()) == true(), exists().where(valid)),
        )
    )
    # Its transaction waits for no disk and no replica, which takes most of its time, and much of the server's CPU time:
    # what a crash may lose of the last moments comes again with the next report. For this transaction alone.
    return statement.where(text("set_config('synchronous_commit', 'off', true) = 'off'")) if arrays else statement


def _by_others(kind: type[WindowRow | WindowMinuteRow], numbers: str, arrays: bool) -> ColumnElement[bool]:
    """Whether another origin than the host measured one of the applications with these numbers."""
    host, of_these = bindparam("host", type_=String()), among(kind.application_id, numbers, arrays)
    return of_these & or_(kind.origin < host, kind.origin > host)


def packed_for_row(windows: Iterable[tuple[int, datetime, Window]]) -> bytes | None:
    """Windows with the row numbers of their applications and the starts of their slots, as a host's row keeps them."""
    packs = [(number, as_packed(slot, "", window)) for number, slot, window in windows]
    return pack_live(packs) if packs else None


def live_windows(session: Session, numbers: Collection[int]) -> list[StoredWindow]:
    """The windows of the last live reports of the hosts for which all VMs of these applications are registered."""
    if not numbers:
        return []
    serving = (
        select(VmRow.host)
        .join(TierVmRow, TierVmRow.vm_id == VmRow.id)
        .join(TierRow, TierRow.id == TierVmRow.tier_id)
        .where(is_one_of(session, TierRow.application_id, numbers))
    )
    query = select(HostRow.name, HostRow.live).where(HostRow.name.in_(serving), HostRow.live.is_not(None))
    wanted = frozenset(numbers)
    return [
        unpacked(number, window)._replace(origin=host)
        for host, body in session.execute(query)
        for number, window in unpack_live(body or b"")
        if number in wanted
    ]
