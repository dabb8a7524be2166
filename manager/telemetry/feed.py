"""What a source delivers to: the slots of its application and its own counters."""

from __future__ import annotations

import errno
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from manager.errors import EquipoiseError
from manager.model.source import SourceKind, SourceState, SourceStatus
from manager.model.window import Ready
from manager.telemetry.store import Fate, WindowStore

SILENT_S = 30.0
"""After how long without response times a source counts as silent."""
_NOTE_S = 60.0
_MAX_DETAIL = 300
_MOST_CAUSES = 8


class Feed:
    """Takes over what one source measures, and knows how that source is. Thread-safe."""

    def __init__(
        self,
        application: str,
        source: str,
        kind: SourceKind,
        store: WindowStore,
        clock: Callable[[], float],
        silent_s: float = SILENT_S,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` tells seconds since the epoch, ``steady`` seconds that only grow."""
        self.application = application
        self._source = source
        self._kind = kind
        self._store = store
        self._clock = clock
        self._silent_s = silent_s
        self._lock = threading.Lock()
        self._steady = steady
        self._heard_s = steady()  # or begun
        self._last_sample_s: float | None = None  # since the epoch, to be shown
        self._accepted = self._malformed = self._refused = self._late = self._errors = 0
        self._failure = ""
        self._note = ""
        self._noted_s = float("-inf")
        self._extra = ""

    @property
    def slot_s(self) -> float:
        """Length of a slot in seconds."""
        return self._store.slot_s

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
        fate = self._store.add(self.application, end_s, times_us, buckets=buckets, requests=requests, ready=ready)
        count = len(times_us) + sum((buckets or {}).values()) + (ready is not None)
        if not count:
            return fate
        with self._lock:
            if fate is Fate.TAKEN:
                self._accepted += count
                self._last_sample_s = self._clock()
                self._heard_s = self._steady()
            elif fate is Fate.LATE:
                self._late += count
            else:
                self._malformed += count
                ahead = "response times of the future: the clock of the sender is ahead"
                self._say(ahead if fate is Fate.EARLY else "more response times than can be counted")
        return fate

    def local_s(self, end_s: float) -> float:
        """A sender's time by this machine's clock, see ``WindowStore.local_s``."""
        return self._store.local_s(end_s)

    def take_requests(self, start_s: float, end_s: float, requests: float) -> None:
        """Count requests whose response times are not known, as ``WindowStore.add_requests`` does."""
        self._store.add_requests(self.application, start_s, end_s, requests)

    def malformed(self, reason: str, count: int = 1) -> None:
        """Something that could not be understood. The reason must not quote it: it may be private."""
        with self._lock:
            self._malformed += count
            self._say(reason)

    def refused(self, address: str) -> None:
        """Something from an address that is not believed."""
        with self._lock:
            self._refused += 1
            self._say(f"{address} is not an address of the application's VMs, as far as is known")

    def flooded(self, per_s: float) -> None:
        """Something from an address that sent more than it may, which was not looked at."""
        with self._lock:
            self._refused += 1
            self._say(f"more than {per_s:g} response times per second came from one address; the rest is left out")

    def error(self, reason: str) -> None:
        """A request that failed or was not answered in time."""
        with self._lock:
            self._errors += 1
            self._say(reason)

    def failing(self, reason: str) -> None:
        """The source cannot work now."""
        with self._lock:
            self._failure = reason[:_MAX_DETAIL] or "it failed without a reason"

    def working(self) -> None:
        """The source can work (again)."""
        with self._lock:
            self._failure = ""

    def explain(self, text: str) -> None:
        """Add something to the detail for as long as it holds; empty takes it away."""
        with self._lock:
            self._extra = text

    def status(self) -> SourceStatus:
        """How the source is now."""
        with self._lock:
            now_s = self._steady()
            if self._failure:
                state = SourceState.FAILING
            elif now_s - self._heard_s > self._silent_s:
                state = SourceState.SILENT
            else:
                state = SourceState.STARTING if self._last_sample_s is None else SourceState.OK
            note = self._note if now_s - self._noted_s < _NOTE_S else ""
            details = (self._failure, "" if note == self._failure else note, self._extra)
            return SourceStatus(
                self.application,
                self._source,
                self._kind,
                state,
                self._last_sample_s,
                self._accepted,
                self._malformed,
                self._refused,
                self._late,
                self._errors,
                "; ".join(filter(None, details)),
            )

    def _say(self, reason: str) -> None:
        self._note = reason[:_MAX_DETAIL]
        self._noted_s = self._steady()


class SourceError(Exception):
    """Why a source cannot be used, in words of ours: viewers see it, so it quotes nothing that others sent."""


class Abuse(SourceError):
    """Whoever is asked gives the agent more work than an answer is worth: it is not asked again for a while."""


def reason_of(error: BaseException) -> str:
    """An error as an operator reads it, in words of ours or of the operating system."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(map(reason_of, error.exceptions)))
    if isinstance(error, SourceError | EquipoiseError):
        return str(error)
    return os_reason(error) or f"it failed ({type(error).__name__})"


def os_reason(error: BaseException | None) -> str:
    """What the operating system said of an error or of what it came from; empty where that is not known."""
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
