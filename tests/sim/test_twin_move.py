"""What a migration does, by the twins of both hosts: against what simulated hosts then did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.balance import BalanceRules, objections
from manager.errors import TwinRefused
from manager.sim.parallel import one_by_one
from manager.sim.twin import Twin
from manager.sim.twin_move import predict_arriving, predict_leaving
from manager.sim.twin_play import TwinJob, play
from tests.sim.test_twin import shop, truth, twin_of

FULL = truth(shop(30.0))
QUIET = truth(replace(shop(10.0), name="blog"), batch=())


def full() -> Twin:
    """A host whose batch VMs have the weight of its service."""
    return twin_of(FULL, "equal")


def quiet() -> Twin:
    return twin_of(QUIET, "equal")


def test_a_service_is_faster_once_a_batch_vm_left_and_what_is_predicted_then_happens() -> None:
    [found] = predict_leaving(full(), "hog", one_by_one)
    assert (found.application, found.host) == ("shop", full().observed.assignment.host.name)
    assert found.before is not None
    assert found.after is not None
    assert found.after.ms < found.before.ms
    then = replace(FULL, batch=())
    true_ms = play(TwinJob(then, "equal", then.interval_s, then.seed)).between("shop", 60, 600).percentile_us(95) or 0
    assert found.after.low_ms / 1.3 < true_ms / 1000 < found.after.high_ms * 1.3


def test_a_batch_vm_that_comes_slows_what_is_there() -> None:
    [found] = predict_arriving(full(), "hog", quiet(), one_by_one)
    assert found.application == "blog"
    assert found.before is not None
    assert found.after is not None
    assert found.after.ms > found.before.ms


def test_a_service_that_moves_is_predicted_where_it_goes() -> None:
    [vm] = full().observed.assignment.applications[0].vms
    assert predict_leaving(full(), vm, one_by_one) == ()
    blog, moved = predict_arriving(full(), vm, quiet(), one_by_one)
    assert (blog.application, moved.application) == ("blog", "shop")
    assert moved.before is not None
    assert moved.after is not None
    assert moved.after.ms < moved.before.ms, "it shares its pCPU with no batch VM there"
    assert moved.host == quiet().observed.assignment.host.name
    assert not list(objections([moved], "shop", BalanceRules())), "and this is a reason to move it"


def test_a_vm_that_is_not_simulated_by_itself_is_refused() -> None:
    with pytest.raises(TwinRefused, match="nobody is not simulated"):
        predict_leaving(full(), "nobody", one_by_one)
    two = truth(replace(shop(20.0), tiers=(replace(shop().tiers[0], vms=2),)), pcpus=2)
    twin = twin_of(two, "equal")
    vm = min(twin.observed.assignment.applications[0].vms)
    for predict in (lambda: predict_leaving(twin, vm), lambda: predict_arriving(twin, vm, quiet())):
        with pytest.raises(TwinRefused, match="serves its application together with other VMs"):
            predict()


def test_a_service_of_which_nothing_is_predicted_stays() -> None:
    refused = replace(full(), apps=tuple(replace(app, refused="too large") for app in full().apps))
    [vm] = full().observed.assignment.applications[0].vms
    with pytest.raises(TwinRefused, match="nothing is predicted of the application"):
        predict_arriving(refused, vm, quiet(), one_by_one)
    assert predict_leaving(refused, "hog", one_by_one) == ()


def test_the_name_of_what_comes_is_one_that_is_free() -> None:
    [found] = predict_arriving(full(), "hog", full(), one_by_one)
    assert found.application == "shop"
    assert found.before is not None
    assert found.after is not None
    assert found.after.ms > found.before.ms, "beside another hog"
