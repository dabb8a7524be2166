"""What works on this host and what does not, looked at now and then."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from manager.errors import HostError
from manager.loop.observer import system_clock
from manager.model.finding import Finding, Findings

EVERY_S = 3600.0

log = logging.getLogger(__name__)


class Examiner(Protocol):
    """Looks at a host: a real one with the doctor's checks."""

    def look(self) -> tuple[Finding, ...]:
        """What is found; may take seconds. Raises HostError."""
        ...

    def close(self) -> None:
        """End a look that is under way, which then fails, from another thread."""
        ...


class FindingsWatch:
    """Looks at start and then every ``every_s``, in a thread of its own: no tick or exchange waits for it."""

    def __init__(self, examiner: Examiner, every_s: float = EVERY_S) -> None:
        """Nothing is looked at before ``start``."""
        self._examiner = examiner
        self._every_s = every_s
        self._latest: Findings | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="findings", daemon=True)

    @property
    def latest(self) -> Findings | None:
        """What was found last; None: nothing yet. Never blocks."""
        return self._latest

    def start(self) -> None:
        """Look for the first time."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a look that is under way is ended."""
        self._stopping.set()
        self._examiner.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._latest = Findings(system_clock().epoch_s, self._examiner.look())
            except HostError as error:
                if not self._stopping.is_set():
                    log.warning("this host cannot be examined: %s", error)
            self._stopping.wait(self._every_s)
