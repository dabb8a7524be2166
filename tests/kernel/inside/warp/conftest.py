"""The scheduler in a guest with one CPU, whose time is counted in instructions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import lab


@pytest.fixture(scope="session", autouse=True)
def prompt() -> None:
    lab.be_prompt()


@pytest.fixture
def groups() -> Iterator[None]:
    yield
    lab.remove_groups()


@pytest.fixture
def bvt(groups: None) -> Iterator[SchedExt]:
    """Loaded, and still there after the test."""
    scheduler = lab.scheduler()
    scheduler.load()
    yield scheduler
    assert scheduler.active, "the kernel ejected the scheduler"
    for folder in lab.CGROUPS.rglob("*/"):
        lab.set_warp(str(folder.relative_to(lab.CGROUPS)), 0)
