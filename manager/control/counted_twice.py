"""Whether a tap and another source of an application count the same requests, judged by their numbers. Pure.

Logs and probes are refused beside a tap, as what they see passes it. What is pushed, or read from Prometheus, may be of
requests that no tap sees: of another port, or of another machine. The same requests are as many in each minute.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manager.model.source import SourceKind

MINUTES = 3
"""So many whole minutes are compared."""
LEAST = 100
"""Requests of a minute below which a minute tells nothing."""
TOLERANCE = 0.1
"""By such a part of the larger number two sources of the same requests may differ: one may date them later."""
COMPARED = frozenset({SourceKind.TAP, SourceKind.PUSH, SourceKind.PROMETHEUS})


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """The requests that a source counted in each of the last MINUTES, the oldest first."""

    application: str
    source: str
    kind: SourceKind
    requests: Sequence[float]

    @property
    def key(self) -> tuple[str, str]:
        """Of the application and of the source."""
        return self.application, self.source


def counted_twice(counts: Iterable[SourceCounts]) -> dict[tuple[str, str], str]:
    """Which sources count as many requests as a tap of the same application, or that tap: a sentence for each.

    Both count in the response times and in the request rate of the application: the rate is twice what it is.
    """
    found: dict[tuple[str, str], str] = {}
    of_applications: dict[str, list[SourceCounts]] = {}
    for each in counts:
        of_applications.setdefault(each.application, []).append(each)
    for sources in of_applications.values():
        taps = [source for source in sources if source.kind is SourceKind.TAP]
        others = [source for source in sources if source.kind in COMPARED - {SourceKind.TAP}]
        for tap in taps:
            for other in others:
                if _are_as_many(tap.requests, other.requests):
                    found[tap.key], found[other.key] = _sentence(other, tap), _sentence(tap, other)
    return found


def _are_as_many(first: Sequence[float], second: Sequence[float]) -> bool:
    pairs = [sorted(pair) for pair in zip(first, second, strict=True)]
    return len(pairs) >= MINUTES and all(less >= LEAST and more - less <= TOLERANCE * more for less, more in pairs)


def _sentence(other: SourceCounts, own: SourceCounts) -> str:
    return (
        f"source {other.source} ({other.kind}) counted as many requests in each of the last {len(own.requests)} minutes"
        f" ({sum(other.requests):,.0f} and {sum(own.requests):,.0f}): they probably count twice; keep one of the two"
    )
