"""A guest whose resctrl is mounted by the host layer, with VMs that nobody has moved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from manager.host.resctrl.resctrl_cache import ensure_mounted
from manager.host.resctrl.tree import ResctrlTree
from manager.model.cache import Slot, format_schemata
from tests.host.conftest import REAL
from tests.kernel.inside.resctrl.host import POINT, Host, Vm

NAMES = ("shop", "mail", "wiki", "batch")


@pytest.fixture(scope="session")
def closids() -> int:
    """As the kernel has of this machine."""
    return 4


@pytest.fixture(scope="session")
def vms() -> Iterator[Mapping[str, Vm]]:
    """For all tests."""
    started = {name: Vm(name) for name in NAMES}
    yield started
    for one in started.values():
        one.kill()


@pytest.fixture
def mounted() -> None:
    """Mounted, if it is not; each test begins and ends with the default group alone, which has everything."""
    ensure_mounted(ResctrlTree(REAL))


@pytest.fixture
def host(mounted: None, vms: Mapping[str, Vm]) -> Iterator[Host]:
    """The agent's view of it."""
    opened = Host(vms)
    before = opened.state()
    yield opened
    clean(opened)
    after = opened.state()
    opened.groups.close()
    assert after == before


def clean(host: Host) -> None:
    """Remove all groups by hand and give the default group everything."""
    for name in host.groups.names()[1:]:
        (POINT / name).rmdir()
    caches = {Slot(one.name, domain): one.ways.bits for one in host.offered.divided for domain in one.domains}
    most = {Slot(one.name, domain): one.most for one in host.offered.bandwidths for domain in one.domains}
    (POINT / "schemata").write_text(format_schemata(caches | most))


@pytest.fixture
def foreign(host: Host) -> Path:
    """The folder of a group of another tool."""
    group = POINT / "pqos1"
    group.mkdir()
    return group
