"""Where a source delivers response times: the slots of its application, and the source's own counters."""

from __future__ import annotations

import errno
import math
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from manager.control.counted_twice import COMPARED, SourceCounts
from manager.errors import EquipoiseError
from manager.model.numbers import digits
from manager.model.source import SourceKind, SourceState, SourceStatus
from manager.model.window import Ready
from manager.telemetry.store import Fate, WindowStore
from manager.telemetry.tally import Tally

SILENT_S = 30.0
"""After how long without response times a source counts as silent."""
_NOTE_S = 60.0
_MAX_DETAIL = 300
_MOST_CAUSES = 8


@dataclass(eq=False)
class Feed:
    """Takes what one source measures, and reports how the source is. Thread-safe.

    ``clock`` returns seconds since the epoch, ``steady`` seconds that only grow.
    """

    application: str
    source: str
    kind: SourceKind
    store: WindowStore
    clock: Callable[[], float]
    silent_s: float = SILENT_S
    steady: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._heard_s = self.steady()  # or begun
        self._last_sample_s: float | None = None  # since the epoch, to be shown
        self._counts: Counter[str] = Counter()
        self._failure = self._note = self._extra = ""
        self._noted_s = float("-inf")
        self._tally = Tally() if self.kind in COMPARED else None

    def take(
        self,
        end_s: float,
        times_us: Sequence[float] = (),
        *,
        buckets: Mapping[int, int] | None = None,
        requests: float | None = None,
        ready: Ready | None = None,
    ) -> Fate:
        """Count response times as ``WindowStore.add`` does. Those of the future, and too many, are malformed."""
        fate = self.store.add(self.application, end_s, times_us, buckets=buckets, requests=requests, ready=ready)
        if fate is Fate.TAKEN and requests:
            self._add_up(requests, end_s, end_s)
        count = len(times_us) + sum((buckets or {}).values()) + (ready is not None)
        match fate:
            case Fate.TAKEN if count:
                with self._lock:
                    self._counts["accepted"] += count
                    self._last_sample_s = self.clock()
                    self._heard_s = self.steady()
            case Fate.LATE:
                self._count("late", count=count)
            case Fate.EARLY if count:
                self._count("malformed", "response times of the future: the clock of the sender is ahead", count)
            case Fate.FULL:
                self._count("malformed", "more response times or requests than can be counted", max(count, 1))
        return fate

    def take_requests(self, start_s: float, end_s: float, requests: float) -> None:
        """Count requests whose response times are unknown, as ``WindowStore.add_requests`` does."""
        if self.store.add_requests(self.application, start_s, end_s, requests) is Fate.FULL:
            self._count("malformed", "more requests than can be counted")
            return
        self._add_up(requests, start_s, end_s)

    def malformed(self, reason: str) -> None:
        """Something that could not be read. The reason must not quote it: it may be private."""
        self._count("malformed", reason)

    def refused(self, address: str) -> None:
        """Something from an address that is not trusted."""
        self._count("refused", f"{address} is not an address of the application's VMs, as far as is known")

    def flooded(self, per_s: float) -> None:
        """Something unread from an address that sent more than it may."""
        self._count(
            "refused",
            f"more than {digits(per_s, 4)} response times per second came from one address; the rest is left out",
        )

    def error(self, reason: str, count: int = 1) -> None:
        """So many requests that failed or were not answered in time."""
        self._count("errors", reason, count)

    def failing(self, reason: str) -> None:
        """The source cannot work now."""
        with self._lock:
            self._failure = reason[:_MAX_DETAIL] or "it failed without a reason"

    def working(self) -> None:
        """The source can work (again)."""
        with self._lock:
            self._failure = ""

    def explain(self, text: str) -> None:
        """Add a text to the detail for as long as it holds; empty removes it."""
        with self._lock:
            self._extra = text

    def status(self, finding: str = "") -> SourceStatus:
        """How the source is now; ``finding`` is about it and another one, and ends its detail."""
        with self._lock:
            now_s = self.steady()
            if self._failure:
                state = SourceState.FAILING
            elif now_s - self._heard_s > self.silent_s:
                state = SourceState.SILENT
            else:
                state = SourceState.STARTING if self._last_sample_s is None else SourceState.OK
            note = self._note if now_s - self._noted_s < _NOTE_S else ""
            details = (self._failure, "" if note == self._failure else note, self._extra, finding)
            detail = "; ".join(filter(None, details))
            return SourceStatus(
                self.application, self.source, self.kind, state, self._last_sample_s, detail=detail, **self._counts
            )

    def counts(self) -> SourceCounts | None:
        """The requests of the last minutes; None where they are not compared with those of other sources."""
        if self._tally is None:
            return None
        with self._lock:
            return SourceCounts(self.application, self.source, self.kind, self._tally.last(self.clock()))

    def _add_up(self, requests: float, start_s: float, end_s: float) -> None:
        if self._tally is not None:
            with self._lock:
                self._tally.add(requests, start_s, end_s)

    def _count(self, counter: str, reason: str = "", count: int = 1) -> None:
        with self._lock:
            self._counts[counter] += count
            if reason:
                self._note, self._noted_s = reason[:_MAX_DETAIL], self.steady()


def until_next_s(now_s: float, every_s: float) -> float:
    """Seconds until the next multiple of ``every_s`` since the epoch."""
    return (math.floor(now_s / every_s) + 1) * every_s - now_s


class SourceError(Exception):
    """Why a source cannot be used, in words of ours: viewers see it, so it quotes nothing that others sent."""


class Abuse(SourceError):
    """The server gives the agent more work than an answer is worth: it is not asked again for a while."""


def reason_of(error: BaseException) -> str:
    """An error as an operator reads it, in words of ours or of the operating system."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(reason_of, error.exceptions)))
    if isinstance(error, SourceError | EquipoiseError):
        return str(error)
    return os_reason(error) or f"it failed ({type(error).__name__})"


def os_reason(error: BaseException | None) -> str:
    """The operating system's text for an error or one of its causes; empty where there is none."""
    for _ in range(_MOST_CAUSES):
        if isinstance(error, socket.gaierror):
            return "the host name cannot be resolved"
        if isinstance(error, ssl.SSLCertVerificationError):
            return "the server's certificate is not trusted"
        if isinstance(error, ssl.SSLError):
            return "no TLS connection"
        if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
            return os.strerror(error.errno)  # asyncio puts a text of its own into strerror
        if error is None:
            break
        error = error.__cause__ or error.__context__
    return ""
