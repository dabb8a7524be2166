"""Ending on SIGTERM, SIGINT, and more where asked for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    """Wait for the event, with Python able to run signal handlers meanwhile."""
    while not stop.wait(3600):
        pass
