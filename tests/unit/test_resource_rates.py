"""Rates of memory, disks and network: the arithmetic, counters that go back, and what is worth a record."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.resource_means import mean_resources
from manager.control.resource_rates import (
    MOST_RECORDED,
    NOTABLE_BYTES_PER_S,
    CountedVm,
    Round,
    is_notable,
    recorded,
    resource_use,
)
from manager.model.fields import adapter_of, json_of
from manager.model.host import VmInstance
from manager.model.resource_use import (
    ALL_DISKS,
    DeviceCounters,
    DeviceUse,
    DiskCounters,
    DiskUse,
    HostCounters,
    LinkCounters,
    LinkUse,
    PcpuPower,
    Pressures,
    ResourceUse,
    Signal,
    Uplink,
    VirtualDiskCounters,
    VirtualDisksSeen,
    VirtualDiskUse,
    VmCounters,
    VmResources,
    WorkCounters,
)

WEB = VmInstance("u-web", "web", 101, 1)
THEN = VmCounters(
    100.0,
    Pressures(1_000_000, 2_000_000, 3_000_000),
    major_faults=40,
    refaults=500,
    resident_bytes=1 << 30,
    disks={"vda": DiskCounters(10_000, 20_000, 30)},
    vhost_ns=5_000_000_000,
)
NOW = VmCounters(
    104.0,
    Pressures(3_000_000, 2_400_000, 3_000_000),
    major_faults=60,
    refaults=700,
    resident_bytes=1 << 29,
    disks={"vda": DiskCounters(50_000, 20_000, 38)},
    vhost_ns=7_000_000_000,
)
HOST_THEN = HostCounters(
    100.0,
    Pressures(0, 0, 0),
    {"vda": DeviceCounters(0, 100, 1000, 2000), "vdb": DeviceCounters(0, 1, 1, 1)},
    {7: LinkCounters(1000, 2000, 10, 20, 0), 2: LinkCounters(0, 0, 0, 0, 0)},
    {7: "vnet3", 2: "eth0"},
    (Uplink(2, 1.25e8),),
)
HOST_NOW = HostCounters(
    104.0,
    Pressures(400_000, 0, 2_000_000),
    {"vda": DeviceCounters(40_000, 120, 1400, 4000), "vdb": DeviceCounters(0, 1, 1, 1)},
    {7: LinkCounters(5000, 10_000, 14, 28, 4), 2: LinkCounters(8000, 4000, 8, 4, 0)},
    {7: "vnet3", 2: "eth0"},
    (Uplink(2, 1.25e8),),
)


def rounds(now: VmCounters = NOW, then: VmCounters = THEN) -> tuple[Round, Round]:
    taps = {"web": frozenset({7})}
    return Round({"web": CountedVm(WEB, now)}, taps, HOST_NOW), Round({"web": CountedVm(WEB, then)}, taps, HOST_THEN)


def test_rates_of_a_vm_are_those_of_its_own_two_readings() -> None:
    use = resource_use(*rounds())
    assert use.vms == (
        VmResources(
            "web",
            cpu_pressure=0.5,
            memory_pressure=0.1,
            io_pressure=0.0,
            major_faults_per_s=5.0,
            refaults_per_s=50.0,
            resident_bytes=1 << 29,
            growth_bytes_per_s=0.0,
            disks=(DiskUse("vda", 10_000.0, 0.0, 2.0),),
            interfaces=(LinkUse("vnet3", 2000.0, 1000.0, 2.0, 1.0, 1.0),),
            vhost_pcpus=0.5,
        ),
    )


def test_rates_of_the_host() -> None:
    use = resource_use(*rounds())
    assert use.disks == (DeviceUse("vda", 10_000.0, 5.0, 0.5, 20.0), DeviceUse("vdb", 0.0, 0.0, 0.0, None))
    assert use.uplinks == (LinkUse("eth0", 2000.0, 1000.0, 2.0, 1.0, 0.0, 1.25e8),), "as the host itself sees it"
    assert (use.cpu_pressure, use.memory_pressure, use.io_pressure) == (0.1, 0.0, 0.5)
    assert use.missing == ()


BARE = VmCounters(104.0)


@pytest.mark.parametrize(
    ("counters", "host", "missing"),
    [
        (NOW, HOST_NOW, ()),
        (NOW._replace(pressures=Pressures()), HOST_NOW, (Signal.PRESSURE,)),
        (NOW._replace(refaults=None), HOST_NOW, (Signal.REFAULTS,)),
        (NOW._replace(disks={}), HOST_NOW, ()),
        (NOW._replace(disks=None), HOST_NOW._replace(disks=None), (Signal.DISK, Signal.DISK_LATENCY)),
        (NOW, HOST_NOW._replace(links=None), (Signal.NETWORK,)),
        (NOW, None, (Signal.DISK_LATENCY, Signal.NETWORK)),
        (BARE, None, tuple(Signal)),
    ],
)
def test_what_is_not_counted_is_missing_and_has_no_rate(
    counters: VmCounters, host: HostCounters | None, missing: tuple[Signal, ...]
) -> None:
    now, then = rounds(counters, counters._replace(monotonic_s=100.0))
    use = resource_use(replace(now, host=host), then)
    assert use.missing == missing
    assert len(use.vms) == 1


WORK = WorkCounters(1_000_000, 2_000_000, 500)


@pytest.mark.parametrize(
    ("work", "rates"),
    [
        (WorkCounters(9_000_000, 6_000_000, 4500), (2_000_000.0, 0.5, 1000.0)),
        (WORK, (0.0, None, 0.0)),
        (WorkCounters(900_000, 6_000_000, 4500), (None, None, None)),
        (None, (None, None, None)),
    ],
)
def test_cycles_per_instruction(work: WorkCounters | None, rates: tuple[float | None, ...]) -> None:
    [vm] = resource_use(*rounds(NOW._replace(work=work), THEN._replace(work=WORK))).vms
    assert (vm.instructions_per_s, vm.cycles_per_instruction, vm.cache_misses_per_s) == rates


def test_of_no_vm_nothing_is_missing() -> None:
    assert resource_use(Round(), Round()) == ResourceUse()


@pytest.mark.parametrize(
    "other",
    [
        WEB._replace(pid=102),
        WEB._replace(start_ticks=2),
    ],
)
def test_a_vm_that_restarted_meanwhile_has_no_rates(other: VmInstance) -> None:
    now, then = rounds()
    assert resource_use(replace(now, vms={"web": CountedVm(other, NOW)}), then).vms == ()


def test_a_vm_read_for_the_first_time_has_none() -> None:
    now, then = rounds()
    assert resource_use(now, replace(then, vms={})).vms == ()


def test_a_clock_that_stands_still_gives_none() -> None:
    now, then = rounds(NOW._replace(monotonic_s=100.0))
    use = resource_use(replace(now, host=HOST_NOW._replace(monotonic_s=100.0)), then)
    assert (use.vms, use.disks, use.uplinks) == ((), (), ())


def test_a_disk_that_is_counted_from_now_on_has_no_rate_of_all_its_past() -> None:
    """As where the kernel begins to count by device what was counted for all disks together."""
    now, then = rounds(THEN._replace(monotonic_s=104.0), THEN._replace(disks={ALL_DISKS: DiskCounters(0, 0, None)}))
    [vm] = resource_use(now, then).vms
    assert vm.disks == ()


def test_an_interface_that_is_renamed_keeps_its_counters() -> None:
    now, then = rounds()
    assert now.host is not None
    renamed = replace(now, host=now.host._replace(names={7: "web-lan", 2: "eth0"}))
    [vm] = resource_use(renamed, then).vms
    assert [(link.interface, link.sent_bytes_per_s) for link in vm.interfaces] == [("web-lan", 1000.0)]


def test_an_interface_whose_name_went_with_it_is_told_by_its_index() -> None:
    now, then = rounds()
    assert now.host is not None
    [vm] = resource_use(replace(now, host=now.host._replace(names={})), then).vms
    assert [link.interface for link in vm.interfaces] == ["interface 7"]


@given(
    st.integers(0, 10**12),
    st.integers(0, 10**12),
    st.sampled_from(["major_faults", "refaults", "vhost_ns"]),
)
def test_a_counter_gives_its_rate_or_none_where_it_went_back(past: int, value: int, name: str) -> None:
    now, then = rounds(NOW._replace(**{name: value}), THEN._replace(**{name: past}))
    [vm] = resource_use(now, then).vms
    rates = {"major_faults": vm.major_faults_per_s, "refaults": vm.refaults_per_s, "vhost_ns": vm.vhost_pcpus}
    wanted = None if value < past else (value - past) / 4 / (1e9 if name == "vhost_ns" else 1)
    assert rates[name] == (None if wanted is None else pytest.approx(wanted))


@given(st.tuples(*[st.integers(0, 10**9)] * 5), st.tuples(*[st.integers(0, 10**9)] * 5))
def test_no_interface_has_a_negative_rate(past: tuple[int, ...], value: tuple[int, ...]) -> None:
    now, then = rounds()
    assert now.host is not None and then.host is not None
    after = replace(now, host=now.host._replace(links={7: LinkCounters(*value)}))
    before = replace(then, host=then.host._replace(links={7: LinkCounters(*past)}))
    [vm] = resource_use(after, before).vms
    assert bool(vm.interfaces) == all(a >= b for a, b in zip(value, past, strict=True))


@given(st.integers(-(10**7), 10**7))
def test_pressure_is_a_part_of_the_time(waited_us: int) -> None:
    pressed = NOW._replace(pressures=Pressures(None, 2_000_000 + waited_us, None))
    [vm] = resource_use(*rounds(pressed)).vms
    assert (vm.cpu_pressure, vm.io_pressure) == (None, None)
    assert vm.memory_pressure == (None if waited_us < 0 else min(waited_us / 4e6, 1.0))


@given(st.floats(0.5, 100.0), st.integers(1, 50))
def test_twice_the_time_with_twice_the_work_is_the_same_rate(seconds: float, factor: int) -> None:
    def later(elapsed_s: float, times: int) -> VmCounters:
        assert THEN.disks is not None and THEN.major_faults is not None
        disk = THEN.disks["vda"]
        return THEN._replace(
            monotonic_s=100.0 + elapsed_s,
            major_faults=THEN.major_faults + 60 * times,
            disks={
                "vda": DiskCounters(disk.read_bytes + 1000 * times, disk.written_bytes, (disk.requests or 0) + times)
            },
        )

    [one] = resource_use(*rounds(later(seconds, 1))).vms
    [many] = resource_use(*rounds(later(seconds * factor, factor))).vms
    assert many.major_faults_per_s == pytest.approx(one.major_faults_per_s)
    assert many.disks[0].bytes_per_s == pytest.approx(one.disks[0].bytes_per_s)


def busy(name: str, bytes_per_s: float) -> VmResources:
    return VmResources(name, disks=(DiskUse("vda", bytes_per_s, 0.0),))


LINK = LinkUse("vnet0", 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("use", "notable"),
    [
        (VmResources("a"), False),
        (VmResources("a", cpu_pressure=1.0, resident_bytes=1 << 40, vhost_pcpus=3.0), False),
        (VmResources("a", memory_pressure=0.01), True),
        (VmResources("a", io_pressure=0.02), True),
        (VmResources("a", memory_pressure=0.009, io_pressure=0.009, major_faults_per_s=9.0), False),
        (VmResources("a", major_faults_per_s=10.0), True),
        (VmResources("a", refaults_per_s=10.0), True),
        (VmResources("a", growth_bytes_per_s=NOTABLE_BYTES_PER_S), True),
        (busy("a", NOTABLE_BYTES_PER_S), True),
        (busy("a", NOTABLE_BYTES_PER_S / 2), False),
        (VmResources("a", disks=(DiskUse("vda", 0.0, 4096.0, 60.0),)), True),
        (VmResources("a", interfaces=(replace(LINK, sent_packets_per_s=1000.0),)), True),
        (VmResources("a", interfaces=(replace(LINK, received_bytes_per_s=5e5, sent_bytes_per_s=5e5),)), True),
        (VmResources("a", interfaces=(replace(LINK, dropped_packets_per_s=1.0),)), True),
    ],
)
def test_what_is_notable(use: VmResources, notable: bool) -> None:
    assert is_notable(use) is notable


def test_records_have_critical_vms_first_then_those_that_use_most() -> None:
    many = [busy(f"vm-{number:03}", NOTABLE_BYTES_PER_S * (number + 1)) for number in range(MOST_RECORDED + 10)]
    kept = recorded(ResourceUse(tuple(many)), critical={"vm-000"})
    names = [vm.vm for vm in kept.vms]
    assert len(names) == MOST_RECORDED
    assert names == sorted(names)
    assert "vm-000" in names and "vm-001" not in names


@pytest.mark.parametrize(("latency_ms", "kept"), [(4.9, []), (5.0, ["web"])])
def test_what_a_critical_vm_does_with_a_slow_disk_is_recorded_however_little(
    latency_ms: float, kept: list[str]
) -> None:
    disks = (DeviceUse("vda", 1000.0, 2.0, 0.1, latency_ms),)
    use = recorded(ResourceUse((busy("hog", 500.0), busy("web", 500.0)), disks), critical={"web"})
    assert [vm.vm for vm in use.vms] == kept
    assert len(use.disks) == len(kept)


def test_records_are_short() -> None:
    quiet, web = resource_use(*rounds()).vms[0], busy("web", 1_234_567.0)
    use = ResourceUse(
        (
            replace(quiet, vm="quiet", memory_pressure=0.0, major_faults_per_s=0.0, refaults_per_s=0.0, interfaces=()),
            web,
        ),
        (DeviceUse("vda", 1_234_567.0, 5.0, 0.98765, 1.23456), DeviceUse("vdb", 10.0, 0.1, 0.0)),
        (LINK,),
        memory_pressure=0.123456,
    )
    written = json_of(recorded(use)).decode()
    assert written == (
        '{"vms":[{"vm":"web","disks":[{"device":"vda","read_bytes_per_s":1230000.0,"written_bytes_per_s":0.0}]}],'
        '"disks":[{"device":"vda","bytes_per_s":1230000.0,"requests_per_s":5.0,"busy":0.988,"latency_ms":1.23}],'
        '"memory_pressure":0.123}'
    )
    assert adapter_of(ResourceUse).validate_json(written) == recorded(use)
    assert json_of(recorded(ResourceUse())) == b"{}"


RATES = st.floats(0, 1e14, allow_subnormal=False)


@given(st.lists(st.tuples(RATES, RATES, RATES), max_size=8))
def test_a_record_says_what_it_was_made_of_to_three_digits(values: list[tuple[float, float, float]]) -> None:
    vms = tuple(
        VmResources(f"vm{number}", disks=(DiskUse("vda", read, written, requests),))
        for number, (read, written, requests) in enumerate(values)
    )
    kept = recorded(ResourceUse(vms))
    assert {vm.vm for vm in kept.vms} == {vm.vm for vm in vms if is_notable(vm)}
    for vm in kept.vms:
        [disk] = vm.disks or [DiskUse("vda", 0.0, 0.0)]
        before = next(each for each in vms if each.vm == vm.vm).disks[0]
        assert math.isclose(disk.read_bytes_per_s, before.read_bytes_per_s, rel_tol=0.006)
    assert recorded(kept) == kept, "to keep it again changes nothing"


def test_power_of_the_pcpus_that_a_vm_is_pinned_to() -> None:
    now, then = rounds()
    asleep = {0: PcpuPower(100, 5_000, 1_000_000, 4_000_000), 1: PcpuPower(50, 1_000, 3_000_000, 4_000_000)}
    woken = {0: PcpuPower(300, 25_000, 1_000_000, 4_000_000), 1: PcpuPower(10, 10, 3_000_000, 4_000_000)}
    pinned = replace(now, host=HOST_NOW._replace(pcpus=woken), pins={"web": {0, 1, 7}})
    [web] = resource_use(pinned, replace(then, host=HOST_THEN._replace(pcpus=asleep))).vms
    assert (web.resume_us, web.clock_part) == (100.0, 0.5), "a counter that went back does not count"
    [web] = resource_use(replace(pinned, pins={}), then).vms
    assert (web.resume_us, web.clock_part) == (None, None)
    never = replace(now, host=HOST_NOW._replace(pcpus=asleep), pins={"web": {0}})
    [web] = resource_use(never, replace(then, host=HOST_THEN._replace(pcpus=asleep))).vms
    assert web.resume_us is None, "it never slept"


def test_sleepy_pcpus_of_critical_vms_are_recorded() -> None:
    vms = tuple(
        VmResources(name, resume_us=us, clock_part=part)
        for name, us, part in (("a", 50.0, 1.0), ("b", 5.0, 0.5), ("c", 5.0, 1.0), ("d", 50.0, 0.5))
    )
    assert [vm.vm for vm in recorded(ResourceUse(vms), {"a", "b", "c"}).vms] == ["a", "b"]


def looks(*counted: tuple[float, dict[str, tuple[int, int]]]) -> tuple[VirtualDisksSeen, VirtualDisksSeen]:
    """At the disks of a VM, as (requests, nanoseconds)."""
    then, now = (
        VirtualDisksSeen(at_s, {name: VirtualDiskCounters(*counters) for name, counters in disks.items()})
        for at_s, disks in counted
    )
    return then, now


def looked_at(now: Round, seen: tuple[VirtualDisksSeen, VirtualDisksSeen]) -> Round:
    """With these looks at the disks of each VM."""
    vms = {
        name: counted._replace(counters=counted.counters._replace(virtual_disks=seen))
        for name, counted in now.vms.items()
    }
    return replace(now, vms=vms)


@pytest.mark.parametrize(
    ("then", "after", "found"),
    [
        ((100, 10**9), (400, 4 * 10**9), [VirtualDiskUse("vda", 10.0, 10.0)]),
        ((100, 10**9), (100, 10**9), [VirtualDiskUse("vda", 0.0, None)]),
        ((100, 10**9), (5, 10**6), []),  # the VM, or its counters, began anew
        ((100, 10**9), (400, 5 * 10**8), []),
    ],
)
def test_latency_of_the_disks_of_a_vm(
    then: tuple[int, int], after: tuple[int, int], found: list[VirtualDiskUse]
) -> None:
    now, before = rounds()
    seen = looks((64.0, {"vda": then}), (94.0, {"vda": after, "vdb": (1, 1)}))
    assert list(resource_use(looked_at(now, seen), before).vms[0].virtual_disks) == found


def test_what_was_seen_of_disks_long_ago_is_not_told() -> None:
    now, before = rounds()
    end_s = now.vms[min(now.vms)].counters.monotonic_s
    seen = looks((end_s - 95, {"vda": (100, 10**9)}), (end_s - 65, {"vda": (400, 4 * 10**9)}))
    assert not resource_use(looked_at(now, seen), before).vms[0].virtual_disks


def test_one_look_alone_says_nothing_of_disks() -> None:
    now, before = rounds()
    seen = looks((40.0, {"vda": (400, 10**9)}), (40.0, {"vda": (400, 10**9)}))
    assert not resource_use(looked_at(now, seen), before).vms[0].virtual_disks


def test_slow_disks_of_critical_vms_are_recorded_and_idle_ones_left_out() -> None:
    slow, quick, idle = (VirtualDiskUse("vda", 2.0, ms) for ms in (80.0, 1.0, None))
    vms = (
        VmResources("a", virtual_disks=(slow, VirtualDiskUse("vdb", 0.0))),
        VmResources("b", virtual_disks=(quick,)),
        VmResources("c", virtual_disks=(slow,)),
        VmResources("d", virtual_disks=(replace(idle, requests_per_s=0.0),)),
    )
    kept = recorded(ResourceUse(vms), {"a", "b", "d"})
    assert [vm.vm for vm in kept.vms] == ["a"]
    assert kept.vms[0].virtual_disks == (slow,)
    assert kept.vms[0].slowest_disk == slow and vms[3].slowest_disk is None


def test_the_mean_latency_of_a_disk_is_that_of_all_requests() -> None:
    rounds_of = [
        (ResourceUse((VmResources("a", virtual_disks=(VirtualDiskUse("vda", requests, ms),)),)), 1)
        for requests, ms in ((10.0, 1.0), (30.0, 5.0))
    ]
    mean = mean_resources(rounds_of)
    assert mean is not None
    assert mean.vms[0].virtual_disks == (VirtualDiskUse("vda", 20.0, 4.0),)
