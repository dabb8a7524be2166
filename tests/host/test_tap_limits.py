"""Limits of taps on this kernel: set, changed, interrupted at every step, and taken away; other tools' qdiscs stay."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host import policing
from manager.host.doctor import network_check
from manager.host.doctor.check import Subject
from manager.host.knob_files import VmTarget
from manager.host.netlink import RouteSocket
from manager.host.tap_limits import TapLimits
from manager.model.finding import FindingStatus
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.network import ANOTHER, INCOMPLETE, NO_RATE
from tests.host.conftest import REAL
from tests.host.uplink_wire import lacks, run

HOG = VmTarget("hog", None, ())
LIMIT_KBIT = 20_000


class Tap:
    """An interface that leads to a VM."""

    def __init__(self, name: str) -> None:
        self.name, self.index = name, socket.if_nametoindex(name)
        self.limits = TapLimits(lambda uuid: {self.index} if uuid == "hog" else ())
        self.key = KnobKey("hog", Knob.TAP_LIMIT, self.index)

    def held(self) -> KnobValue | None:
        self.limits.look()
        return self.limits.read(HOG).get(self.key)

    def write(self, kbit: int) -> KnobValue:
        return self.limits.write(self.key, kbit, HOG)

    def shown(self) -> str:
        """What tc shows of packets that come in."""
        words = ("qdisc", "show", "dev", self.name, "ingress"), ("filter", "show", "dev", self.name, "ingress")
        return "".join(
            subprocess.run(["tc", *each], check=True, capture_output=True, text=True).stdout for each in words
        )


@pytest.fixture
def tap() -> Iterator[Tap]:
    reason = lacks()
    if reason:
        pytest.skip(f"NOT TESTED: {reason}")
    name = f"eq{os.getpid() % 100_000}t"
    run(f"ip tuntap add dev {name} mode tap")
    try:
        yield Tap(name)
    finally:
        run(f"ip link del {name}")


@pytest.fixture
def limited(tap: Tap) -> Tap:
    """One that is limited, where this kernel can."""
    try:
        assert tap.write(LIMIT_KBIT) == LIMIT_KBIT
    except HostError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip(f"NOT TESTED: {error}")
        raise
    return tap


def test_what_a_kernel_lacks_is_told_and_nothing_is_left(tap: Tap) -> None:
    assert tap.held() == NO_RATE
    try:
        tap.write(LIMIT_KBIT)
    except HostError as error:
        assert error.errno == errno.EOPNOTSUPP
        assert "act_police" in str(error) or "sch_ingress" in str(error)
        assert tap.shown() == ""
        assert tap.held() == NO_RATE
    else:
        assert tap.held() == LIMIT_KBIT


def test_the_doctor_says_what_writing_one_does(tap: Tap, tmp_path: Path) -> None:
    found = network_check.tap_limit(Subject(REAL, "", tmp_path / "lock", tmp_path, "journal.db"))
    try:
        tap.write(LIMIT_KBIT)
    except HostError as error:
        assert found.status is FindingStatus.MISSING
        assert found.detail == str(error)
    else:
        assert found.status is FindingStatus.WORKS


def test_a_limit_is_set_changed_and_taken_away(limited: Tap) -> None:
    assert limited.held() == LIMIT_KBIT
    assert "rate 20Mbit" in limited.shown()
    assert limited.write(2 * LIMIT_KBIT) == 2 * LIMIT_KBIT == limited.held()
    assert limited.write(NO_RATE) == NO_RATE
    assert limited.shown() == ""
    assert limited.write(NO_RATE) == NO_RATE, "undone twice"
    assert limited.write(LIMIT_KBIT) == LIMIT_KBIT, "the action before may not be gone yet"


@pytest.mark.parametrize("made", ["ingress", "clsact"])
def test_what_another_tool_takes_in_stays(tap: Tap, made: str) -> None:
    run(f"tc qdisc add dev {tap.name} {made}")
    run(f"tc filter add dev {tap.name} ingress protocol all prio 7 u32 match u32 0 0 classid 1:1")
    before = tap.shown()
    assert tap.held() == ANOTHER
    for kbit in (LIMIT_KBIT, NO_RATE):
        with pytest.raises(HostError, match="another tool") as raised:
            tap.write(kbit)
        assert raised.value.errno == errno.EBUSY
    assert tap.shown() == before


def test_a_tap_of_another_vm_and_one_that_is_gone(tap: Tap) -> None:
    assert tap.limits.read(VmTarget("web", None, ())) == {}
    assert tap.limits.read(None) == {}
    with pytest.raises(VmVanished):
        tap.limits.write(tap.key._replace(uuid="web"), LIMIT_KBIT, VmTarget("web", None, ()))
    for kbit in (-1, 34_000_001):
        with pytest.raises(HostError, match="takes 0 to 34,000,000 kbit/s"):
            tap.write(kbit)


@pytest.mark.parametrize("step", ["add_ingress", "police", "change_limit"])
def test_what_a_crash_leaves_is_made_whole(tap: Tap, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step but the last, in whose place all ends."""
    real: Callable[..., None] = getattr(policing, step)

    def die(link: RouteSocket, interface: int, *rest: int) -> None:
        real(link, interface, *rest)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises((KeyboardInterrupt, HostError)) as raised:
        patched.setattr(policing, step, die)
        tap.write(LIMIT_KBIT)
    if raised.type is HostError:
        pytest.skip(f"NOT TESTED: {raised.value}")
    assert tap.held() in ({INCOMPLETE} if step == "add_ingress" else {LIMIT_KBIT})
    assert INCOMPLETE in Knob.TAP_LIMIT.spec.resets
    assert tap.write(NO_RATE) == NO_RATE
    assert tap.shown() == ""
