"""Killed after any change that it made, an agent that starts anew reaches the plan, or gives everything back."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import pytest

from manager.control.cache import CacheDemand
from tests.kernel.inside.resctrl.host import DeadlyTree, Host, Vm, claim, demand

BATCH = frozenset({"batch"})
NOTHING = demand()
TWO = demand(claim("shop", "6 ways"), claim("mail", "3 ways"), batch=BATCH)
CHANGED = demand(claim("shop", "2 ways"), claim("wiki", "8 ways"), batch=BATCH)


@pytest.fixture
def slight() -> Iterator[Mapping[str, Vm]]:
    """VMs of two threads each: between these, and between steps, is everywhere that one can be killed."""
    started = {name: Vm(name, ("CPU 0/KVM",)) for name in ("shop", "mail", "wiki", "batch")}
    yield started
    for one in started.values():
        one.kill()


def changes(vms: Mapping[str, Vm], wanted: CacheDemand, deadly: int = -1) -> int:
    """Reach it, and count the changes on the way, after which of these one is killed."""
    agent = Host(vms, DeadlyTree(deadly))
    agent.reach(wanted)
    agent.groups.close()
    assert isinstance(agent.tree, DeadlyTree)
    return agent.tree.changes


def die(vms: Mapping[str, Vm], wanted: CacheDemand, deadly: int) -> None:
    """An agent in a process of its own is killed on its way."""
    child = os.fork()
    if child == 0:
        try:
            changes(vms, wanted, deadly)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it killed itself and neither failed nor ended before"


@pytest.mark.parametrize(
    ("first", "second"), [(NOTHING, TWO), (TWO, CHANGED)], ids=["taking and giving back", "changing"]
)
def test_killed_after_every_change(
    host: Host, slight: Mapping[str, Vm], first: CacheDemand, second: CacheDemand
) -> None:
    """Back and forth; on the way there and on the way back it is killed after the first change, the second, ..."""
    original = host.state()
    changes(slight, first)
    counts = {True: changes(slight, second), False: changes(slight, first)}
    assert min(counts.values()) >= 6, "two for each VM that moves, and more"
    there = False
    for deadly in range(1, max(counts.values())):
        for _ in counts:
            there = not there
            wanted = second if there else first
            if deadly < counts[there]:
                die(slight, wanted, deadly)
            changes(slight, wanted)
    changes(slight, NOTHING)
    assert host.state() == original
