"""How large a warp is: for an SLA, for a VM, and beside those of all others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.warp_plan import MAX_US, auto_warp_us, can_warp, in_words, value_of, warped_vms, warps
from manager.model.decision import ApplicationView, Snapshot, VmView, WarpGoal
from manager.model.registration import Application, Assignment, HostSpec, Mode, Sla, Tier, VmClass, VmSpec
from manager.model.warp import Mechanism, Offer, WarpUse, WarpWish
from manager.model.window import SlaState
from tests.unit.build import snapshot


@pytest.mark.parametrize(
    ("response_time_ms", "warp_us"),
    [(1000, 0), (100, 0), (50, 26_400), (25, 27_800), (10, 29_651), (1, 34_301), (0.1, 38_952), (0.0001, MAX_US)],
)
def test_the_tighter_the_sla_the_larger_the_warp(response_time_ms: float, warp_us: int) -> None:
    assert auto_warp_us(response_time_ms) == warp_us


@pytest.mark.parametrize("response_time_ms", [0, -1, float("nan")])
def test_a_response_time_is_positive(response_time_ms: float) -> None:
    with pytest.raises(ValueError, match="response time"):
        auto_warp_us(response_time_ms)


def shop(sla_ms: float | None = 10.0, warp_us: WarpWish | None = None) -> Application:
    return Application("shop", (Tier("web", ("web",)),), Sla(sla_ms) if sla_ms else None, warp_us=warp_us)


def moment(
    *views: VmView, application: Application | None = None, warp_max_us: int = 50_000, use: WarpUse = WarpUse.ON
) -> Snapshot:
    seen = snapshot(*views)
    serving = (ApplicationView(application, None, SlaState.NO_DATA),) if application else ()
    return replace(seen, host=HostSpec("h1", warp=use, warp_max_us=warp_max_us), applications=serving)


def vm(
    name: str = "web",
    vm_class: VmClass = VmClass.CRITICAL,
    warp_us: WarpWish | None = None,
    vcpus: int = 1,
    mode: Mode = Mode.ENFORCE,
    application: str | None = "shop",
) -> VmView:
    return VmView(VmSpec(name, vm_class, warp_us=warp_us), vcpus, 0.1, 0.0, mode, 1024, application)


CRITICAL, BATCH = VmClass.CRITICAL, VmClass.BATCH


@pytest.mark.parametrize(
    ("vm_class", "own", "applications", "sla_ms", "warp_us"),
    [
        (CRITICAL, None, None, 10.0, 29_651),  # nobody said anything: auto
        (CRITICAL, None, None, None, 0),  # without an SLA: none
        (CRITICAL, None, 0, 10.0, 0),
        (CRITICAL, None, 7_000, 10.0, 7_000),
        (CRITICAL, None, 7_000, None, 7_000),
        (CRITICAL, 0, 7_000, 10.0, 0),  # the VM's own word counts
        (CRITICAL, "auto", 0, 10.0, 29_651),
        (CRITICAL, "auto", None, None, 0),
        (BATCH, None, None, 10.0, 0),
        (BATCH, None, 7_000, 10.0, 0),  # the application's is for its critical VMs
        (BATCH, "auto", None, 10.0, 0),
        (BATCH, 3_000, None, 10.0, 3_000),
    ],
)
def test_who_gets_which_warp(
    vm_class: VmClass, own: WarpWish | None, applications: WarpWish | None, sla_ms: float | None, warp_us: int
) -> None:
    application = shop(sla_ms, applications)
    found = warps(moment(vm(vm_class=vm_class, warp_us=own), application=application))
    assert {name: one.warp_us for name, one in found.items()} == ({"web": warp_us} if warp_us else {})
    spec = VmSpec("web", vm_class, warp_us=own)
    registered = Assignment(HostSpec("h1", warp=WarpUse.ON), (spec,), (application,))
    assert warped_vms(registered) == ({"web"} if warp_us else set()), "asked for its warp if, and only if, it gets one"


def test_a_vm_that_serves_nothing_gets_only_what_it_was_given() -> None:
    assert warps(moment(vm(application=None))) == {}
    assert warps(moment(vm(application=None, warp_us=500)))["web"].warp_us == 500


@pytest.mark.parametrize("host", [HostSpec("h1"), HostSpec("h1", Mode.RELEASED, warp=WarpUse.SCHED_EXT)])
def test_nobody_is_asked_for_a_warp_where_none_is_given(host: HostSpec) -> None:
    assert warped_vms(Assignment(host, (VmSpec("web", CRITICAL, warp_us=500),))) == frozenset()


@pytest.mark.parametrize(
    ("sla_ms", "applications", "own", "decided_us", "warp_us"),
    [
        (10.0, None, None, None, 0),  # the policy decides warps, and gives it none
        (10.0, None, None, 8_000, 8_000),
        (10.0, None, None, 80_000, 50_000),  # the host's largest
        (10.0, None, "auto", None, 29_651),  # what is registered is not the policy's
        (10.0, 7_000, None, 8_000, 7_000),
        (10.0, 0, None, 8_000, 0),
        (1000.0, None, None, 8_000, 0),  # its SLA asks for none, so it is not read either
    ],
)
def test_a_policy_decides_what_nobody_registered(
    sla_ms: float, applications: WarpWish | None, own: WarpWish | None, decided_us: int | None, warp_us: int
) -> None:
    seen = moment(vm(warp_us=own), application=shop(sla_ms, applications))
    goals = (WarpGoal("web", decided_us, "trial"),) if decided_us else ()
    assert {name: one.warp_us for name, one in warps(seen, goals).items()} == ({"web": warp_us} if warp_us else {})


BVT, SCX = Offer(Mechanism.BVT, True, "patched"), Offer(Mechanism.SCHED_EXT, True, "can be loaded")


@pytest.mark.parametrize(
    ("use", "offers", "scheduler", "possible"),
    [
        (WarpUse.OFF, (BVT, SCX), None, False),
        (WarpUse.ON, (BVT,), None, True),
        (WarpUse.ON, (SCX,), None, False),
        (WarpUse.SCHED_EXT, (SCX,), None, True),
        (WarpUse.SCHED_EXT, (replace(SCX, available=False),), None, False),
        (WarpUse.SCHED_EXT, (BVT, SCX), "lavd", False),
    ],
)
def test_whether_a_host_can_warp(
    use: WarpUse, offers: tuple[Offer, ...], scheduler: str | None, possible: bool
) -> None:
    seen = moment(vm(), use=use)
    assert (
        can_warp(replace(seen, capabilities=replace(seen.capabilities, warps=offers, scheduler=scheduler))) is possible
    )


def test_a_released_vm_gets_none() -> None:
    assert warps(moment(vm(warp_us=500, mode=Mode.RELEASED))) == {}


def test_no_warp_is_larger_than_the_hosts_largest() -> None:
    [found] = warps(moment(vm(warp_us=80_000), warp_max_us=20_000)).values()
    assert found.warp_us == 20_000
    assert found.says == "warp as registered: 80,000 us, this host's largest:"


def test_all_warps_together_are_bounded_and_stay_in_their_order() -> None:
    """Four pCPUs, 20 ms: 80 ms for all vCPUs together."""
    views = [vm(f"vm{number}", warp_us=4_000 * number, vcpus=8) for number in (1, 2, 4)]
    pcpus = len(snapshot().capabilities.online_cpus)
    found = warps(moment(*views, warp_max_us=20_000))
    assert sum(8 * one.warp_us for one in found.values()) <= 20_000 * pcpus
    assert found["vm2"].warp_us == pytest.approx(2 * found["vm1"].warp_us, abs=2)
    assert found["vm4"].warp_us == pytest.approx(4 * found["vm1"].warp_us, abs=4)
    assert "so that together they are no more than 20,000 us a pCPU" in found["vm1"].says


def test_warps_within_the_bound_are_left_as_they_are() -> None:
    found = warps(moment(vm("a", warp_us=50_000), vm("b", warp_us=4_000)))
    assert {name: one.warp_us for name, one in found.items()} == {"a": 50_000, "b": 4_000}


@pytest.mark.parametrize(
    ("mechanism", "warp_us", "value", "words"),
    [
        (Mechanism.SCHED_EXT, 29_651, 29_651, "sched_ext"),
        (Mechanism.BVT, 29_651, 29_651_000, "the BVT patch"),
        (Mechanism.GROUP_IDENTITY, 29_651, 1, "group identity 1"),
        (Mechanism.GROUP_IDENTITY, 100_000, 2, "group identity 2"),
        (Mechanism.SLICE, 29_651, 100_000, "EEVDF slice 0.1 ms"),
        (Mechanism.SLICE, 4_000, 250_000, "EEVDF slice 0.25 ms"),
        (Mechanism.SLICE, 1, 3_000_000, "EEVDF slice 3 ms"),
    ],
)
def test_one_meaning_in_the_unit_of_each_mechanism(mechanism: Mechanism, warp_us: int, value: int, words: str) -> None:
    assert value_of(mechanism, warp_us) == value
    assert in_words(mechanism, value) == words


@pytest.mark.parametrize("warp_us", [1, 100, 4_000, 20_000, 50_000, 100_000])
def test_an_anolis_file_is_never_given_more_than_a_class(warp_us: int) -> None:
    assert value_of(Mechanism.GROUP_IDENTITY, warp_us) in {1, 2}
