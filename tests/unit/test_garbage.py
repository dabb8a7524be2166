"""What a process exempted from garbage collection stays exempted, whatever begins and ends in it."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from manager.loop.schedule import collect_as_usual, postpone_garbage
from tests.unit.test_load_run import after, load, serving


def generate_load() -> None:
    with serving(after(lambda _: 0.0)) as server:
        load(server.port, 100, 0.1)


def be_an_agent() -> None:
    postpone_garbage()
    assert not gc.isenabled()
    collect_as_usual()


@pytest.fixture
def exempted() -> Iterator[int]:
    """How many objects are."""
    assert gc.isenabled()
    gc.freeze()
    yield gc.get_freeze_count()


@pytest.mark.parametrize("end", [generate_load, be_an_agent])
def test_what_others_exempted_stays_so(exempted: int, end: Callable[[], None]) -> None:
    end()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 0.9 * exempted > 0
