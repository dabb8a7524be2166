"""Whichever change of resctrl fails while VMs are measured, later ticks come to the same."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from manager.control.cache_plan import BATCH_GROUP
from manager.loop.cache_watch import RETRY_S
from manager.model.cache import DEFAULT
from tests.loop.stepped_tree import READ, SteppedTree
from tests.loop.test_cache_watch import SHOP, made


@dataclass
class Failing:
    """Of the changes of ``only`` such paths, the ``failing``-th does."""

    failing: int
    number: int
    only: str
    count: int = 0

    def take(self, what: str, path: str, act: Callable[[], Any]) -> Any:
        if what != READ and self.only in path:
            self.count += 1
            if self.count == self.failing:
                raise OSError(self.number, os.strerror(self.number))
        return act()


def failed(folder: Path, failing: int, number: int, only: str) -> int:
    """A walk in which one change fails; returns how many changes there were."""
    folder.mkdir()
    rig = made(folder)
    changes = Failing(failing, number, only)
    rig.host.tree = SteppedTree(rig.host.resctrl, changes.take)
    rig.host.port = None
    rig.crash()
    rig.tick()
    rig.serve("bar", "2 ways", "db")
    rig.tick()
    rig.serve("bar", None, "db")
    rig.host.stop("crunch")
    rig.tick()
    rig.now_s += RETRY_S
    rig.tick()
    rig.tick()
    assert rig.groups() == {"equipoise-db"}, failing
    assert rig.host.measured_in("db") == {"/equipoise-db"}, failing
    assert (rig.host.measured_in("hog"), rig.host.measured_in("web")) == ({BATCH_GROUP}, {SHOP}), failing
    for _ in range(2):
        rig.loop.release("test")
    assert not rig.groups(), failing
    assert list(rig.host.resctrl.groups) == [DEFAULT], failing
    assert not rig.host.resctrl.held, failing
    rig.journal.close()
    return changes.count


@pytest.mark.parametrize(("number", "only"), [(errno.EIO, ""), (errno.EBUSY, ""), (errno.ENOSPC, "mon_groups")])
def test_whichever_change_fails_the_next_ticks_reach_the_same(tmp_path: Path, number: int, only: str) -> None:
    count = failed(tmp_path / "undisturbed", 0, number, only)
    assert count > 10
    for failing in range(1, count + 1):
        failed(tmp_path / str(failing), failing, number, only)
