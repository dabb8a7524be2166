"""What the active probes share: from measured times to a feed, with failure told from bad luck."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from functools import lru_cache

from manager.telemetry.feed import Feed

_FAILURES = 3


class ProbeReport:
    """Takes the results of an open loop. Three failures in a row make the source ``failing``, a success ends that."""

    def __init__(self, feed: Feed, clock: Callable[[], float]) -> None:
        """``clock`` tells seconds since the epoch."""
        self._feed = feed
        self._clock = clock
        self._in_a_row = 0

    def __call__(self, time_s: float, problem: str) -> None:
        """One request: its response time, and what went wrong, or nothing."""
        self._feed.take(self._clock(), (time_s * 1e6,))
        if not problem:
            self._feed.working()
            self._in_a_row = 0
            return
        self._feed.error(problem)
        self._in_a_row += 1
        if self._in_a_row >= _FAILURES:
            self._feed.failing(problem)


@lru_cache(maxsize=1)
def tls_context() -> ssl.SSLContext:
    """Trusts whom the operating system trusts. Shared, as making one takes long and some memory."""
    return ssl.create_default_context()
