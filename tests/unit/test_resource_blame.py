"""Whether memory, disk or network holds up an application, and who is behind it: a table, and what holds for all."""

from __future__ import annotations

from dataclasses import fields, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.blame import blame
from manager.control.resource_blame import blame_resources, looked_at
from manager.control.resource_means import mean_resources
from manager.control.violation_case import Case, HostTicks
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Mode, VmClass
from manager.model.resource_use import (
    ALL_DISKS,
    DeviceUse,
    DiskUse,
    LinkUse,
    ResourceUse,
    Signal,
    VirtualDiskUse,
    VmResources,
)
from manager.model.verdict import VerdictKind

MB = 1e6
PRESSED = VmResources(
    "web", memory_pressure=0.3, major_faults_per_s=200.0, refaults_per_s=500.0, resident_bytes=1 << 30
)
WAITS = VmResources("web", io_pressure=0.4, disks=(DiskUse("vda", 0.5 * MB, 0.1 * MB, 20.0),))
READS = replace(WAITS, io_pressure=None)
HOG = VmResources("hog", disks=(DiskUse("vda", 90 * MB, 0.0, 900.0),))
SLOW, FAST = DeviceUse("vda", 100 * MB, 1000.0, 0.99, 40.0), DeviceUse("vda", 1 * MB, 60.0, 0.1, 1.0)


def traffic(vm: str, megabytes: float, dropped: float = 0.0) -> VmResources:
    link = LinkUse(f"tap-{vm}", megabytes * MB / 2, megabytes * MB / 2, megabytes * 500, megabytes * 500, dropped)
    return VmResources(vm, interfaces=(link,))


def uplink(megabytes: float, speed: float | None = 125 * MB, dropped: float = 0.0) -> LinkUse:
    return LinkUse("eth0", 0.0, megabytes * MB, 0.0, megabytes * 1000, dropped, speed)


def grows(vm: str, megabytes_per_s: float) -> VmResources:
    return VmResources(vm, growth_bytes_per_s=megabytes_per_s * MB)


def use(*vms: VmResources, **host: object) -> ResourceUse:
    return ResourceUse(tuple(sorted(vms, key=lambda vm: vm.vm)), **host)  # type: ignore[arg-type]


QUIET = use()


def ticks(*rounds: ResourceUse | None) -> tuple[TickRecord, ...]:
    """Each with VMs that use a little CPU time."""
    vms = tuple(VmTick(vm, 0.1, 0.0, 100, Mode.ENFORCE) for vm in ("db", "hog", "web"))
    return tuple(
        TickRecord(5.0 * number, "auto", Mode.ENFORCE, 0.3, vms, resources) for number, resources in enumerate(rounds)
    )


def case(during: ResourceUse | None, before: ResourceUse | None = QUIET, rounds: int = 6) -> Case:
    host = HostTicks("kvm1", 4, True, ticks(*[before] * rounds), ticks(*[during] * rounds))
    classes = {"web": VmClass.CRITICAL, "db": VmClass.CRITICAL, "hog": VmClass.BATCH}
    return Case(
        "shop", frozenset({"web"}), (host,), classes=classes, vcpus={"web": 2}, limits_pcpus={"web": 2.0}, target_ms=1.0
    )


SHORT: dict[str, object] = {"memory_pressure": 0.2}
CASES: list[tuple[Case, VerdictKind, str | None]] = [
    # Memory: of the whole host, where one VM grew, or is short of it itself; or nobody in particular.
    (case(use(PRESSED, grows("hog", 50), **SHORT)), VerdictKind.MEMORY, "hog"),
    (case(use(PRESSED, grows("hog", 50), grows("db", 10), **SHORT)), VerdictKind.MEMORY, "hog"),
    (case(use(PRESSED, grows("hog", 50), grows("db", 40), grows("b2", 40), **SHORT)), VerdictKind.MEMORY, None),
    (case(use(PRESSED, VmResources("hog", refaults_per_s=900.0), **SHORT)), VerdictKind.MEMORY, "hog"),
    (case(use(PRESSED, grows("hog", 0.5), **SHORT)), VerdictKind.MEMORY, None),
    (case(use(PRESSED, **SHORT)), VerdictKind.MEMORY, None),
    # Of its own group alone: nobody else is behind it.
    (case(use(PRESSED, grows("hog", 50))), VerdictKind.MEMORY, None),
    (case(use(PRESSED, grows("hog", 50), memory_pressure=0.03)), VerdictKind.MEMORY, None),
    # Without PSI faults tell, and whether the host is short of memory is not known: who grew is named.
    (
        case(use(replace(PRESSED, memory_pressure=None), grows("hog", 50), missing=(Signal.PRESSURE,))),
        VerdictKind.MEMORY,
        "hog",
    ),
    (case(use(replace(PRESSED, major_faults_per_s=0.0, refaults_per_s=None))), VerdictKind.MEMORY, None),
    (
        case(use(replace(PRESSED, memory_pressure=0.04, refaults_per_s=50.0, major_faults_per_s=40.0))),
        VerdictKind.NOT_CPU,
        None,
    ),
    # Memory before disks: pages that are read again load them.
    (case(use(replace(PRESSED, io_pressure=0.5), HOG, disks=(SLOW,))), VerdictKind.MEMORY, None),
    # Disks: pressure, or latency that rose, and who does most there.
    (case(use(WAITS, HOG, disks=(SLOW,))), VerdictKind.DISK, "hog"),
    (case(use(READS, HOG, disks=(SLOW,)), use(READS, disks=(FAST,))), VerdictKind.DISK, "hog"),
    (case(use(READS, HOG, disks=(SLOW,)), None), VerdictKind.DISK, "hog"),
    (case(use(WAITS, HOG, disks=(SLOW,)), use(WAITS, HOG, disks=(SLOW,))), VerdictKind.DISK, "hog"),
    (case(use(READS, HOG, disks=(SLOW,)), use(READS, HOG, disks=(SLOW,))), VerdictKind.NOT_CPU, None),
    (case(use(READS, HOG, disks=(replace(SLOW, latency_ms=4.0),))), VerdictKind.NOT_CPU, None),
    (case(use(HOG, disks=(SLOW,))), VerdictKind.NOT_CPU, None),
    # Another disk than that which is slow; several do a little; the application itself does most.
    (
        case(use(READS, replace(HOG, disks=(DiskUse("vdb", 90 * MB, 0.0),)), disks=(replace(SLOW, device="vdb"),))),
        VerdictKind.NOT_CPU,
        None,
    ),
    (case(use(WAITS, replace(HOG, disks=(DiskUse("vdb", 90 * MB, 0.0),)), disks=(SLOW,))), VerdictKind.DISK, None),
    (
        case(
            use(
                WAITS,
                *(replace(HOG, vm=f"b{n}", disks=(DiskUse("vda", 30 * MB, 0.0),)) for n in range(3)),
                disks=(SLOW,),
            )
        ),
        VerdictKind.DISK,
        None,
    ),
    (case(use(replace(WAITS, disks=(DiskUse("vda", 80 * MB, 0.0),)), disks=(SLOW,))), VerdictKind.DISK, None),
    (case(use(WAITS)), VerdictKind.DISK, None),
    # Small requests without many bytes; disks that are not told apart.
    (
        case(use(WAITS, replace(HOG, disks=(DiskUse("vda", 0.0, 2 * MB, 900.0),)), disks=(SLOW,))),
        VerdictKind.DISK,
        "hog",
    ),
    (
        case(
            use(
                replace(READS, disks=(DiskUse(ALL_DISKS, MB, 0.0),)),
                replace(HOG, disks=(DiskUse(ALL_DISKS, 90 * MB, 0.0),)),
                disks=(SLOW,),
            )
        ),
        VerdictKind.DISK,
        "hog",
    ),
    # Network: packets that are lost, an uplink that is full or loses some.
    (case(use(traffic("web", 1, dropped=50), traffic("hog", 100))), VerdictKind.NETWORK, "hog"),
    (case(use(traffic("web", 100, dropped=500), traffic("hog", 20))), VerdictKind.NETWORK, None),
    (case(use(traffic("web", 1, dropped=9), traffic("hog", 100))), VerdictKind.NOT_CPU, None),
    (case(use(traffic("web", 100, dropped=11), traffic("hog", 300))), VerdictKind.NOT_CPU, None),
    (case(use(traffic("web", 1), traffic("hog", 119), uplinks=(uplink(120),))), VerdictKind.NETWORK, "hog"),
    (case(use(traffic("web", 1), traffic("hog", 99), uplinks=(uplink(100),))), VerdictKind.NOT_CPU, None),
    (case(use(traffic("web", 1), traffic("hog", 119), uplinks=(uplink(120, None),))), VerdictKind.NOT_CPU, None),
    (case(use(traffic("hog", 119), uplinks=(uplink(120, None, dropped=500),))), VerdictKind.NETWORK, "hog"),
    (case(use(*(traffic(vm, 40) for vm in ("hog", "b1", "b2")), uplinks=(uplink(120),))), VerdictKind.NETWORK, None),
    # Nothing, or nothing known.
    (case(QUIET), VerdictKind.NOT_CPU, None),
    (case(None), VerdictKind.NOT_CPU, None),
    (case(use(PRESSED), rounds=1), VerdictKind.UNKNOWN, None),
    # Power: pCPUs that take a tenth of the target to resume, or run at seven tenths of the clock.
    (case(use(VmResources("web", resume_us=133.0))), VerdictKind.POWER, None),
    (case(use(VmResources("web", clock_part=0.4))), VerdictKind.POWER, None),
    (case(use(VmResources("web", resume_us=133.0), HOG, disks=(FAST,))), VerdictKind.POWER, None),
    (case(use(replace(WAITS, resume_us=133.0), HOG, disks=(SLOW,))), VerdictKind.DISK, "hog"),
]


@pytest.mark.parametrize(("seen", "kind", "vm"), CASES)
def test_the_verdict(seen: Case, kind: VerdictKind, vm: str | None) -> None:
    found = blame(seen)
    assert (found.kind, found.vm) == (kind, vm), found.evidence
    if kind is not VerdictKind.UNKNOWN:
        assert found.host == "kvm1"


def test_the_evidence_of_memory_has_numbers() -> None:
    found = blame(case(use(PRESSED, grows("hog", 50), **SHORT)))
    assert found.evidence == (
        "web on kvm1 waits for memory 30 % of the time (PSI), with 200 major faults/s and 500 refaults/s: pages were"
        " taken from it and are read again (before: little)",
        "memory pressure of the whole host is 20 %: it is short of memory",
        "batch VM hog grew by 50 MB/s at the same time, most of all others",
        "not the CPU: web on kvm1: vCPU wait (steal) 0 % (before: 0 %), while it used 0.4 pCPUs",
    )
    assert [(one.subject, one.metric, one.before, one.during) for one in found.measures] == [
        ("web", "memory_pressure", 0.0, 0.3),
        ("web", "major_faults_per_s", 0.0, 200.0),
        ("web", "refaults_per_s", 0.0, 500.0),
        ("hog", "growth_bytes_per_s", 0.0, 50 * MB),
    ]


def test_the_evidence_of_a_disk_has_numbers() -> None:
    found = blame(case(use(WAITS, HOG, disks=(SLOW,)), use(WAITS, disks=(FAST,))))
    assert found.evidence[:-1] == (
        "web on kvm1: I/O pressure 40 % (before: 40 %)",
        "a request of disk vda of kvm1, which web uses, takes 40 ms (before: 1 ms); it is busy 99 % of the time",
        "batch VM hog does 90 % of what the disk does, 90 MB/s (before: little)",
    )


def test_the_evidence_of_the_network_has_numbers() -> None:
    found = blame(case(use(traffic("web", 1, dropped=50), traffic("hog", 119), uplinks=(uplink(120),))))
    assert found.evidence[:-1] == (
        "web on kvm1 loses 50 of 1,000 packets/s (before: little)",
        "uplink eth0 of kvm1 is used to 96 % of its speed",
        "batch VM hog has 99 % of the traffic of VMs, 119 MB/s (before: little)",
    )


def test_what_was_not_measured_is_said() -> None:
    assert blame(case(None)).evidence[-1] == "memory, disks and network were not measured during the violation"
    found = blame(case(use(missing=(Signal.PRESSURE, Signal.DISK))))
    assert found.kind is VerdictKind.NOT_CPU
    assert found.evidence[-1].endswith("; not measured: disk on kvm1, pressure on kvm1")
    assert (
        looked_at(case(QUIET)) == "memory, disks and network do not hold up its VMs, as far as the host measures them"
    )


def test_without_run_queue_delays_memory_disks_and_network_are_looked_at_all_the_same() -> None:
    seen = case(use(WAITS, HOG, disks=(SLOW,)))
    silent = replace(seen, hosts=(replace(seen.hosts[0], waits_known=False),))
    assert blame(silent).kind is VerdictKind.DISK
    assert blame(replace(silent, hosts=(replace(case(QUIET).hosts[0], waits_known=False),))).kind is VerdictKind.UNKNOWN


def test_a_vcpu_that_waits_is_blamed_on_the_cpu_first() -> None:
    seen = case(use(WAITS, HOG, disks=(SLOW,)))
    vms = (VmTick("hog", 0.7, 0.0, 100, Mode.ENFORCE), VmTick("web", 0.1, 0.4, 100, Mode.ENFORCE))
    busy = tuple(replace(tick, vms=vms, host_cpu_share=0.8) for tick in seen.hosts[0].during)
    assert blame(replace(seen, hosts=(replace(seen.hosts[0], during=busy),))).kind is VerdictKind.NEIGHBOUR


JUDGED = st.sampled_from([seen for seen, kind, _ in CASES if kind is not VerdictKind.UNKNOWN])
LITTLE = st.floats(0, 0.9)


@given(JUDGED, LITTLE, LITTLE, LITTLE)
def test_a_vm_that_has_little_to_do_changes_no_verdict(seen: Case, disk: float, net: float, growth: float) -> None:
    other = VmResources(
        "unrelated",
        memory_pressure=0.0,
        growth_bytes_per_s=growth,
        disks=(DiskUse("vda", disk, 0.0, 0.01),),
        interfaces=(LinkUse("tap-u", net, 0.0, 0.0, 0.0, 0.0),),
    )

    def with_other(ticks_: tuple[TickRecord, ...]) -> tuple[TickRecord, ...]:
        return tuple(
            replace(tick, resources=replace(tick.resources, vms=(*tick.resources.vms, other)))
            if tick.resources
            else tick
            for tick in ticks_
        )

    host = seen.hosts[0]
    more = replace(seen, hosts=(replace(host, before=with_other(host.before), during=with_other(host.during)),))
    one, two = blame(seen), blame(more)
    assert (one.kind, one.vm, one.host) == (two.kind, two.vm, two.host)


@given(JUDGED, st.randoms(use_true_random=False))
def test_the_order_of_vms_makes_no_difference(seen: Case, random: Random) -> None:
    def shuffled(ticks_: tuple[TickRecord, ...]) -> tuple[TickRecord, ...]:
        mixed: list[TickRecord] = []
        for tick in ticks_:
            vms = list(tick.resources.vms) if tick.resources else []
            random.shuffle(vms)
            mixed.append(replace(tick, resources=replace(tick.resources, vms=tuple(vms)) if tick.resources else None))
        return tuple(mixed)

    host = seen.hosts[0]
    assert blame(replace(seen, hosts=(replace(host, during=shuffled(host.during)),))) == blame(seen)


@given(JUDGED, st.floats(1, 1000))
def test_a_host_with_faster_disks_and_networks_where_all_do_more_is_the_same_case(seen: Case, factor: float) -> None:
    def scaled(resources: ResourceUse | None) -> ResourceUse | None:
        if resources is None:
            return None

        def link(one: LinkUse) -> LinkUse:
            rates = {field.name: getattr(one, field.name) for field in fields(one)}
            return LinkUse(**{name: rate * factor if isinstance(rate, float) else rate for name, rate in rates.items()})

        def disk(one: DiskUse) -> DiskUse:
            requests = None if one.requests_per_s is None else one.requests_per_s * factor
            return DiskUse(one.device, one.read_bytes_per_s * factor, one.written_bytes_per_s * factor, requests)

        return replace(
            resources,
            vms=tuple(
                replace(vm, disks=tuple(map(disk, vm.disks)), interfaces=tuple(map(link, vm.interfaces)))
                for vm in resources.vms
            ),
            disks=tuple(
                replace(one, bytes_per_s=one.bytes_per_s * factor, requests_per_s=one.requests_per_s * factor)
                for one in resources.disks
            ),
            uplinks=tuple(map(link, resources.uplinks)),
        )

    found = blame_resources(seen)
    if found is None or found.vm is None:
        return  # below a threshold in absolute numbers, which more of everything may reach
    host = seen.hosts[0]
    sides = [
        tuple(replace(tick, resources=scaled(tick.resources)) for tick in side) for side in (host.before, host.during)
    ]
    again = blame_resources(replace(seen, hosts=(replace(host, before=sides[0], during=sides[1]),)))
    assert again is not None
    assert (again.kind, again.vm) == (found.kind, found.vm)


@given(JUDGED)
def test_without_the_signals_there_is_no_verdict_about_them(seen: Case) -> None:
    bare = use(missing=tuple(Signal))
    host = seen.hosts[0]
    found = blame(replace(seen, hosts=(replace(host, during=ticks(bare, bare), before=ticks(bare, bare)),)))
    assert found.kind is VerdictKind.NOT_CPU
    assert all(str(signal) in found.evidence[-1] for signal in Signal)


def test_the_mean_of_rounds_counts_what_was_left_out_as_nothing() -> None:
    one = use(
        HOG,
        replace(WAITS, resident_bytes=5, cycles_per_instruction=0.8),
        disks=(SLOW,),
        memory_pressure=0.4,
        missing=(Signal.NETWORK,),
    )
    mean = mean_resources([(one, 1), (QUIET, 3)])
    assert mean is not None
    hog, web = mean.of("hog"), mean.of("web")
    assert hog is not None and web is not None
    assert hog.disk_bytes_per_s == HOG.disk_bytes_per_s / 4
    assert (web.io_pressure, web.memory_pressure, web.resident_bytes) == (pytest.approx(0.1), None, 5)
    assert web.cycles_per_instruction == pytest.approx(0.8), "is none of the time in which it did little"
    assert (mean.disks[0].busy, mean.disks[0].latency_ms) == (pytest.approx(0.99 / 4), 40.0)
    assert (mean.memory_pressure, mean.missing) == (0.1, (Signal.NETWORK,))
    assert mean_resources([]) is None


def test_the_latency_of_many_rounds_is_that_of_all_requests() -> None:
    slow = replace(SLOW, requests_per_s=10.0, latency_ms=100.0)
    mean = mean_resources(
        [(use(disks=(slow,)), 1), (use(disks=(replace(SLOW, requests_per_s=90.0, latency_ms=1.0),)), 1)]
    )
    assert mean is not None
    assert mean.disks[0].latency_ms == pytest.approx((10 * 100 + 90 * 1) / 100)


@given(st.lists(st.sampled_from([use(HOG), use(WAITS, disks=(SLOW,)), use(traffic("web", 3))]), min_size=1, max_size=6))
def test_means_of_means_are_the_mean(rounds: list[ResourceUse]) -> None:
    whole = mean_resources([(one, 1) for one in rounds])
    first, rest = rounds[:1], rounds[1:]
    parts = [(mean, len(some)) for some in (first, rest) if (mean := mean_resources([(one, 1) for one in some]))]
    again = mean_resources(parts)
    assert whole is not None and again is not None
    for vm in whole.vms:
        other = again.of(vm.vm)
        assert other is not None
        assert other.disk_bytes_per_s == pytest.approx(vm.disk_bytes_per_s)
        assert other.link_bytes_per_s == pytest.approx(vm.link_bytes_per_s)


@pytest.mark.parametrize(
    "vm",
    [VmResources("web", resume_us=90.0), VmResources("web", clock_part=0.9), VmResources("db", resume_us=500.0)],
)
def test_pcpus_that_wake_up_fast_enough_are_no_cause(vm: VmResources) -> None:
    assert blame_resources(case(use(vm))) is None


def test_the_time_to_resume_is_compared_with_the_target() -> None:
    slept = case(use(VmResources("web", resume_us=133.0, clock_part=0.5)), use(VmResources("web", resume_us=10.0)))
    found = blame_resources(slept)
    assert found is not None
    assert found.evidence == (
        "the pCPUs that web on kvm1 is pinned to take 133 us on average to resume from idle, of a target of 1 ms: set"
        " resume_latency_us",
        "the pCPUs that web on kvm1 is pinned to run at 50 % of their highest clock: set performance_governor",
    )
    assert [(each.metric, each.before, each.during) for each in found.measures] == [
        ("resume_us", 10.0, 133.0),
        ("clock_part", None, 0.5),
    ]
    assert blame_resources(replace(slept, target_ms=5.0)) is not None, "its clock is low, whatever the target"
    without = replace(slept, target_ms=None)
    assert "resume" not in " ".join((blame_resources(without) or found).evidence)


def test_what_is_not_recorded_of_power_does_not_lower_its_mean() -> None:
    rounds = [(use(VmResources("web", clock_part=0.6, resume_us=40.0)), 1), (use(VmResources("web")), 1)]
    mean = mean_resources(rounds)
    assert mean is not None
    assert (mean.vms[0].clock_part, mean.vms[0].resume_us) == (0.6, 40.0)


def test_the_evidence_names_the_slow_disk_of_the_vm_itself() -> None:
    own = (VirtualDiskUse("vda", 20.0, 3.0), VirtualDiskUse("vdb", 2.0, 180.0), VirtualDiskUse("vdc", 0.0))
    found = blame_resources(case(use(replace(WAITS, virtual_disks=own), HOG, disks=(SLOW,))))
    assert found is not None
    assert any(text.startswith("a request of web to its disk vdb takes 180 ms") for text in found.evidence)


def test_a_disk_of_the_vm_alone_may_be_slow() -> None:
    """As by a throttle, or where its image is elsewhere: the host's disks are quick."""
    slow = replace(READS, virtual_disks=(VirtualDiskUse("vda", 20.0, 400.0),))
    found = blame_resources(case(use(slow)))
    assert found is not None and found.kind is VerdictKind.DISK
    assert "web waits for a disk that the host does not have: look at the storage" in found.evidence
    quick = replace(READS, virtual_disks=(VirtualDiskUse("vda", 20.0, 1.0),))
    assert blame_resources(case(use(quick))) is None
