"""Which pCPU each critical vCPU gets."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.placement import PlacementRequest, place
from manager.model.decision import Placement

NAMES = ("a", "b", "c", "d", "e")

requests = st.dictionaries(st.sampled_from(NAMES), st.integers(1, 5), max_size=5).map(
    lambda wanted: [PlacementRequest(name, vcpus) for name, vcpus in wanted.items()]
)
cpu_sets = st.frozensets(st.integers(0, 11), max_size=10)
previous_pins = st.dictionaries(st.sampled_from(NAMES), st.lists(st.integers(0, 13), max_size=5).map(tuple), max_size=5)


def wanted(**vcpus: int) -> list[PlacementRequest]:
    return [PlacementRequest(name, number) for name, number in vcpus.items()]


def cpus(*numbers: int) -> frozenset[int]:
    return frozenset(numbers)


@pytest.mark.parametrize(
    ("vms", "pcpus", "previous", "placed", "floating"),
    [
        pytest.param({}, cpus(0, 1), {}, {}, [], id="nobody"),
        pytest.param({"a": 1}, cpus(), {}, {}, [("a", 1, 0)], id="no pCPU at all"),
        pytest.param({"b": 1, "a": 2}, cpus(0, 1, 2), {}, {"a": (0, 1), "b": (2,)}, [], id="by name, lowest first"),
        pytest.param({"a": 2}, cpus(7, 3, 5), {}, {"a": (3, 5)}, [], id="any numbers"),
        pytest.param({"a": 3, "b": 1}, cpus(0, 1), {}, {"b": (0,)}, [("a", 3, 1)], id="whole or not at all"),
        pytest.param({"a": 2, "b": 1}, cpus(0, 1), {}, {"a": (0, 1)}, [("b", 1, 0)], id="first come"),
        pytest.param({"a": 1, "b": 1}, cpus(0, 1), {"b": (0,)}, {"a": (1,), "b": (0,)}, [], id="who stays keeps"),
        pytest.param({"a": 2}, cpus(0, 1, 2), {"a": (2, 0)}, {"a": (2, 0)}, [], id="in the order it had"),
        pytest.param({"a": 2}, cpus(0, 1, 2), {"a": (2,)}, {"a": (0, 1)}, [], id="a vCPU was plugged"),
        pytest.param({"a": 1}, cpus(0, 1, 2), {"a": (2, 1)}, {"a": (0,)}, [], id="a vCPU was unplugged"),
        pytest.param({"a": 1}, cpus(0, 1), {"a": (5,)}, {"a": (0,)}, [], id="its pCPU is not managed any more"),
        pytest.param({"a": 2}, cpus(0, 1), {"a": (1, 1)}, {"a": (0, 1)}, [], id="never stacked on itself"),
        pytest.param(
            {"a": 1, "b": 1}, cpus(0, 1), {"a": (1,), "b": (1,)}, {"a": (1,), "b": (0,)}, [], id="two had the same"
        ),
        pytest.param({"a": 1}, cpus(0, 1), {"gone": (0,)}, {"a": (0,)}, [], id="those of a VM that is gone are free"),
        pytest.param({"a": 2, "b": 1}, cpus(0, 1), {"b": (0,)}, {"b": (0,)}, [("a", 2, 1)], id="keeping goes first"),
    ],
)
def test_tables(vms, pcpus, previous, placed, floating) -> None:
    found = place(wanted(**vms), pcpus, previous)
    assert dict(found.cpus) == placed
    reasons = [(name, f"floats: needs {needs} pCPUs of its own, {free} are free") for name, needs, free in floating]
    assert list(found.floating) == reasons


@given(requests, cpu_sets, previous_pins)
def test_rules_of_placement(asked, pcpus, previous) -> None:
    found = place(asked, pcpus, previous)
    placed, floating = dict(found.cpus), dict(found.floating)
    given_out = [cpu for pins in placed.values() for cpu in pins]
    assert len(given_out) == len(set(given_out)), "a pCPU carries one critical vCPU"
    assert pcpus.issuperset(given_out)
    assert placed.keys() | floating.keys() == {request.vm for request in asked}
    assert not placed.keys() & floating.keys()
    for request in asked:
        if request.vm in placed:
            assert len(placed[request.vm]) == request.vcpus, "whole or not at all"
    free = len(pcpus) - len(given_out)
    assert all(request.vcpus > free for request in asked if request.vm in floating), "nobody floats who would fit"


@given(requests, cpu_sets, previous_pins, st.randoms(use_true_random=False))
def test_the_order_of_requests_does_not_matter(asked, pcpus, previous, random) -> None:
    found = place(asked, pcpus, previous)
    shuffled, again = list(asked), dict(sorted(previous.items(), reverse=True))
    random.shuffle(shuffled)
    assert place(shuffled, pcpus, again) == found
    assert all(one[0] < other[0] for one, other in pairwise(found.cpus)), "sorted by name"


@given(requests, cpu_sets)
def test_what_was_placed_stays(asked, pcpus) -> None:
    first = place(asked, pcpus, {})
    assert place(asked, pcpus, dict(first.cpus)) == first


@given(requests, cpu_sets, st.integers(1, 4))
def test_a_newcomer_moves_nobody(asked, pcpus, vcpus) -> None:
    first = place(asked, pcpus, {})
    later = place([*asked, PlacementRequest("0-first-by-name", vcpus)], pcpus, dict(first.cpus))
    assert dict(first.cpus).items() <= dict(later.cpus).items()


@given(requests, cpu_sets, st.sampled_from(NAMES))
def test_who_leaves_moves_nobody(asked, pcpus, leaver) -> None:
    first = dict(place(asked, pcpus, {}).cpus)
    later = dict(place([request for request in asked if request.vm != leaver], pcpus, first).cpus)
    assert {name: pins for name, pins in first.items() if name != leaver}.items() <= later.items()


def test_nothing_asked_nothing_placed() -> None:
    assert place([], frozenset(), {}) == Placement()
