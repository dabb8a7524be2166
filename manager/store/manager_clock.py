"""The clock of a manager's machine: an event when it is set, and whether it is behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.clocks import Times, jump_between, read_times
from manager.control.dating import behind_s
from manager.control.uptime import Boot
from manager.errors import DatabaseUnavailable
from manager.model.fields import MANAGER
from manager.model.records import Severity
from manager.store.arrivals import clock_ahead_s
from manager.store.database import Database
from manager.store.event_records import store_events
from manager.store.models import HostRow
from manager.store.silent_hosts import host_event

_EVERY_S = 1.0
_MOST_WAITING = 100

log = logging.getLogger(__name__)


class ClockWatch:
    """Looks every second, in a thread of its own. Events that the database does not take are kept for the next look."""

    def __init__(self, database: Database, machine: str, read: Callable[[], Times] = read_times) -> None:
        """``machine`` is the name of this one. Nothing is watched before ``start``."""
        self._database = database
        self._machine = machine
        self._read = read
        self._before = read()
        self._waiting: list[dict[str, object]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clock", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End. Nothing, where it was not started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Look once."""
        now = self._read()
        jump, self._before = jump_between(self._before, now), now
        if jump is not None:
            text = f"the manager on {self._machine}: {jump.text}; its jobs go on"
            log.warning("%s", text)
            at = datetime.fromtimestamp(now.wall_s, UTC)
            self._waiting.append(host_event(MANAGER, at, Severity.WARNING, "clock-jumped", text))
            self._waiting = self._waiting[-_MOST_WAITING:]
        if not self._waiting:
            return
        try:
            with self._database.writing() as session:
                store_events(session, self._waiting)
        except DatabaseUnavailable as error:
            log.warning("the event that a clock was set is stored later: %s", error)
        else:
            self._waiting = []

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            self.look()


def manager_behind_s(
    session: Session, host: str, ahead_s: float | None, boot: Boot, wall_s: float, skew_s: float
) -> float:
    """By how many seconds the manager's clock is behind, by uptime and by what hosts find; never below 0.

    ``ahead_s``: by how much the reporting host finds its clock ahead, None: unknown.
    """
    others = select(HostRow.clock_ahead_s).where(
        HostRow.name != host, HostRow.silent.is_(False), HostRow.clock_ahead_s.is_not(None)
    )
    ahead = [seconds for seconds in (*session.scalars(others), ahead_s) if seconds is not None]
    return behind_s(-clock_ahead_s(session, boot, wall_s), ahead, skew_s)
