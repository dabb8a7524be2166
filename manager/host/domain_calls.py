"""Calls of libvirt about single domains, each with a deadline: one that does not return sets that domain apart.

libvirt has no time limit for a call, and a call cannot be taken back: its thread waits for as long as it takes.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from manager.errors import DomainHangs

T = TypeVar("T")

MOST_HANGING = 3
"""libvirtd answers five calls of a connection at once (max_client_requests): one stays free beside a listing."""


@dataclass(slots=True)
class _Call:
    """One call. ``apart``: nobody waits for it any more."""

    uuid: str
    name: str
    action: Callable[[], object]
    ended: threading.Event = field(default_factory=threading.Event)
    apart: bool = False
    result: object = None
    error: Exception | None = None


class DomainCalls:
    """Makes one call at a time, in a thread that is left behind where a call does not return in ``answer_s`` seconds.

    That domain is set apart until the call returns. At most ``MOST_HANGING`` threads are left behind.
    """

    def __init__(self, answer_s: float) -> None:
        """No thread before the first call."""
        self._answer_s = answer_s
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # never held while libvirt is asked
        self._hanging: dict[str, str] = {}
        self._calls: queue.SimpleQueue[_Call | None] | None = None
        self._closed = False

    @property
    def hanging(self) -> dict[str, str]:
        """The domains that are set apart: names by UUID. Never blocks for long."""
        with self._lock:
            return dict(self._hanging)

    def ask(self, uuid: str, name: str, action: Callable[[], T]) -> T:
        """What ``action`` returns, or raises. Raises DomainHangs where it does not return in time, or is not tried."""
        with self._turn:
            call = _Call(uuid, name, action)
            self._hand_over(call)
            if not call.ended.wait(self._answer_s):
                with self._lock:
                    if not call.ended.is_set():
                        self._set_apart(call)
                        raise DomainHangs(f"libvirt has not answered about domain {name} for {self._answer_s:g} s")
            if call.error is not None:
                raise call.error
            return call.result  # type: ignore[return-value]  # of this very action

    def close(self) -> None:
        """Make no more calls, and end the thread; one that was left behind ends with its call."""
        with self._lock:
            self._closed = True
            if self._calls is not None:
                self._calls.put(None)
            self._calls = None

    def _hand_over(self, call: _Call) -> None:
        with self._lock:
            if call.uuid in self._hanging:
                raise DomainHangs(f"libvirt does not answer about domain {call.name}")
            if len(self._hanging) >= MOST_HANGING or self._closed:
                raise DomainHangs(f"domain {call.name} is not asked about: too many calls do not return")
            if self._calls is None:
                self._calls = queue.SimpleQueue()
                work = threading.Thread(target=self._work, args=(self._calls,), name="libvirt-domain", daemon=True)
                work.start()
            self._calls.put(call)

    def _set_apart(self, call: _Call) -> None:
        call.apart = True
        self._hanging[call.uuid] = call.name
        if self._calls is not None:
            self._calls.put(None)
        self._calls = None

    def _work(self, calls: queue.SimpleQueue[_Call | None]) -> None:
        while (call := calls.get()) is not None:
            try:
                call.result = call.action()
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                call.error = error
            with self._lock:
                call.ended.set()
                if call.apart:
                    self._hanging.pop(call.uuid, None)
            del call  # it holds the domain, and that the connection
