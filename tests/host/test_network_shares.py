"""Shares of uplinks on this kernel: written, read back, interrupted at every step, and removed with all they made."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from manager.errors import HostError, VmVanished
from manager.host.doctor import network_check
from manager.host.doctor.check import Subject
from manager.host.knob_files import VmTarget
from manager.host.network_shares import BATCH, CRITICAL, HANDLE, OTHERS, WHOLE, NetworkShares, taps_with_qdiscs
from manager.host.registry import HostPaths
from manager.host.traffic_control import HtbClass, TrafficControl
from manager.model.finding import FindingStatus
from manager.model.knob_spec import KnobValue
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.network import ANOTHER, INCOMPLETE, LEAST_TURN, MOST_TURN, NO_RATE, USUAL_TURN, EgressGroup
from tests.host.conftest import REAL
from tests.host.uplink_wire import BATCH_ADDRESS, CRITICAL_ADDRESS, Wire, lacks, run, slow_wire

WEB, HOG = (VmTarget(name, None, ()) for name in ("web", "hog"))
ADDRESSES = {
    "web": frozenset({bytes.fromhex("525400e95101"), bytes.fromhex("525400e95103")}),
    "hog": frozenset({bytes.fromhex("525400e95102")}),
    "none": frozenset[bytes](),
}
ENOUGH_KBIT = 45_000


class Port:
    """A port of a bridge that may be divided."""

    def __init__(self, name: str) -> None:
        self.name, self.index = name, socket.if_nametoindex(name)
        self.shares = NetworkShares(REAL, ADDRESSES.__getitem__)

    def key(self, knob: Knob, vm: VmTarget | None = None) -> KnobKey:
        return KnobKey(vm.uuid if vm else HOST_UUID, knob, self.index)

    def write(self, knob: Knob, value: KnobValue, vm: VmTarget | None = None) -> KnobValue:
        return self.shares.write(self.key(knob, vm), value, vm)

    def held(self, knob: Knob, vm: VmTarget | None = None) -> KnobValue | None:
        self.shares.look()
        return self.shares.read(vm).get(self.key(knob, vm))

    def qdisc(self) -> str:
        shown = subprocess.run(["tc", "qdisc", "show", "dev", self.name], check=True, capture_output=True, text=True)
        return re.sub(r"direct_packets_stat \d+", "", shown.stdout)

    def divide(self) -> None:
        assert self.write(Knob.UPLINK_RATE, ENOUGH_KBIT) == ENOUGH_KBIT


@pytest.fixture
def port() -> Iterator[Port]:
    reason = lacks()
    if reason:
        pytest.skip(f"NOT TESTED: {reason}")
    name = f"eq{os.getpid() % 100_000}"
    run(f"ip link add {name}br type bridge")
    try:
        run(f"ip link add {name}u type veth peer name {name}w")
        try:
            run(f"ip link set {name}u up master {name}br")
            run(f"ip link set {name}w up")
            made = Port(f"{name}u")
            _try_htb(made)
            yield made
        finally:
            run(f"ip link del {name}u")
    finally:
        run(f"ip link del {name}br")


def _try_htb(port: Port) -> None:
    try:
        port.divide()
    except HostError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip(f"NOT TESTED: {error}")
        raise
    port.write(Knob.UPLINK_RATE, NO_RATE)


def test_an_uplink_is_divided_and_undone(port: Port) -> None:
    before = port.qdisc()
    uplink = port.shares.uplinks()[port.index]
    assert (uplink.name, uplink.physical, uplink.bridged, uplink.other_qdisc) == (port.name, False, True, "")
    assert uplink.critical_bytes is None
    assert port.held(Knob.UPLINK_RATE) == NO_RATE
    assert port.held(Knob.BATCH_EGRESS) is None and port.held(Knob.EGRESS_GROUP, WEB) is None
    port.divide()
    assert port.held(Knob.BATCH_EGRESS) == UNLIMITED
    assert port.write(Knob.BATCH_EGRESS, 20_000) == 20_000
    assert port.write(Knob.UPLINK_RATE, 90_000) == 90_000
    assert port.held(Knob.BATCH_EGRESS) == 20_000, "another rate leaves the ceiling"
    assert port.write(Knob.BATCH_EGRESS, UNLIMITED) == UNLIMITED
    assert port.shares.uplinks()[port.index].critical_bytes == 0
    assert port.write(Knob.UPLINK_RATE, NO_RATE) == NO_RATE
    assert port.qdisc() == before
    assert port.write(Knob.UPLINK_RATE, NO_RATE) == NO_RATE, "undone twice"


def test_vms_get_classes_by_the_addresses_of_all_their_interfaces(port: Port) -> None:
    port.divide()
    for vm, groups in ((WEB, (2, 1, 2, 0)), (HOG, (1, 0, 1))):
        assert port.held(Knob.EGRESS_GROUP, vm) == EgressGroup.OTHERS
        for group in groups:
            assert port.write(Knob.EGRESS_GROUP, group, vm) == group
    control = TrafficControl()
    filters = control.filters(port.index, HANDLE)
    assert {held.address for held in filters} == ADDRESSES["hog"]
    assert len(control.classes(port.index)) == len({WHOLE, OTHERS, CRITICAL, BATCH}) + 1
    control.close()
    assert port.shares.read(VmTarget("none", None, ())) == {}, "no address of it is known"
    port.shares.tidy(ADDRESSES["hog"])
    assert port.held(Knob.EGRESS_GROUP, HOG) == EgressGroup.BATCH
    port.shares.tidy(ADDRESSES["web"])
    assert port.held(Knob.EGRESS_GROUP, HOG) == EgressGroup.OTHERS, "the class of a VM that ended goes"


def test_what_is_the_same_as_before_is_not_parsed_again(port: Port) -> None:
    port.divide()
    control = TrafficControl()
    before = {held.handle: held for held in control.classes(port.index)}
    port.write(Knob.BATCH_EGRESS, 20_000)
    after = {held.handle: held for held in control.classes(port.index)}
    assert [handle for handle in after if after[handle] is not before[handle]] == [BATCH]
    assert after[BATCH].ceiling_kbit == 20_000
    port.write(Knob.UPLINK_RATE, NO_RATE)
    assert control.classes(port.index) == []
    control.close()


def test_an_interface_that_is_plugged_makes_a_vm_part_of_it(port: Port, monkeypatch: pytest.MonkeyPatch) -> None:
    port.divide()
    port.write(Knob.EGRESS_GROUP, EgressGroup.BATCH, HOG)
    monkeypatch.setitem(ADDRESSES, "hog", ADDRESSES["hog"] | {bytes(6)})
    assert port.held(Knob.EGRESS_GROUP, HOG) == EgressGroup.PARTLY
    assert EgressGroup.PARTLY in Knob.EGRESS_GROUP.spec.resets
    assert port.write(Knob.EGRESS_GROUP, EgressGroup.BATCH, HOG) == EgressGroup.BATCH


@pytest.mark.parametrize("made", ["root handle 7: tbf rate 1mbit burst 16kb latency 50ms", "root handle 1: htb"])
def test_a_qdisc_of_another_tool_stays(port: Port, made: str) -> None:
    run(f"tc qdisc add dev {port.name} {made}")
    before = port.qdisc()
    kind = made.split()[3]
    port.shares.look()
    assert port.shares.uplinks()[port.index].other_qdisc.startswith(f"{kind} ")
    assert port.held(Knob.UPLINK_RATE) == ANOTHER
    for value in (ENOUGH_KBIT, NO_RATE):
        with pytest.raises(HostError, match="of another tool") as raised:
            port.write(Knob.UPLINK_RATE, value)
        assert raised.value.errno == errno.EBUSY
    assert port.qdisc() == before


def test_what_another_tool_changes_shows(port: Port) -> None:
    port.divide()
    port.write(Knob.EGRESS_GROUP, EgressGroup.CRITICAL, WEB)
    handles = {held.parent: held.handle for held in TrafficControl().classes(port.index)}
    leaf, whole = (f"{handle >> 16:x}:{handle & 0xFFFF:x}" for handle in (handles[CRITICAL], WHOLE))
    run(f"tc class change dev {port.name} parent e951:10 classid {leaf} htb rate 1mbit")
    assert port.held(Knob.EGRESS_GROUP, WEB) == EgressGroup.CHANGED
    run(f"tc class change dev {port.name} parent e951: classid {whole} htb rate 7mbit")
    assert port.held(Knob.UPLINK_RATE) == 7000
    run(f"tc class change dev {port.name} parent e951:1 classid e951:20 htb rate 1mbit ceil 3mbit")
    assert port.held(Knob.BATCH_EGRESS) == 3000
    run(f"tc qdisc replace dev {port.name} root handle 7: tbf rate 1mbit burst 16kb latency 50ms")
    assert port.held(Knob.UPLINK_RATE) == ANOTHER and port.held(Knob.BATCH_EGRESS) is None
    run(f"tc qdisc del dev {port.name} root")
    assert port.held(Knob.UPLINK_RATE) == NO_RATE


class Failing(TrafficControl):
    """The ``fatal``-th request that changes something, and all after it, fail: before it is made, or ``after``."""

    def __init__(self, fatal: int, after: bool) -> None:
        super().__init__()
        self._left, self._after = fatal, after

    def _ask(self, *arguments: object, **named: object) -> None:  # type: ignore[override]
        self._left -= 1
        if self._left > 0:
            super()._ask(*arguments, **named)  # type: ignore[arg-type]
            return
        if self._left == 0 and self._after:
            super()._ask(*arguments, **named)  # type: ignore[arg-type]
        raise OSError(errno.EIO, "injected")


STEPS: tuple[tuple[Knob, int, VmTarget | None], ...] = (
    (Knob.UPLINK_RATE, ENOUGH_KBIT, None),
    (Knob.EGRESS_GROUP, EgressGroup.BATCH, WEB),
    (Knob.EGRESS_GROUP, EgressGroup.CRITICAL, WEB),
    (Knob.EGRESS_TURN, MOST_TURN, WEB),
    (Knob.BATCH_EGRESS, 30_000, None),
    (Knob.UPLINK_RATE, 20_000, None),
    (Knob.EGRESS_GROUP, EgressGroup.OTHERS, WEB),
    (Knob.BATCH_EGRESS, UNLIMITED, None),
    (Knob.UPLINK_RATE, NO_RATE, None),
)


@pytest.mark.parametrize("after", [False, True], ids=["refused", "done, but the answer is lost"])
def test_what_is_interrupted_at_any_step_is_recognised_and_done_again(port: Port, after: bool) -> None:
    before = port.qdisc()
    interruptions = 0
    for knob, value, vm in STEPS:
        fatal, held = 1, port.held(knob, vm)
        while True:
            port.shares = NetworkShares(REAL, ADDRESSES.__getitem__)
            port.shares._control = Failing(fatal, after)
            try:
                port.write(knob, value, vm)
            except HostError:
                interruptions += 1
            else:
                break
            port.shares = NetworkShares(REAL, ADDRESSES.__getitem__)  # another agent, which knows nothing
            now = port.held(knob, vm)
            assert now in {held, value} | knob.spec.resets, f"{knob} {value}, step {fatal}"
            fatal += 1
            if now == value:
                break
            port.write(knob, held, vm) if isinstance(held, int) and fatal % 2 else None
        port.shares = NetworkShares(REAL, ADDRESSES.__getitem__)
        assert port.write(knob, value, vm) == value
        assert port.held(knob, vm) == value
    assert port.qdisc() == before
    assert interruptions >= len(STEPS)


def test_uplinks_that_are_gone(port: Port) -> None:
    port.divide()
    gone = KnobKey(HOST_UUID, Knob.UPLINK_RATE, 2**30)
    for value in (ENOUGH_KBIT, NO_RATE):
        with pytest.raises(VmVanished):
            port.shares.write(gone, value, None)
    port.write(Knob.UPLINK_RATE, NO_RATE)
    for knob, vm in ((Knob.BATCH_EGRESS, None), (Knob.EGRESS_GROUP, WEB)):
        with pytest.raises(VmVanished):
            port.write(knob, 1, vm)
    with pytest.raises(HostError):
        port.write(Knob.UPLINK_RATE, -5)


def test_several_queues_come_back(port: Port) -> None:
    """The default of hardware with several queues."""
    name = f"{port.name}m"
    try:
        run(f"ip link add {name} numtxqueues 4 type ifb")
    except subprocess.CalledProcessError:
        pytest.skip("NOT TESTED: this kernel has no ifb")
    try:
        run(f"ip link set {name} up")
        several = Port(name)
        before = several.qdisc()
        assert before.startswith("qdisc mq 0: root"), before
        control = TrafficControl()
        control.add_htb(several.index, HANDLE, OTHERS & 0xFFFF)
        control.put_class(several.index, HtbClass(WHOLE, HANDLE, 1000, 1000, 0))
        assert several.qdisc().startswith("qdisc htb e951: root")
        control.delete_root(several.index, HANDLE)
        control.close()
        assert several.qdisc() == before
    finally:
        run(f"ip link del {name}")


def interface(folder: Path, name: str, index: int, *files: str, **texts: str) -> None:
    place = folder / "sys/class/net" / name
    for file in files:
        (place / file).mkdir(parents=True)
    place.mkdir(parents=True, exist_ok=True)
    for file, text in {"ifindex": f"{index}", **texts}.items():
        (place / file).write_text(text + "\n")


def test_which_interfaces_may_be_uplinks(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", 900_001, "device", "brport", speed="25000")
    interface(tmp_path, "eth1", 900_002, "device", speed="-1")
    interface(tmp_path, "vf0", 900_003, "device/physfn")
    interface(tmp_path, "vnet0", 900_004, "brport", tun_flags="0x1002")
    interface(tmp_path, "bond0", 900_005, "brport", speed="20000")
    interface(tmp_path, "virbr0", 900_006, "bridge")
    found = NetworkShares(HostPaths(tmp_path), ADDRESSES.__getitem__).uplinks()
    told = {uplink.name: (uplink.speed_kbit, uplink.physical, uplink.bridged) for uplink in found.values()}
    assert told == {
        "eth0": (25_000_000, True, True),
        "eth1": (None, True, False),
        "bond0": (20_000_000, False, True),
    }


def test_an_uplink_whose_driver_was_loaded_anew_is_seen_at_the_next_look(tmp_path: Path) -> None:
    """Under the index that it had there is nothing, which would be taken for what another tool did."""
    interface(tmp_path, "eth0", 900_001, "device", speed="25000")
    shares = NetworkShares(HostPaths(tmp_path), ADDRESSES.__getitem__)
    assert shares.read(None) == {KnobKey(HOST_UUID, Knob.UPLINK_RATE, 900_001): NO_RATE}
    (tmp_path / "sys/class/net/eth0/ifindex").write_text("900002\n")
    shares.look()
    assert shares.read(None) == {KnobKey(HOST_UUID, Knob.UPLINK_RATE, 900_002): NO_RATE}
    assert set(shares.uplinks()) == {900_002}


def subject(folder: Path, paths: HostPaths) -> Subject:
    return Subject(paths, "", folder / "lock", folder, "journal.db")


@pytest.mark.parametrize(
    ("lacking", "status", "words"),
    [
        (set(), FindingStatus.WORKS, "uplinks can be divided: eth0"),
        ({"fq_codel"}, FindingStatus.DEGRADED, "no fq_codel: flows of one VM wait for each other"),
        ({"u32", "fq_codel"}, FindingStatus.MISSING, "this kernel has no u32"),
        ({"HTB"}, FindingStatus.MISSING, "this kernel has no HTB"),
    ],
)
def test_what_the_doctor_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: set[str], status: FindingStatus, words: str
) -> None:
    interface(tmp_path, "eth0", 900_001, "device", "brport", speed="25000")
    monkeypatch.setattr(network_check, "_lacking", lambda _try: lacking)
    found = network_check.shares(subject(tmp_path, HostPaths(tmp_path)))
    assert found.status is status and words in found.detail


def test_the_doctor_tries_it_and_names_taps_with_qdiscs(port: Port, tmp_path: Path) -> None:
    before = port.qdisc()
    found = network_check.shares(subject(tmp_path, REAL))
    assert found.status in {FindingStatus.WORKS, FindingStatus.DEGRADED, FindingStatus.WARNING}, found
    assert port.qdisc() == before
    run(f"tc qdisc add dev {port.name} root handle 1: htb")
    interface(tmp_path, "vnet7", port.index, "brport", tun_flags="0x1002")
    assert taps_with_qdiscs(HostPaths(tmp_path)) == ["vnet7"]
    assert "vnet7 keep qdiscs of their own" in network_check.shares(subject(tmp_path, HostPaths(tmp_path))).detail


@pytest.fixture
def wire() -> Iterator[Wire]:
    reason = lacks()
    if reason:
        pytest.skip(f"NOT TESTED: {reason}")
    with slow_wire() as made:
        yield made


def test_a_flood_of_a_batch_vm_keeps_a_critical_one_waiting_no_more(wire: Wire) -> None:
    addresses: dict[str, frozenset[bytes]] = {
        name: frozenset({bytes.fromhex(address.replace(":", ""))})
        for name, address in (("web", CRITICAL_ADDRESS), ("hog", BATCH_ADDRESS))
    }
    reading: Callable[[str], frozenset[bytes]] = addresses.__getitem__
    port = Port(wire.uplink)
    port.shares = NetworkShares(REAL, reading)
    _try_htb(port)
    without = wire.round_trips_ms(2.0, flooded=True)
    port.divide()
    port.write(Knob.EGRESS_GROUP, EgressGroup.CRITICAL, WEB)
    port.write(Knob.EGRESS_GROUP, EgressGroup.BATCH, HOG)
    shared = wire.round_trips_ms(2.0, flooded=True)
    assert min(len(without), len(shared)) > 20
    assert shared[int(len(shared) * 0.9)] < without[int(len(without) * 0.9)] / 2
    assert (port.shares.uplinks()[port.index].critical_bytes or 0) == 0, "as of the last look"
    port.shares.look()
    assert (port.shares.uplinks()[port.index].critical_bytes or 0) > 100 * len(shared)
    assert INCOMPLETE in Knob.UPLINK_RATE.spec.resets


@pytest.mark.parametrize("large", [False, True], ids=["TCP", "packets of 60 KiB"])
@pytest.mark.parametrize("group", [EgressGroup.BATCH, EgressGroup.CRITICAL])
def test_vms_of_a_kind_share_an_uplink_as_their_turns(wire: Wire, group: EgressGroup, large: bool) -> None:
    """Beside the same with equal turns: the kernel sends by deficit round robin (net/sched/sch_htb.c)."""
    port = Port(wire.uplink)
    own = {"web": CRITICAL_ADDRESS, "hog": BATCH_ADDRESS}
    port.shares = NetworkShares(REAL, lambda vm: {bytes.fromhex(own[vm].replace(":", ""))})
    _try_htb(port)
    port.divide()
    for vm in (WEB, HOG):
        assert port.held(Knob.EGRESS_TURN, vm) is None, "there is no class"
        port.write(Knob.EGRESS_GROUP, group, vm)
        assert port.held(Knob.EGRESS_TURN, vm) == USUAL_TURN

    def ratio() -> float:
        with wire.flooded("critical", "batch", large=large):
            time.sleep(1.0)
            before = _sent_by_class(port)
            time.sleep(2.0)
            after = _sent_by_class(port)
        web, hog = (after[handle] - before[handle] for handle in sorted(after))
        return web / hog

    equal = ratio()
    assert port.write(Knob.EGRESS_TURN, 4 * USUAL_TURN, WEB) == 4 * USUAL_TURN
    weighted = ratio()
    print(f"sent in proportion {equal:.2f} with equal turns, {weighted:.2f} with turns of 4 to 1")
    assert 0.5 < equal < 2
    assert weighted > 2 * equal
    assert port.held(Knob.EGRESS_GROUP, WEB) == group, "its turn is no part of that"


def _sent_by_class(port: Port) -> dict[int, int]:
    """Bytes that VMs have sent, by the handles of their classes: the first VM's is the least."""
    control = TrafficControl()
    sent = {held.handle: held.sent_bytes for held in control.classes(port.index) if held.parent in {BATCH, CRITICAL}}
    control.close()
    return sent


def test_a_turn_ends_with_the_class(port: Port) -> None:
    port.divide()
    port.write(Knob.EGRESS_GROUP, EgressGroup.BATCH, WEB)
    for turn in (LEAST_TURN, MOST_TURN):
        assert port.write(Knob.EGRESS_TURN, turn, WEB) == turn
    port.write(Knob.EGRESS_GROUP, EgressGroup.CRITICAL, WEB)
    assert port.held(Knob.EGRESS_TURN, WEB) == MOST_TURN, "another class of the same VM"
    port.write(Knob.EGRESS_GROUP, EgressGroup.OTHERS, WEB)
    assert port.held(Knob.EGRESS_TURN, WEB) is None
    assert USUAL_TURN in Knob.EGRESS_TURN.spec.resets
    with pytest.raises(VmVanished):
        port.write(Knob.EGRESS_TURN, USUAL_TURN, WEB)
