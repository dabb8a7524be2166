"""The same on a newer kernel and processor: memory bandwidth, monitoring, and code and data apart where wanted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.kernel.inside.resctrl.conftest import clean, host, mounted, vms
from tests.kernel.inside.resctrl.host import Host, Vm

__all__ = ["divided", "host", "mounted", "remount", "vms"]


def remount(host: Host, *options: str) -> None:
    """Nobody has a file open; everything is as it is in the beginning, with other options."""
    host.groups.close()
    host.tree.unmount()
    host.tree.mount(frozenset(options))


@pytest.fixture
def divided(host: Host, vms: Mapping[str, Vm]) -> Iterator[Host]:
    """The same, mounted with CDP."""
    remount(host, "cdp")
    opened = Host(vms)
    yield opened
    clean(opened)
    remount(opened)
