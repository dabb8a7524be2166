"""Ending on SIGTERM, SIGINT, and more where asked for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_S = 1.0


@contextmanager
def stop_signal(*more: signal.Signals) -> Iterator[threading.Event]:
    """An event that SIGTERM, SIGINT and ``more`` set while the block runs."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda _number, _frame: stop.set()) for number in (*_SIGNALS, *more)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait(stop: threading.Event) -> None:
    """Wait for the event, with Python able to run signal handlers meanwhile.

    The kernel may give a signal to any thread. Python's handler then runs once the main thread, which waits here, does
    something: so it never waits for long.
    """
    while not stop.wait(_LOOK_S):
        pass
