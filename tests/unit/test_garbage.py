"""What a process exempted from garbage collection stays exempted, whatever begins and ends in it; what becomes garbage
of it goes in the next round of a manager's.
"""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest

from manager.loop.schedule import collect_as_usual, postpone_garbage
from manager.serving.garbage import GarbageRounds
from tests.unit.test_load_run import after, load, serving

LONG_S = 1000.0
"""What no test takes, however busy the machine is."""


def generate_load() -> None:
    with serving(after(lambda _: 0.0)) as server:
        load(server.port, 100, 0.1)


def be_an_agent() -> None:
    postpone_garbage()
    assert not gc.isenabled()
    collect_as_usual()


def serve() -> None:
    rounds = GarbageRounds(0.001)
    rounds.start()
    rounds.close()


class Ring:
    """Garbage that only a collection finds, once nobody else has it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def exempted() -> Iterator[int]:
    """How many objects are."""
    assert gc.isenabled()
    gc.freeze()
    yield gc.get_freeze_count()


@pytest.mark.parametrize("end", [generate_load, be_an_agent, serve])
def test_what_others_exempted_stays_so(exempted: int, end: Callable[[], None]) -> None:
    end()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0.9 * exempted > 0


def test_garbage_of_what_was_exempt_goes_once_a_round_walks_all() -> None:
    ring: Ring | None = Ring()
    assert ring is not None
    gone = threading.Event()
    weakref.finalize(ring, gone.set)
    rounds = GarbageRounds(LONG_S)
    rounds.start()
    ring = None
    gc.collect()
    for _ in range(4):
        rounds.do_round()
        assert not gone.is_set()  # it is exempt
    rounds.do_round()
    assert gone.is_set()
    rounds.close()


def test_rounds_come_by_themselves() -> None:
    ring: Ring | None = Ring()
    assert ring is not None
    gone = threading.Event()
    weakref.finalize(ring, gone.set)
    rounds = GarbageRounds(0.01)
    rounds.start()
    ring = None
    assert gone.wait(LONG_S)
    rounds.close()


def test_garbage_that_came_since_needs_no_round(exempted: int) -> None:
    rounds = GarbageRounds(LONG_S)
    rounds.start()
    gone = threading.Event()
    weakref.finalize(Ring(), gone.set)
    gc.collect()
    assert gone.is_set()
    rounds.close()
