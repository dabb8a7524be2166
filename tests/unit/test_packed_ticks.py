"""Ticks that an agent packs are what it saw, and of what anybody else sends only such are taken."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.packed_records import pack_ticks, tick_times, unpack_ticks
from manager.model.packed_ticks import MOST_TEXT, MOST_TICKS, packs_of, read_pack
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.model.registration import Mode

START_S = 1.7e9
shares = st.floats(0, 1)
vcpus = st.builds(VcpuTick, index=st.integers(0, 9), used=shares, waited=shares, full=st.integers(0, 9))
vms = st.builds(
    VmTick,
    vm=st.sampled_from(["web", "db", "hog"]),
    cpu_share=shares,
    run_delay_share=st.floats(0, 100),
    weight=st.none() | st.integers(1, 262_144),
    mode=st.sampled_from(Mode),
    vcpu=st.none() | vcpus,
)
ticks = st.builds(
    TickRecord,
    time_s=st.integers(0, 150_000).map(lambda number_ms: START_S + number_ms / 1000),
    policy=st.sampled_from(["priority", "fair"]),
    mode=st.sampled_from(Mode),
    host_cpu_share=shares,
    vms=st.lists(vms, max_size=3, unique_by=lambda vm: vm.vm).map(tuple),
    power_watts=st.none() | st.floats(0, 500),
)


@given(st.lists(ticks, max_size=6, unique_by=lambda tick: tick.time_s))
def test_packs_are_read_back(some: list[TickRecord]) -> None:
    some.sort(key=lambda tick: tick.time_s)
    packs = [read_pack(text) for text in packs_of(some)]
    assert [tick for pack in packs for tick in pack.ticks()] == some
    assert all(pack.at_us[-1] - pack.at_us[0] < 60e6 for pack in packs)
    assert [at_us for pack in packs for at_us in pack.at_us] == [round(tick.time_s * 1e6) for tick in some]
    if some:
        assert packs[-1].shares == {vm.vm: (vm.cpu_share, vm.run_delay_share) for vm in some[-1].vms}


def tick(second: float, *names: str) -> TickRecord:
    return TickRecord(
        START_S + second,
        "priority",
        Mode.ENFORCE,
        0.5,
        tuple(VmTick(name, 0.25, 0.5, 100, Mode.ENFORCE, VcpuTick(0, 0.9, 0.1, 1)) for name in names),
    )


def test_a_pack_is_what_the_database_keeps() -> None:
    [text] = packs_of([tick(0, "web"), tick(5, "web", "hog")])
    packed = b64decode(text)
    assert tick_times(packed) == [(1_700_000_000_000_000, None), (1_700_000_005_000_000, None)]
    assert json.loads(unpack_ticks(packed)[0].body)["vms"][0]["vm"] == "web"


def test_of_two_ticks_of_the_same_moment_the_last_counts() -> None:
    [text] = packs_of([tick(0, "web"), tick(0, "hog")])
    assert read_pack(text).ticks() == [tick(0, "hog")]


Change = Callable[[dict[str, Any]], object]


def changed(change: Change) -> str:
    """A pack whose JSON was changed."""
    [text] = packs_of([tick(0, "web"), tick(5, "web", "hog")])
    plain = json.loads(zlib.decompress(b64decode(text)[1:], -15))
    change(plain)
    return encoded(json.dumps(plain, separators=(",", ":")).encode())


def encoded(plain: bytes) -> str:
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b64encode(b"\x02" + compressor.compress(plain) + compressor.flush()).decode()


def test_changed_changes_nothing_else() -> None:
    assert read_pack(changed(lambda plain: None)).ticks() == [tick(0, "web"), tick(5, "web", "hog")]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda plain: plain["at_us"].reverse(), "order of time"),
        (lambda plain: plain["at_us"].__setitem__(1, plain["at_us"][0]), "order of time"),
        (lambda plain: plain["at_us"].__setitem__(1, plain["at_us"][0] + 60_000_000), "of a minute or more"),
        (lambda plain: plain["at_us"].__setitem__(1, plain["at_us"][0] + 1), "those of its ticks"),
        (lambda plain: plain["at_us"].append(plain["at_us"][1] + 1), "not packed records"),
        (lambda plain: plain["at_us"].__setitem__(1, 10**30), "of a minute or more"),
        (lambda plain: plain["claimed_us"].__setitem__(0, 5), "claimed_us.0"),
        (lambda plain: plain["claimed_us"].pop(), "not packed records"),
        (lambda plain: plain["counts"].pop(), "as many of each column"),
        (lambda plain: plain["counts"].__setitem__(0, None), "counts.0"),
        (lambda plain: plain["counts"].__setitem__(0, 2), "4 VMs in each column"),
        (lambda plain: plain["counts"].__setitem__(0, -1), "counts.0"),
        (lambda plain: plain["ticks"][0].__setitem__("host_cpu_share", 2), "ticks.0.host_cpu_share"),
        (lambda plain: plain["ticks"][0].__setitem__("more", 2), "ticks.0.more"),
        (lambda plain: plain["ticks"][0].__setitem__("time_s", plain["ticks"][0].pop("at")), "ticks.0.at"),
        (lambda plain: plain["ticks"][0].__setitem__("vms", [{}]), "ticks.0.vms"),
        (lambda plain: plain["ticks"][0].pop("policy"), "ticks.0.policy"),
        (lambda plain: plain["vms"]["vm"][1].__setitem__(0, "\0"), "vms.vm.1.0"),
        (lambda plain: plain["vms"]["vm"].__setitem__(0, [0, 1, 2]), "vms.vm.0"),
        (lambda plain: plain["vms"]["weight"][1].__setitem__(0, 0), "vms.weight.1.0"),
        (lambda plain: plain["vms"]["cpu_share"][1].__setitem__(0, float("nan")), "vms.cpu_share.1.0"),
        (lambda plain: plain["vms"]["cpu_share"][1].pop(), "3 VMs in each column"),
        (lambda plain: plain["vms"].pop("mode"), "3 VMs in each column"),
        (lambda plain: plain["vms"].__setitem__("more", [None, [1, 2, 3]]), "vms.more"),
        (lambda plain: plain["vms"]["vcpu"].__setitem__(0, [0, 1]), "as many vCPUs as places"),
        (lambda plain: plain["vms"]["vcpu"].__setitem__(0, [0, 2, 1]), "one after the other"),
        (lambda plain: plain["vms"]["vcpu"].__setitem__(0, [0, 1, 3]), "below 3"),
        (lambda plain: plain["vms"]["vcpu"][1][0].__setitem__("used", 2), "vms.vcpu.1.0.used"),
        (lambda plain: plain.pop("vms"), "vms"),
        (lambda plain: plain.__setitem__("more", 1), "more"),
    ],
)
def test_what_is_no_ticks_of_a_minute_is_not_taken(change: Change, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_pack(changed(change))


def test_neither_is_what_is_no_pack() -> None:
    older = pack_ticks([])
    for packed in (b"", b"\x02", b"\x01" + older[1:], b"\x09", older, b"\x02" + b"\0" * 99):
        with pytest.raises(ValueError):
            read_pack(b64encode(packed).decode())
    for text in ("A", "A===", "Ag==\n"):
        with pytest.raises(ValueError):
            read_pack(text)


def test_times_are_not_there_twice() -> None:
    plain = zlib.decompress(b64decode(changed(lambda plain: None))[1:], -15)
    other = plain[:-1] + b',"at_us":[1700000000000000,1700000006000000]}'
    with pytest.raises(ValueError, match="there twice"):
        read_pack(encoded(other))


def test_neither_more_ticks_nor_more_text_than_a_report_may_have() -> None:
    [many] = packs_of([tick(number / 10) for number in range(MOST_TICKS + 1)])
    with pytest.raises(ValueError, match="at_us"):
        read_pack(many)
    bomb = encoded(b" " * 50 * MOST_TEXT)
    assert len(bomb) < MOST_TEXT
    with pytest.raises(ValueError, match="cut off"):
        read_pack(bomb)
