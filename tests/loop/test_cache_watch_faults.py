"""Whichever change of resctrl fails while VMs are measured, later ticks come to the same."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from manager.control.cache_plan import BATCH_GROUP
from manager.host.resctrl.tree import ResctrlFile
from manager.loop.cache_watch import RETRY_S
from manager.model.cache import DEFAULT
from tests.fakes.resctrl import FakeResctrl
from tests.loop.test_cache_watch import SHOP, made


@dataclass
class FaultyTree:
    """The fake's tree, of whose changes of ``only`` such paths one fails."""

    tree: FakeResctrl
    failing: int
    number: int
    only: str
    count: int = 0

    def step(self, path: str) -> None:
        self.count += self.only in path
        if self.only in path and self.count == self.failing:
            raise OSError(self.number, os.strerror(self.number))

    def options(self) -> frozenset[str] | None:
        return self.tree.options()

    def mount(self, options: frozenset[str]) -> None:
        self.tree.mount(options)

    def unmount(self) -> None:
        self.tree.unmount()

    def open(self, path: str, *, write: bool = False) -> ResctrlFile:
        if write:
            self.step(path)
        return self.tree.open(path, write=write)

    def folders(self, path: str) -> list[str]:
        return self.tree.folders(path)

    def make(self, path: str) -> None:
        self.step(path)
        self.tree.make(path)

    def remove(self, path: str) -> None:
        self.step(path)
        self.tree.remove(path)


def failed(folder: Path, failing: int, number: int, only: str) -> int:
    """A walk in which one change fails; returns how many changes there were."""
    folder.mkdir()
    rig = made(folder)
    tree = rig.host.tree = FaultyTree(rig.host.resctrl, failing, number, only)
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
    return tree.count


@pytest.mark.parametrize(("number", "only"), [(errno.EIO, ""), (errno.EBUSY, ""), (errno.ENOSPC, "mon_groups")])
def test_whichever_change_fails_the_next_ticks_reach_the_same(tmp_path: Path, number: int, only: str) -> None:
    count = failed(tmp_path / "undisturbed", 0, number, only)
    assert count > 10
    for failing in range(1, count + 1):
        failed(tmp_path / str(failing), failing, number, only)
