"""Turns: one at a time, who asked least is next, and a flood displaces itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from manager.errors import Busy
from manager.rate_limit import Turns


class Queue:
    """Threads that ask for turns; one has it until it is let go."""

    def __init__(self, turns: Turns, pool: ThreadPoolExecutor) -> None:
        self._turns, self._pool = turns, pool
        self.served: list[str] = []
        self.gates: list[threading.Event] = []

    def ask(self, key: str) -> Future[None]:
        """Returns once it is served, waits or was refused."""
        before = self._state()
        asked = self._pool.submit(self._work, key)
        until(lambda: self._state() != before or asked.done())
        return asked

    def let_go(self) -> None:
        served = len(self.served)
        self.gates[-1].set()
        until(lambda: len(self.served) > served)

    def _state(self) -> tuple[int, int]:
        return len(self.served), sum(asked for asked, _ in self._turns._asked.values()).__trunc__()

    def _work(self, key: str) -> None:
        with self._turns.turn(key):
            gate = threading.Event()
            self.gates.append(gate)
            self.served.append(key)
            assert gate.wait(120)


def until(what: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 120
    while not what():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_who_asked_least_is_next_and_displaces_who_asked_most() -> None:
    with ThreadPoolExecutor(10) as pool:
        queue = Queue(Turns(waiting=2, wait_s=120, clock=lambda: 0.0), pool)
        queue.ask("flood")
        first, second = queue.ask("flood"), queue.ask("flood")
        third = queue.ask("flood")
        with pytest.raises(Busy):
            third.result(30)
        quiet = queue.ask("quiet")
        with pytest.raises(Busy):
            second.result(30)
        assert queue.served == ["flood"]
        queue.let_go()
        assert queue.served == ["flood", "quiet"]
        queue.let_go()
        assert queue.served == ["flood", "quiet", "flood"]
        queue.gates[-1].set()
        for served in (quiet, first):
            served.result(30)


def test_those_who_ask_alike_are_served_in_their_order() -> None:
    with ThreadPoolExecutor(10) as pool:
        queue = Queue(Turns(waiting=3, wait_s=120, clock=lambda: 0.0), pool)
        for key in "abcd":
            queue.ask(key)
        with pytest.raises(Busy):
            queue.ask("e").result(30)
        for _ in range(3):
            queue.let_go()
        queue.gates[-1].set()
    assert queue.served == list("abcd")


def test_who_waits_too_long_is_refused_and_a_turn_is_given_back_after_a_mistake() -> None:
    turns = Turns(wait_s=0.01)
    with turns.turn("a"), pytest.raises(Busy), turns.turn("b"):
        pass
    with pytest.raises(ZeroDivisionError), turns.turn("a"):
        raise ZeroDivisionError
    with turns.turn("a"):
        pass


def test_what_was_asked_long_ago_counts_for_little() -> None:
    now_s = [0.0]
    turns = Turns(clock=lambda: now_s[0])
    for _ in range(10):
        with turns.turn("a"):
            pass
    now_s[0] += 3600
    assert turns._note("a") == pytest.approx(1)
