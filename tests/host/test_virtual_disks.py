"""What libvirt's statistics say of the disks of VMs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import libvirt
import pytest

from manager.host.libvirt_calls import virtual_disks_in, virtual_disks_of
from manager.model.resource_use import VirtualDiskCounters


def of_disk(number: int, name: str, **counters: int) -> dict[str, object]:
    """As libvirt names them: ``rd_reqs`` is ``block.N.rd.reqs``."""
    parts = {f"block.{number}.{key.replace('_', '.')}": value for key, value in counters.items()}
    return {f"block.{number}.name": name, **parts}


WHOLE = {"rd_reqs": 10, "rd_times": 1000, "wr_reqs": 20, "wr_times": 3000, "fl_reqs": 2, "fl_times": 500}


@pytest.mark.parametrize(
    ("stats", "disks"),
    [
        ({}, {}),
        ({"block.count": 1, **of_disk(0, "vda", **WHOLE)}, {"vda": VirtualDiskCounters(32, 4500)}),
        ({"block.count": 1, **of_disk(0, "vda", rd_reqs=1)}, {}),
        ({"block.count": 2, **of_disk(0, "vda"), **of_disk(1, "sda", **WHOLE)}, {"sda": VirtualDiskCounters(32, 4500)}),
        ({"block.count": "2", **of_disk(0, "vda", **WHOLE)}, {}),
        ({"block.count": 3}, {}),
    ],
)
def test_what_is_counted_whole_is_read(stats: dict[str, object], disks: dict[str, VirtualDiskCounters]) -> None:
    assert virtual_disks_in(stats) == disks


def test_a_domain_that_does_not_answer_has_none() -> None:
    def refuse(*_given: object) -> Any:
        raise libvirt.libvirtError("another job")

    domain: Any = SimpleNamespace(name=lambda: "web")
    connection: Any = SimpleNamespace(domainListGetStats=refuse)
    assert virtual_disks_of(connection, domain) is None
    connection.domainListGetStats = lambda *_given: []
    assert virtual_disks_of(connection, domain) is None
    connection.domainListGetStats = lambda *_given: [(domain, {"block.count": 1, **of_disk(0, "vda", **WHOLE)})]
    seen = virtual_disks_of(connection, domain)
    assert seen is not None
    assert seen.disks == {"vda": VirtualDiskCounters(32, 4500)}
