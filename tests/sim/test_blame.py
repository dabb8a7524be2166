"""Who is guilty, in closed loop with the simulated host: the one that was made to be is the one that is named."""

from __future__ import annotations

import pytest

from manager.control.blame import blame
from manager.control.violation_case import Case, HostTicks, Verdict
from manager.model.verdict import VerdictKind
from manager.sim.scenario import AppSpec, BatchSpec, Constant, Fault, FaultKind, Scenario, batch_vms
from tests.sim.build import app, scenario
from tests.sim.recorded import run_watched, taken

CHANGE_S = 300.0
"""When each scenario gets worse."""


def verdict(made: Scenario, policy: str, max_rate_rps: float | None = None) -> Verdict:
    """Of ``shop``, from five minutes before things got worse and the five after."""
    simulation = run_watched(made, policy)
    recording = taken(simulation)
    worse_s = recording.from_s + CHANGE_S
    before = tuple(tick for tick in recording.ticks if 10 < tick.time_s - recording.from_s <= CHANGE_S)
    during = tuple(tick for tick in recording.ticks if tick.time_s > worse_s + 5)
    [shop] = [one for one in recording.assignment.applications if one.name == "shop"]
    late = [window for window in recording.windows if window.application == "shop" and window.start_s >= worse_s + 5]
    rates = [window.rate_rps or 0.0 for window in late]
    assert shop.sla
    times_ms = [window.percentile_ms(shop.sla.percentile) or 0.0 for window in late]
    assert sum(percentile_ms > shop.sla.response_time_ms for percentile_ms in times_ms) > len(late) / 2, (
        "it misses its SLA"
    )
    vcpus = {vm.vm: vm.vcpus for vm in recording.vms}
    return blame(
        Case(
            "shop",
            shop.vms,
            (HostTicks("simulated", made.pcpus, True, before, during),),
            sum(rates) / len(rates),
            max_rate_rps,
            vcpus,
            {vm: float(count) for vm, count in vcpus.items()},
            {vm.name: vm.vm_class for vm in recording.assignment.vms},
        )
    )


SHOP = app("shop", Constant(40.0), mean_ms=30.0, vcpus=4, sla_ms=100.0)
CALM = app("calm", Constant(5.0), mean_ms=20.0)
QUIET = BatchSpec("quiet", on_ms=5.0, off_ms=95.0)


def made(*batch: BatchSpec, shop: AppSpec = SHOP, later: tuple[str, ...] = ()) -> Scenario:
    """``shop`` beside two that do little; the VMs ``later`` do not run until things get worse."""
    faults = tuple(Fault(FaultKind.VM_RESTART, 1.0, CHANGE_S - 1, vm) for vm in later)
    return scenario(CALM, shop, pcpus=4, batch=(QUIET, *batch), duration_s=2 * CHANGE_S, faults=faults)


def test_the_antagonist_is_named_and_no_other() -> None:
    found = verdict(made(BatchSpec("antagonist", vcpus=8), later=("antagonist",)), "equal")
    assert (found.kind, found.vm) == (VerdictKind.NEIGHBOUR, "antagonist"), found.evidence
    assert "rose from 0.0 %" in found.evidence[1]


def test_it_is_named_too_when_it_was_there_all_the_time() -> None:
    found = verdict(made(BatchSpec("antagonist", vcpus=8)), "equal")
    assert (found.kind, found.vm) == (VerdictKind.NEIGHBOUR, "antagonist"), found.evidence


def test_many_little_ones_fill_the_host() -> None:
    crowd = BatchSpec("crowd", vms=8)
    found = verdict(made(crowd, later=batch_vms(crowd)), "equal")
    assert (found.kind, found.vm) == (VerdictKind.HOST_FULL, None), found.evidence


@pytest.mark.parametrize("max_rate_rps", [None, 60.0])
def test_an_application_that_gets_more_than_it_can_serve_is_its_own_trouble(max_rate_rps: float | None) -> None:
    load = (Constant(40.0, CHANGE_S), Constant(120.0, CHANGE_S))
    shop = app("shop", *load, mean_ms=30.0, vcpus=2, sla_ms=100.0)
    found = verdict(made(shop=shop), "priority", max_rate_rps)
    assert (found.kind, found.vm) == (VerdictKind.OVERLOAD, None), found.evidence
