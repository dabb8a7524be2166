"""What the operator is told of the discovery of domains."""

from __future__ import annotations

import logging
from collections.abc import Callable

from manager.model.host import Discovery
from manager.model.records import Severity

News = tuple[Severity, str, str]
"""Severity, kind and message of an event."""

log = logging.getLogger(__name__)


class DiscoveryWatch:
    """Tells what changes."""

    def __init__(self, say: Callable[[Severity, str, str], object], observe: Callable[[Discovery], object]) -> None:
        """``say`` takes events, ``observe`` each look."""
        self._say = say
        self._observe = observe
        self._before: Discovery | None = None

    def look(self, now: Discovery) -> float:
        """Take over how fresh the list of domains is; returns its age in seconds."""
        before, self._before = self._before, now
        self._observe(now)
        for news in discovery_news(before, now):
            log.log(logging.INFO if news[0] is Severity.INFO else logging.WARNING, "%s", news[2])
            self._say(*news)
        return now.age_s


def discovery_news(before: Discovery | None, now: Discovery) -> tuple[News, ...]:
    """The events of what changed since the last look, None: there was none."""
    hung = before.hanging if before is not None else ()
    news: list[News] = [
        (
            Severity.WARNING,
            "domain-hangs",
            f"libvirt does not answer about domain {name}: it is set apart; control goes on with what is known of it",
        )
        for name in now.hanging
        if name not in hung
    ]
    news += [
        (Severity.INFO, "domain-answers", f"libvirt answers about domain {name} again")
        for name in hung
        if name not in now.hanging
    ]
    late_before = before is not None and before.late
    if now.late and not late_before:
        news.append(
            (
                Severity.ERROR,
                "discovery-late",
                f"libvirt has not listed the running domains for {now.age_s:.0f} s: those that start are found by their"
                " files at best; control goes on",
            )
        )
    if late_before and not now.late:
        news.append((Severity.INFO, "discovery-resumed", "libvirt lists the running domains again"))
    return tuple(news)
