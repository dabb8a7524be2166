"""Whether critical VMs that crowd their pCPUs float: by how much of the host those use that have a vCPU on each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.model.decision import Snapshot
from policies.auto_crowd import FALLING_S, FLOATING_BELOW, PACKED_ABOVE, Crowd, next_crowd
from tests.unit.build import view
from tests.unit.test_auto import moment, on_pcpus

PCPUS = 4


def seen(*vms: tuple[int, float], pinning: bool = True) -> Snapshot:
    """On four pCPUs; ``vms``: vCPUs, and the part of the host that each uses."""
    views = [replace(view(f"app-{number}"), vcpus=vcpus, cpu_share=share) for number, (vcpus, share) in enumerate(vms)]
    return on_pcpus(moment(1000.0, vms=views, pinning=pinning), PCPUS)


@pytest.mark.parametrize(
    ("vms", "spread", "floats"),
    [
        (((4, 0.4), (4, 0.3)), 0.7, False),  # both have a vCPU on each pCPU: floating, these meet on one
        (((4, 0.3), (2, 0.1)), 0.35, True),  # little is used
        (((2, 0.3), (2, 0.3), (2, 0.2)), 0.4, True),  # pairs packed onto the same pCPUs cannot use the others
        (((8, 0.6), (1, 0.0)), 0.6, False),  # a VM has no more than all pCPUs
        (((4, 0.0), (4, 0.0)), None, False),  # not measured yet: as the host says
    ],
)
def test_they_float_unless_who_has_all_pcpus_uses_much(
    vms: tuple[tuple[int, float], ...], spread: float | None, floats: bool
) -> None:
    crowd = next_crowd(Crowd(), seen(*vms), needed=True)
    assert (crowd.vcpus, crowd.pcpus, crowd.floats) == (sum(vcpus for vcpus, _ in vms), PCPUS, floats)
    assert crowd.spread == (None if spread is None else pytest.approx(spread))


def test_they_stay_as_the_host_says_until_floating_is_needed_and_then_float() -> None:
    little = seen((4, 0.3), (2, 0.1))
    at_ease = next_crowd(Crowd(), little, needed=False)
    assert not at_ease.floats
    assert at_ease.may_float
    needed = next_crowd(at_ease, little, needed=True)
    assert needed.floats
    assert next_crowd(needed, little, needed=False).floats, "an SLA that is met since then is no reason to move back"


@pytest.mark.parametrize("vms", [((2, 0.9), (2, 0.1)), ((1, 0.1),)])
def test_where_there_are_pcpus_enough_there_is_no_crowd(vms: tuple[tuple[int, float], ...]) -> None:
    assert next_crowd(Crowd(), seen(*vms), needed=True).vcpus == 0
    assert next_crowd(Crowd(), seen((4, 0.1), (4, 0.1), pinning=False), needed=True).vcpus == 0, (
        "they float as the host says"
    )


def test_it_changes_sooner_to_packed_than_back_and_not_at_every_turn() -> None:
    between = (FLOATING_BELOW + PACKED_ABOVE) / 2
    for floats in (True, False):
        before = Crowd(8, PCPUS, between, floats)
        assert next_crowd(before, seen((4, between), (4, 0.0)), needed=True).floats is floats
    crowd = Crowd(8, PCPUS, 0.3, floats=True)
    rising = falling = 0
    while crowd.floats:
        crowd, rising = next_crowd(crowd, seen((4, 0.9), (4, 0.0)), needed=True), rising + 1
    while not crowd.floats:
        crowd, falling = next_crowd(crowd, seen((4, 0.3), (4, 0.0)), needed=True), falling + 1
        assert falling < FALLING_S
    assert rising < falling
