"""Garbage collection of a process that serves: what lives long is walked every five minutes, and not more often.

A full collection walks all that is there, which with a thousand hosts takes 70 to 240 ms in which nothing else runs,
and Python does several a minute. What is *exempt* it does not walk. So what is there is made exempt each minute, and
until the next all collections walk what has come since: garbage of which is found as soon as ever, such as connections
of a flood. That of what was exempt waits for the fifth round, in which all is walked: it is no more than what was there
at five moments.
"""

from __future__ import annotations

import gc
import threading

EVERY_S = 60.0
_WHOLE_ROUNDS = 5
"""In one of so many rounds what is exempt is walked, too."""


class GarbageRounds:
    """Rounds in a thread of their own. Nothing is exempt before ``start``."""

    def __init__(self, every_s: float = EVERY_S) -> None:
        """``every_s`` is from one round to the next."""
        self._every_s = every_s
        self._rounds = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="garbage", daemon=True)

    def start(self) -> None:
        """Collect all garbage that there is, and begin."""
        _collect_and_exempt()
        self._thread.start()

    def close(self) -> None:
        """End. What is exempt stays so. Nothing, where it was not started."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def do_round(self) -> None:
        """Collect garbage of what has come since the round before, and of all in each fifth; what is left is exempt."""
        self._rounds += 1
        if self._rounds % _WHOLE_ROUNDS == 0:
            gc.unfreeze()
        _collect_and_exempt()

    def _run(self) -> None:
        while not self._stopping.wait(self._every_s):
            self.do_round()


def _collect_and_exempt() -> None:
    gc.collect()
    gc.freeze()
