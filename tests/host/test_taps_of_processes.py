"""Taps of a VM are found by its process while libvirt has not said which they are, or is not asked at all."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from manager.host import policing
from manager.host.kernel_host import KernelHost
from manager.host.netlink import RouteSocket
from manager.host.process import start_ticks
from manager.loop.journal import Entry, Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.decision import Owned
from manager.model.host import VmInstance
from manager.model.knob_spec import Family
from manager.model.knobs import Knob, KnobKey
from manager.model.network import NO_RATE
from tests.host.conftest import REAL
from tests.host.uplink_wire import lacks

_TUNSETIFF, _TAP, _NO_INFO = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
LIMIT_KBIT = 20_000


@pytest.fixture
def tap() -> Iterator[int]:
    """The index of one that this process holds, as QEMU holds its own."""
    if reason := lacks():
        pytest.skip(f"NOT TESTED: {reason}")
    name = f"eq{os.getpid() % 100_000}p"
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH14x", name.encode(), _TAP | _NO_INFO))
        yield socket.if_nametoindex(name)
    finally:
        os.close(descriptor)


def test_a_limit_goes_with_release_local_after_a_crash(tap: int, tmp_path: Path) -> None:
    vm = VmInstance("u-hog", "hog", os.getpid(), start_ticks(REAL, os.getpid()) or 0)
    key = KnobKey(vm.uuid, Knob.TAP_LIMIT, tap)
    host = KernelHost(REAL, None)
    assert host.knobs(vm, Family.NETWORK)[key] == NO_RATE
    with closing(Journal(tmp_path / "journal.db", host.boot_id)) as journal:
        journal.update({key: Entry(vm, "hog", Owned(NO_RATE, NO_RATE, LIMIT_KBIT))})
        with closing(RouteSocket()) as link:
            try:
                policing.add_ingress(link, tap)  # the agent dies after the first half of a write
            except OSError as error:
                pytest.skip(f"NOT TESTED: this kernel has no ingress qdiscs: {error}")
        left = KernelHost(REAL, None)
        ControlLoop(left, journal, {}, LoopSettings("h1", 1.0, 30.0, 20)).release("host released")
        assert not journal.entries
    left.look()
    assert left.knobs(vm, Family.NETWORK)[key] == NO_RATE
