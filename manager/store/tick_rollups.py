"""Ticks rolled up: their mean over each finished minute and hour of a host, for charts of long ranges.

What is to be rolled up is noted with the ticks, see ``manager.store.rollup_queue``. A host's ticks arrive in order,
however late: its agent sends the oldest first. So a minute is finished once a tick of another minute arrived, later or,
after the clock was set, earlier; what still arrives of it is noted and rolled up again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, delete, exists, func, select
from sqlalchemy.orm import Session, aliased

from manager.control.tick_means import VmSums, VmValues, mean_of, summed, summed_alike
from manager.model.fields import json_fields, timestamp
from manager.model.packed_records import TickColumns
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.model.registration import Mode
from manager.model.resource_use import resources_of
from manager.store.database import Database
from manager.store.day_partitions import TICK_MINUTES, TICKS
from manager.store.host_models import TickRollupRow
from manager.store.models import HostRow
from manager.store.pack_models import TickPackRow
from manager.store.progress_models import UnrolledTicksRow
from manager.store.retention import Cleanup, Keep
from manager.store.rollup_queue import HOUR, MINUTE, floor, is_noted, note_ticks, seconds
from manager.store.row_writes import upsert
from manager.store.tick_packs import oldest_tick_at, ticks_between, ticks_by_host

_LENGTHS = MINUTE, HOUR
_AT_ONCE = {MINUTE: 60, HOUR: 24}  # rows of each length that are made by one transaction
_TOGETHER = 50  # hosts whose rows are made together
_BATCH = 500
_MODES = {mode.value: mode for mode in Mode}  # quicker than to call Mode

Place = tuple[str, datetime]
"""A host, and the start of a minute or hour."""


class TickRollUps:
    """Rolls up the ticks of a database, and removes what is too old."""

    def __init__(self, database: Database, keep: Keep) -> None:
        self._database = database
        self._keep = keep

    def roll_up(self, stopped: Callable[[], bool] = lambda: False) -> int:
        """Roll up all that is finished; returns how many rows that made. Raises DatabaseUnavailable.

        ``stopped`` is asked before each transaction.
        """
        # Hours are made of minutes, so these come first, of all hosts.
        return sum(self._of(length, some, stopped) for length in _LENGTHS for some in self._groups(length))

    def _groups(self, length: timedelta) -> Iterator[Sequence[str]]:
        """Hosts of which a ``length`` may be finished, some at a time."""
        note = UnrolledTicksRow
        noted = select(note.host).where(note.host.in_(select(HostRow.name)), note.length_s == seconds(length))
        if length == MINUTE:  # most hosts have but the one that is not over
            due = noted.group_by(note.host).having(func.count() > 1)
        else:
            due = noted.where(_is_finished(length)).distinct()
        with self._database.reading() as session:
            hosts = session.scalars(due.order_by(note.host)).all()
        return (hosts[first : first + _TOGETHER] for first in range(0, len(hosts), _TOGETHER))

    def forget(self, cleanup: Cleanup) -> int:
        """Remove ticks and means that were kept for their time and are rolled up, or whose host is gone: how many."""
        keep, notes = self._keep, UnrolledTicksRow
        with self._database.writing() as session:
            session.execute(delete(notes).where(notes.host.not_in(select(HostRow.name))))
        minutes, hours = (TickRollupRow.length_s == seconds(length) for length in (MINUTE, HOUR))
        pack = TickPackRow
        # Of all ticks in it: as long as one of them, or an older one, is to be rolled up, it stays.
        minute = notes.length_s == seconds(MINUTE)
        waiting = exists().where(notes.host == pack.host, minute, notes.start <= pack.last_at)
        gone = cleanup.remove_old("ticks", pack.id, pack.last_at, keep.raw, ~waiting, TICKS)
        row = TickRollupRow
        noted = is_noted(notes, notes.host == row.host, HOUR, row.start)
        gone += cleanup.remove_old("tick-minutes", row.id, row.start, keep.minutes, minutes & ~noted, TICK_MINUTES)
        return gone + cleanup.remove_old("tick-hours", row.id, row.start, keep.hours, hours)

    def _of(self, length: timedelta, hosts: Sequence[str], stopped: Callable[[], bool]) -> int:
        """Roll up each ``length`` of hosts that is finished."""
        made, count = 0, _AT_ONCE[length]
        note = UnrolledTicksRow
        due = note.host.in_(hosts), note.length_s == seconds(length), _is_finished(length)
        some = select(note.id).where(*due).order_by(note.start).limit(count)
        while not stopped():
            with self._database.writing() as session:
                statement = delete(note).where(note.id.in_(some)).returning(note.host, note.start)
                places = [(host, start) for host, start in session.execute(statement)]
                made += _write(session, length, places)
                if length == MINUTE:
                    note_ticks(session, HOUR, places)
            if len(places) < count:
                break
        return made


def _is_finished(length: timedelta) -> ColumnElement[bool]:
    """Whether a noted minute or hour is over: another minute came later, or no minute of the hour is noted."""
    note, other = UnrolledTicksRow, aliased(UnrolledTicksRow)
    minute_of_host = other.host == note.host, other.length_s == seconds(MINUTE)
    if length == MINUTE:
        return note.id < select(func.max(other.id)).where(*minute_of_host).correlate(note).scalar_subquery()
    return ~exists().where(*minute_of_host, other.start >= note.start, other.start < note.until)


def read_ticks(
    session: Session, host: str, since: datetime, until: datetime, most: int, steps: int = 1
) -> Iterator[TickRecord]:
    """The ticks of a host from ``since`` until before ``until``, oldest first.

    In a long range, and where ticks are not kept any more, means over minutes or hours take their place. Of more than
    ``most`` rows every second, third and so on is read, but not so few that one of so many ``steps`` would have none.
    """
    means, since = _means(session, host, since, until, 2 * (until - since).total_seconds() / most)
    rows = [*means, *(tick.body for tick in ticks_between(session, host, since, until))]
    chosen = rows[:: max(min(-(-len(rows) // most), len(rows) // steps), 1)]
    numbers = [row for row in chosen if isinstance(row, int)]
    for first in range(0, len(numbers), _BATCH):
        some = TickRollupRow.id.in_(numbers[first : first + _BATCH])
        yield from map(tick_of, session.scalars(select(TickRollupRow.body).where(some).order_by(TickRollupRow.at)))
    yield from (tick_of(row) for row in chosen if isinstance(row, str))


def tick_of(body: str) -> TickRecord:
    """A tick, from its JSON text."""
    # By hand: far quicker than by the shapes of the interface, which checked it on arrival.
    fields = json.loads(body)
    return replace(_without_vms(fields), vms=tuple(VmTick(*values) for values in _values(fields["vms"])))


def _without_vms(fields: Mapping[str, Any]) -> TickRecord:
    at_s = datetime.fromisoformat(fields["at"]).timestamp()
    resources = resources_of(fields.get("resources"))
    share, watts = fields["host_cpu_share"], fields.get("power_watts")
    return TickRecord(at_s, fields["policy"], _MODES[fields["mode"]], share, (), resources, watts)


def _values(vms: Iterable[Mapping[str, Any]]) -> Iterator[VmValues]:
    for vm in vms:
        share, waited, vcpu = vm["cpu_share"], vm["run_delay_share"], vm.get("vcpu")
        yield vm["vm"], share, waited, vm["weight"], _MODES[vm["mode"]], VcpuTick(**vcpu) if vcpu else None


def _sums_of(ticks: Sequence[TickColumns]) -> dict[str, VmSums]:
    names, newest = ticks[0].vms.get("vm", ()), ticks[-1].vms
    is_alike = all(tick.vms.get("vm", ()) == names and not any(tick.vms.get("vcpu", ())) for tick in ticks)
    if not names or not is_alike or len(set(names)) < len(names):
        return summed((_values_of_columns(tick.vms), 1) for tick in ticks)
    used, waited = ([tick.vms[name] for tick in ticks] for name in ("cpu_share", "run_delay_share"))
    modes = (_MODES[mode] for mode in newest["mode"])
    return summed_alike(names, used, waited, zip(newest["weight"], modes, strict=True))


def _values_of_columns(vms: Mapping[str, Sequence[Any]]) -> Iterable[VmValues]:
    if not vms:
        return ()
    modes = [_MODES[mode] for mode in vms["mode"]]
    vcpus = [VcpuTick(**vcpu) if vcpu else None for vcpu in vms["vcpu"]] if "vcpu" in vms else repeat(None, len(modes))
    return zip(vms["vm"], vms["cpu_share"], vms["run_delay_share"], vms["weight"], modes, vcpus, strict=True)


def _means(
    session: Session, host: str, since: datetime, until: datetime, coarse_s: float
) -> tuple[list[int], datetime]:
    """The row numbers of the means that cover a range, oldest first, and from when on ticks cover the rest.

    Those are the longest means of at most ``coarse_s``; after the last of them shorter ones, and before the first,
    where these are not kept any more, longer ones.
    """
    numbers: list[int] = []
    for length in reversed(_LENGTHS):
        end = until if length.total_seconds() <= coarse_s else min(_oldest(session, host, since, length), until)
        if floor(end, length) <= since:
            continue  # none of them ends in between
        query = select(TickRollupRow.id, TickRollupRow.start).where(
            TickRollupRow.host == host,
            TickRollupRow.length_s == seconds(length),
            TickRollupRow.start > since - length,
            TickRollupRow.start <= end - length,
            TickRollupRow.at >= since,
        )
        rows = session.execute(query.order_by(TickRollupRow.start)).all()
        numbers += [number for number, _ in rows]
        since = rows[-1].start + length if rows else since
    return numbers, since


def _oldest(session: Session, host: str, since: datetime, length: timedelta) -> datetime:
    """The time of the oldest that is shorter than ``length``, from ``since`` on; the end of time without any.

    Where no ``length`` ends before the oldest mean, this may be its start: an older tick makes no difference.
    """
    minutes = select(func.min(TickRollupRow.start)).where(
        TickRollupRow.host == host, TickRollupRow.length_s < seconds(length), TickRollupRow.start >= since
    )
    start = session.scalar(minutes)
    if start is not None and floor(start, length) <= since:
        return start
    oldest = [first for first in (start, oldest_tick_at(session, host, since)) if first is not None]
    return min(oldest, default=datetime.max.replace(tzinfo=UTC))


class _Whole(NamedTuple):
    """All of a minute or hour: ticks without their VMs, oldest first, of how many each is the mean, and the VMs."""

    ticks: Sequence[tuple[TickRecord, int]]
    sums: Mapping[str, VmSums]


def _wholes(
    session: Session, length: timedelta, start: datetime, hosts: Collection[str]
) -> Iterator[tuple[str, _Whole]]:
    """The ticks or means in a minute or hour, by host, in the order of names. Each is summed when it is asked for."""
    end = start + length
    if length == MINUTE:
        for host, ticks in sorted(ticks_by_host(session, hosts, start, end).items()):
            yield host, _Whole([(_without_vms(tick.fields), 1) for tick in ticks], _sums_of(ticks))
        return
    row = TickRollupRow
    within = row.host.in_(hosts), row.length_s == seconds(MINUTE), row.start >= start, row.start < end
    minutes = session.execute(select(row.host, row.body, row.ticks).where(*within).order_by(row.start)).all()
    for host, of_host in groupby(sorted(minutes, key=itemgetter(0)), itemgetter(0)):
        read = [(json.loads(body), count) for _, body, count in of_host]
        ticks_of_host = [(_without_vms(fields), count) for fields, count in read]
        yield host, _Whole(ticks_of_host, summed((_values(fields["vms"]), count) for fields, count in read))


def _write(session: Session, length: timedelta, places: Iterable[Place]) -> int:
    """Insert the means over each ``length``, or replace those of no more ticks; returns how many."""
    hosts: dict[datetime, list[str]] = {}
    for host, start in sorted(places):
        hosts.setdefault(start, []).append(host)
    rows = [
        _row(host, length, start, whole)
        for start, at_once in sorted(hosts.items())
        for host, whole in _wholes(session, length, start, at_once)
    ]
    # Of fewer ticks: some of them were removed already.
    upsert(session, TickRollupRow, rows, ["host", "length_s", "start"], _has_as_many)
    return len(rows)


def _row(host: str, length: timedelta, start: datetime, whole: _Whole) -> dict[str, object]:
    tick = mean_of(*whole)
    at = timestamp(tick.time_s)
    fields = {
        "at": at.isoformat(),
        "policy": tick.policy,
        "mode": tick.mode,
        "host_cpu_share": tick.host_cpu_share,
        "vms": [_vm_fields(vm) for vm in tick.vms],
    }
    if tick.resources is not None:
        fields["resources"] = json_fields(tick.resources)
    if tick.power_watts is not None:
        fields["power_watts"] = tick.power_watts
    return {
        "host": host,
        "length_s": seconds(length),
        "start": start,
        "at": at,
        "ticks": sum(count for _, count in whole.ticks),
        "body": json.dumps(fields, separators=(",", ":")),
    }


def _vm_fields(vm: VmTick) -> dict[str, object]:
    # By hand, as ``tick_of``.
    fields: dict[str, object] = {
        "vm": vm.vm,
        "cpu_share": vm.cpu_share,
        "run_delay_share": vm.run_delay_share,
        "weight": vm.weight,
        "mode": vm.mode,
    }
    return fields | {"vcpu": asdict(vm.vcpu)} if vm.vcpu else fields


def _has_as_many(new: Any) -> ColumnElement[bool]:
    enough: ColumnElement[bool] = TickRollupRow.ticks <= new["ticks"]
    return enough
