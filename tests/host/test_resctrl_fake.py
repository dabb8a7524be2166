"""The fake resctrl answers to each recorded operation as the kernel did: errno, last_cmd_status and what files hold.

The same table is run on real kernels by tests/kernel/inside/resctrl.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from manager.model.cache import BandwidthResource, BandwidthUnit, CacheResource, Mask
from tests.fakes.resctrl import FakeResctrl
from tests.host.resctrl.replay import Role, differences, read_record

WAY_BYTES = 838860


def haswell(kernel: str, *, minimum: int = 2, closids: int = 4) -> FakeResctrl:
    cache = CacheResource(
        "L3", Mask(0xFFFFF), minimum, Mask(0xC0000), closids, False, (0, 1), ((0, WAY_BYTES), (1, WAY_BYTES))
    )
    return FakeResctrl((cache,), kernel=kernel)


def with_bandwidth(kernel: str) -> FakeResctrl:
    fake = haswell(kernel, minimum=1, closids=16)
    bandwidth = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 8, (0, 1), "max")
    return FakeResctrl(fake.caches, (bandwidth,), kernel, cdp=True)


@dataclass
class FakeSubject:
    """The fake, where processes have the ids that they have in the record."""

    tree: FakeResctrl

    def __post_init__(self) -> None:
        self.tree.start(1, 2)

    def entries(self, path: str) -> dict[str, bool]:
        return dict(self.tree.entries(path))

    def process(self, recorded: int, role: Role) -> int:
        if role is Role.WRITER:
            self.tree.myself = recorded
        if role is Role.THREADED:
            self.tree.start(recorded + 1, recorded + 2)
        if role is not Role.DEAD:
            self.tree.start(recorded, by=self.tree.myself if role is Role.CHILD else None)
        return recorded

    def resctrl_groups(self, pid: int) -> str:
        return f"res:{self.tree.group_of(pid) or '/'}\nmon:\n"


@pytest.mark.parametrize(
    ("record", "fake"),
    [
        ("linux-6.1", haswell("6.1")),
        ("linux-6.12", haswell("6.12")),
        ("linux-7.2", haswell("7.2")),
        ("linux-7.3", haswell("7.3", closids=16)),
        ("linux-7.2-mba-cdp", with_bandwidth("7.2")),
        ("linux-7.3-mba-cdp", replace(with_bandwidth("7.3"), rmids=24)),
    ],
)
def test_the_fake_answers_as_the_kernel_did(record: str, fake: FakeResctrl) -> None:
    operations, different = differences(FakeSubject(fake), read_record(record))
    assert not different, "\n".join(different)
    assert operations > 400
