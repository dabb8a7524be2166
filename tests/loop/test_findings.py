"""Findings are looked for at start and now and then, and nothing waits for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from manager.loop.watches import FindingsWatch
from tests.fakes.examiner import FOUND, FakeExaminer

LONG_S = 120.0


def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + LONG_S
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def examiner() -> FakeExaminer:
    return FakeExaminer()


@pytest.fixture
def watch(examiner: FakeExaminer) -> Iterator[FindingsWatch]:
    made = FindingsWatch(examiner, every_s=0.01)
    made.start()
    yield made
    made.stop()


def test_nothing_is_known_until_a_look_has_ended(watch: FindingsWatch, examiner: FakeExaminer) -> None:
    until(lambda: examiner.looks)
    assert watch.latest is None
    examiner.going.set()
    until(lambda: watch.latest)
    assert watch.latest is not None
    assert watch.latest.findings == (FOUND,)


def test_it_looks_again(watch: FindingsWatch, examiner: FakeExaminer) -> None:
    examiner.going.set()
    until(lambda: watch.latest)
    first = watch.latest
    assert first is not None
    examiner.findings = ()
    until(lambda: watch.latest is not None and watch.latest.findings == ())
    assert watch.latest is not None
    assert watch.latest.time_s > first.time_s


def test_what_was_found_stays_while_nothing_can_be_found(watch: FindingsWatch, examiner: FakeExaminer) -> None:
    examiner.going.set()
    until(lambda: watch.latest)
    examiner.failing = True
    looks = examiner.looks
    until(lambda: examiner.looks > looks + 2)
    assert watch.latest is not None
    assert watch.latest.findings == (FOUND,)
    examiner.failing = False
    last = watch.latest
    until(lambda: watch.latest is not last)


def test_stopping_ends_a_look_and_tells_nothing_of_it(examiner: FakeExaminer, caplog: pytest.LogCaptureFixture) -> None:
    watch = FindingsWatch(examiner)
    watch.start()
    until(lambda: examiner.looks)
    watch.stop()
    assert examiner.closed
    assert watch.latest is None
    assert caplog.text == ""
    assert all(thread.name != "findings" for thread in threading.enumerate())


def test_stopping_without_a_start_is_fine(examiner: FakeExaminer) -> None:
    FindingsWatch(examiner).stop()
    assert examiner.looks == 0
