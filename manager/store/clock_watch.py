"""Whether the clock of a manager's machine is set, told as an event like that of a host's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from manager.clocks import Times, jump_between, read_times
from manager.errors import DatabaseUnavailable
from manager.model.fields import MANAGER
from manager.model.records import Severity
from manager.store.database import Database
from manager.store.decision_records import store_new
from manager.store.models import EventRow
from manager.store.silence import host_event

_EVERY_S = 1.0
_MOST_WAITING = 100

log = logging.getLogger(__name__)


class ClockWatch:
    """Looks every second, in a thread of its own. What the database does not take now is kept for the next look."""

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
                store_new(session, EventRow, self._waiting)
        except DatabaseUnavailable as error:
            log.warning("that a clock was set is told later: %s", error)
        else:
            self._waiting = []

    def _run(self) -> None:
        while not self._stopping.wait(_EVERY_S):
            self.look()
