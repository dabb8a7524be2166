"""What a batch VM sends at its tap is held to its limit by this kernel, which has what that takes."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from manager.host import policing
from manager.host.knob_files import VmTarget
from manager.host.netlink import RouteSocket
from manager.host.tap_limits import TapLimits
from manager.model.knobs import Knob, KnobKey
from manager.model.network import INCOMPLETE, NO_RATE
from tests.kernel.inside.cgroup_v2.modules import load_module

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x2, 0x1000
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
NAME = "vnet7"
HOG = VmTarget("hog", None, ())
FRAME = bytes.fromhex("ffffffffffff 525400e95102 88b5") + bytes(1386)
LIMIT_KBIT = 4_000
SENDING_S = 1.0


@dataclass
class Tap:
    """A tap as QEMU holds it: what is written is what the VM sends."""

    descriptor: int
    index: int
    limits: TapLimits

    @property
    def key(self) -> KnobKey:
        return KnobKey("hog", Knob.TAP_LIMIT, self.index)

    def write(self, kbit: int) -> object:
        return self.limits.write(self.key, kbit, HOG)

    def held(self) -> object:
        self.limits.look()
        return self.limits.read(HOG)[self.key]

    def passed_mbit(self) -> float:
        """Of what the VM sends as fast as it can, how much comes through, in Mbit/s."""
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)) as bridge:
            bridge.bind((NAME, 0x88B5))
            bridge.setblocking(False)
            passed, began_s = 0, time.monotonic()
            while time.monotonic() - began_s < SENDING_S:
                os.write(self.descriptor, FRAME)
                try:
                    passed += len(bridge.recv(2048))
                except BlockingIOError:
                    continue
            return passed * 8 / (time.monotonic() - began_s) / 1e6


@pytest.fixture(scope="module")
def opened() -> Iterator[Tap]:
    for name in ("tun", "sch_ingress", "cls_u32", "act_police"):
        load_module(name)
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", NAME.encode(), IFF_TAP | IFF_NO_PI))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH22x", NAME.encode(), IFF_UP))
    index = socket.if_nametoindex(NAME)
    yield Tap(descriptor, index, TapLimits(lambda uuid: {index} if uuid == "hog" else ()))
    os.close(descriptor)


@pytest.fixture
def tap(opened: Tap) -> Iterator[Tap]:
    assert opened.held() == NO_RATE
    yield opened
    opened.write(NO_RATE)


def test_a_vm_sends_no_more_than_its_limit(tap: Tap) -> None:
    free_mbit = tap.passed_mbit()
    assert tap.write(LIMIT_KBIT) == LIMIT_KBIT
    limited_mbit = tap.passed_mbit()
    tap.write(NO_RATE)
    again_mbit = tap.passed_mbit()
    print(f"free {free_mbit:.1f}, limited {limited_mbit:.1f}, again {again_mbit:.1f} Mbit/s")
    assert free_mbit > 10 and again_mbit > 10
    assert limited_mbit < 6, "4 Mbit/s, and what passes at once"


def test_a_limit_is_set_changed_and_taken_away(tap: Tap) -> None:
    for kbit in (LIMIT_KBIT, 34_000_000, 1, NO_RATE, NO_RATE, LIMIT_KBIT):
        assert tap.write(kbit) == kbit == tap.held()


@pytest.mark.parametrize("step", ["add_ingress", "police", "change_limit"])
def test_what_a_crash_leaves_is_made_whole(tap: Tap, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of the steps."""
    real = getattr(policing, step)

    def die(link: RouteSocket, interface: int, *kbit: int) -> None:
        real(link, interface, *kbit)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(policing, step, die)
        tap.write(LIMIT_KBIT)
    assert tap.held() == (INCOMPLETE if step == "add_ingress" else LIMIT_KBIT)
    assert tap.write(2 * LIMIT_KBIT) == 2 * LIMIT_KBIT == tap.held()
