"""Slots of response times that may still grow, as the manager has stored them.

A slot may grow for some seconds after its end, because response times come late. With an interval of a second that is
a dozen slots of each application, of which mostly one has changed since the report before.
"""

from __future__ import annotations

from collections.abc import Iterable

from manager.model.window import Window


class KnownWindows:
    """What of the present slots need not be sent again. Belongs to one thread."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, float], Window] = {}

    def news(self, windows: Iterable[Window]) -> list[Window]:
        """Those that are not as the manager stored them. All others that it stored are forgotten: they grow no more."""
        stored, self._stored = self._stored, {}
        news = []
        for window in windows:
            before = stored.get(_place(window))
            if before == window:
                self._stored[_place(window)] = window
            else:
                news.append(window)
        return news

    def note(self, windows: Iterable[Window]) -> None:
        """The manager has stored these."""
        self._stored |= {_place(window): window for window in windows}

    def forget(self) -> None:
        """It has lost what it had stored."""
        self._stored.clear()


def _place(window: Window) -> tuple[str, float]:
    return window.application, window.start_s
