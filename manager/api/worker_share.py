"""What the processes of one manager share, and the part of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from manager.rate_limit import RateLimit, Turns
from manager.serving.door import TLS_LIMITS, GuestLimits
from manager.serving.edge import EdgeLimits
from manager.serving.server import ServerLimits
from manager.settings import Settings
from manager.shared_limits import SharedLimits

LIMITS_FILE = "limits"
LEAST_THREADS = 4
"""That answer REST requests in each process."""
_TRIES_PER_S = 2.0


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """Worker ``number`` of ``count``, from 0, at ``sockets`` (file descriptors) that all listen at.

    ``folder`` holds the limits and metrics that they share; it is theirs alone.
    """

    number: int
    count: int
    sockets: tuple[int, ...]
    folder: Path

    def of(self, total: int, least: int = 1) -> int:
        """Its part of a total, rounded up."""
        return max(-(-total // self.count), least)


@dataclass(frozen=True, slots=True)
class ServingLimits:
    """What a process may do at once: threads, streams, connections and bodies; and its rate limits."""

    threads: int
    streams: int
    server: ServerLimits
    requests: RateLimit
    samples: RateLimit
    tries: RateLimit
    turns: Turns


def serving_limits(settings: Settings, share: WorkerShare | None) -> ServingLimits:
    """Those of a manager of one process, or of a worker, which shares rates and has its part of the rest.

    Raises OSError when the shared file cannot be used.
    """
    threads, streams = settings.whole("api_threads"), settings.whole("live_streams")
    guests = TLS_LIMITS if settings.text("tls_certificate") else GuestLimits()
    rates: Mapping[str, float] = {
        "requests": settings.number("requests_per_s"),
        "samples": settings.number("samples_per_s"),
        "tries": _TRIES_PER_S,
    }
    if share is None:
        limits = {name: RateLimit(per_s) for name, per_s in rates.items()}
        return ServingLimits(threads, streams, ServerLimits(guests), **limits, turns=Turns())
    shared = SharedLimits(share.folder / LIMITS_FILE)
    return ServingLimits(
        share.of(threads, LEAST_THREADS),
        share.of(streams) if streams else 0,
        ServerLimits(guests.shared_by(share.count), EdgeLimits().shared_by(share.count)),
        **{name: RateLimit(per_s, buckets=shared.buckets(name)) for name, per_s in rates.items()},
        turns=Turns(gate=shared.gate),
    )
