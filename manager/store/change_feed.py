"""Notifies followers of a page when something it shows has changed.

One thread asks the database for the newest rows of each followed topic, every half second while anybody follows. So
thirty pages cost no more than one, and changes that other managers wrote are seen.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import ScalarSelect

from manager.errors import Busy, DatabaseUnavailable
from manager.store.database import Database
from manager.store.models import (
    ApplicationRow,
    EventRow,
    HostRow,
    TierRow,
    TierVmRow,
    VmRow,
    VmStatusRow,
)
from manager.store.pack_models import DecisionPackRow, TickPackRow
from manager.store.watched_hosts import look_at
from manager.store.window_packs import YOUNG

PERIOD_S = 0.5
_MARKED_S = 5.0
"""Hosts that a page shows are marked as watched so often, see ``manager.store.watched_hosts``."""

_LATELY = timedelta(days=2)
"""By the host's clock: what is older is not looked through, a partition for each day, at each look."""

log = logging.getLogger(__name__)


class TopicKind(StrEnum):
    """The subject of a page."""

    FLEET = "fleet"
    DECISIONS = "decisions"
    HOST = "host"
    APPLICATION = "application"


@dataclass(frozen=True, slots=True)
class Topic:
    """The subject that is followed. ``name`` is that of the host or application, empty for the other kinds."""

    kind: TopicKind
    name: str = ""


def parse_topic(text: str) -> Topic:
    """A topic as ``fleet``, ``decisions``, ``host:NAME`` or ``application:NAME``. Raises ValueError."""
    kind, separator, name = text.partition(":")
    topic = Topic(TopicKind(kind), name)
    if bool(separator and name) != (topic.kind in {TopicKind.HOST, TopicKind.APPLICATION}):
        raise ValueError(f"{text!r} is not a topic; use fleet, decisions, host:NAME or application:NAME")
    return topic


class Changes:
    """All followers of a process. Thread-safe."""

    def __init__(
        self, database: Database, most: int, period_s: float = PERIOD_S, clock: Callable[[], float] = time.time
    ) -> None:
        """At most ``most`` may follow at once; ``clock`` returns seconds since the epoch."""
        self._database = database
        self._clock = clock
        self._most = most
        self._period_s = period_s
        self._followed: Counter[Topic] = Counter()
        self._marks: dict[Topic, str] = {}
        self._news = threading.Condition()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def closed(self) -> bool:
        """There will be no more notifications."""
        return self._stop.is_set()

    @contextmanager
    def following(self, topic: Topic) -> Iterator[Callable[[str, float], str]]:
        """A function that waits for the topic's next mark, within the block.

        It takes the last mark seen and the seconds to wait at most, and returns the mark then, at once when this object
        is closed. Marks mean only that something changed.

        Raises Busy when too many follow already or it is closed, and DatabaseUnavailable.
        """
        first = self._ask([topic])  # before the wait, which is then for changes only
        self._mark_watched([topic])
        with self._news:
            if self.closed or self._followed.total() >= self._most:
                raise Busy(f"{self._most} pages are followed already: the setting live_streams allows no more")
            self._marks.setdefault(topic, first[topic])
            self._followed[topic] += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="changes", daemon=True)
                self._thread.start()
        try:
            yield lambda seen, timeout_s: self._wait(topic, seen, timeout_s)
        finally:
            with self._news:
                self._followed[topic] -= 1
                if not self._followed[topic]:
                    del self._followed[topic], self._marks[topic]

    def close(self) -> None:
        """End, and all waiting with it."""
        self._stop.set()
        with self._news:
            self._news.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _wait(self, topic: Topic, seen: str, timeout_s: float) -> str:
        with self._news:
            self._news.wait_for(lambda: self.closed or self._marks[topic] != seen, timeout_s)
            return self._marks[topic]

    def _watch(self) -> None:
        marked_s = time.monotonic()
        while not self._stop.wait(self._period_s):
            with self._news:
                topics = list(self._followed)
                if not topics:
                    self._thread = None  # the next one to follow starts another
                    return
            try:
                marks = self._ask(topics)
                if time.monotonic() - marked_s >= _MARKED_S:
                    marked_s = time.monotonic()
                    self._mark_watched(topics)
            except DatabaseUnavailable as error:
                log.warning("changes of pages are not noticed: %s", error)
                continue
            with self._news:
                self._marks |= {topic: mark for topic, mark in marks.items() if topic in self._followed}
                self._news.notify_all()

    def _mark_watched(self, topics: Sequence[Topic]) -> None:
        """Have the agents of what these topics show report all in each interval."""
        names = {kind: [topic.name for topic in topics if topic.kind is kind] for kind in TopicKind}
        now = datetime.fromtimestamp(self._clock(), UTC)
        look_at(self._database, now, hosts=names[TopicKind.HOST], applications=names[TopicKind.APPLICATION])

    def _ask(self, topics: Sequence[Topic]) -> dict[Topic, str]:
        with self._database.reading() as session:
            now = datetime.fromtimestamp(self._clock(), UTC)
            return {topic: _mark(session, topic, now) for topic in topics}


def _mark(session: Session, topic: Topic, now: datetime) -> str:
    row = session.execute(select(*_newest(topic, now), *_registered())).one()
    return hashlib.blake2b(repr(tuple(row)).encode(), digest_size=8).hexdigest()


def _newest(topic: Topic, now: datetime) -> list[ScalarSelect[Any]]:
    """The newest rows that a page about the topic shows, each found by an index.

    They are the last that arrived, or the newest that are not of the future, where a clock was ahead.
    """
    tick_lately, decided_lately = (row.claimed_until >= now - _LATELY for row in (TickPackRow, DecisionPackRow))
    match topic.kind:
        case TopicKind.FLEET:
            return [_last(TickPackRow.id, tick_lately), *(_last(kind.id) for kind, _ in YOUNG), _silent()]
        case TopicKind.DECISIONS:
            return [_last(DecisionPackRow.id, decided_lately), _last(EventRow.id)]
        case TopicKind.HOST:
            tick = _last(TickPackRow.last_at, TickPackRow.host == topic.name, TickPackRow.last_at <= now, tick_lately)
            decided = DecisionPackRow.host == topic.name, DecisionPackRow.last_at <= now, decided_lately
            decision = _last(DecisionPackRow.last_at, *decided)
            return [tick, decision, _silent()]
        case TopicKind.APPLICATION:
            number = select(ApplicationRow.id).where(ApplicationRow.name == topic.name).scalar_subquery()
            serving = (
                select(VmStatusRow.host_id)
                .join(VmRow, VmRow.name == VmStatusRow.vm)
                .join(TierVmRow, TierVmRow.vm_id == VmRow.id)
                .join(TierRow, TierRow.id == TierVmRow.tier_id)
                .where(TierRow.application_id == number)
            )
            newest = select(func.max(TickPackRow.last_at)).where(
                TickPackRow.host == HostRow.name, TickPackRow.last_at <= now, tick_lately
            )
            tick = newest.correlate(HostRow).scalar_subquery()
            ticks = select(func.max(tick)).where(HostRow.id.in_(serving)).scalar_subquery()
            windows = (_last(at, kind.application_id == number, at <= now) for kind, at in YOUNG)
            return [*windows, ticks]


def _silent() -> ScalarSelect[Any]:
    """Changes with the hosts that are silent: a small table."""
    return select(func.coalesce(func.sum(HostRow.id), 0)).where(HostRow.silent).scalar_subquery()


def _last(column: Any, *where: ColumnElement[bool]) -> ScalarSelect[Any]:
    return select(func.max(column)).where(*where).scalar_subquery()


def _registered() -> list[ScalarSelect[Any]]:
    """Changes with whatever is registered, changed or removed; these tables are small."""
    return [
        select(func.coalesce(func.sum(value), 0)).scalar_subquery()
        for kind in (HostRow, VmRow, ApplicationRow)
        for value in (kind.version, kind.id)
    ]
