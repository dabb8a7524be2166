"""Which groups and ways are planned."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from manager.control.cache_plan import BATCH_GROUP, HELD_GROUP, CacheDemand, CachePlan, Claim, allocate
from manager.model.cache import (
    DEFAULT,
    EMPTY,
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    Group,
    Mask,
    Resctrl,
    Slot,
    parse_wish,
    union,
)

BANDWIDTH = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 16, (0, 1))


def cache(
    ways: int = 20, minimum: int = 2, shareable: int = 0xC0000, closids: int = 16, name: str = "L3"
) -> CacheResource:
    return CacheResource(
        name, Mask.span(0, ways), minimum, Mask(shareable), closids, False, (0, 1), ((0, 1 << 20), (1, 1 << 20))
    )


HASWELL = Resctrl((cache(closids=4),), ())
LARGE = Resctrl((cache(),), (BANDWIDTH,))


def claim(app: str, wish: str = "auto", domains: Iterable[int] = (0, 1), ways: int | None = None) -> Claim:
    return Claim(app, frozenset({f"{app}-vm"}), parse_wish(wish), frozenset(domains), ways)


def group(name: str, mask: int, *, exclusive: bool = False) -> Group:
    return Group(name, {Slot("L3", 0): mask, Slot("L3", 1): mask}, exclusive)


def present(*groups: Group) -> dict[str, Group]:
    return {one.name: one for one in (group(DEFAULT, 0xFFFFF), *groups)}


def masks(plan: CachePlan, domain: int = 0, resource: str = "L3") -> dict[str, str]:
    """The planned ways by the group's short name."""
    slot = Slot(resource, domain)
    return {
        name.removeprefix("equipoise-"): f"{one.values[slot]:x}"
        for name, one in plan.groups.items()
        if slot in one.values
    }


BATCH = frozenset({"hog1", "hog2"})


@pytest.mark.parametrize(
    ("offered", "groups", "demand", "expected", "notes"),
    [
        pytest.param(LARGE, (), CacheDemand(batch=BATCH), {"": "fffff"}, (), id="nobody asks for anything"),
        pytest.param(
            LARGE,
            (),
            CacheDemand((claim("a", "6 ways"), claim("b", "4 ways")), BATCH),
            {"": "ffc00", "a": "3f", "b": "3c0", "+batch": "7fc00"},
            (),
            id="own ways from way 0 on, the rest shared, one way of it kept from batch VMs",
        ),
        pytest.param(
            LARGE,
            (),
            CacheDemand((claim("a", "25%"), claim("b", "4.5MiB")), BATCH, default_ways=4),
            {"": "ffc00", "a": "1f", "b": "3e0", "+batch": "fc00"},
            (),
            id="percent and bytes are rounded up",
        ),
        pytest.param(
            LARGE,
            (),
            CacheDemand((claim("a"), claim("b", ways=3)), BATCH),
            {"": "ffe00", "a": "3f", "b": "1c0", "+batch": "7fe00"},
            (),
            id="auto: an equal part at first, then what feedback says",
        ),
        pytest.param(
            Resctrl((cache(shareable=3),), ()),
            (),
            CacheDemand((claim("a", "6 ways"), claim("b", "4 ways")), BATCH),
            {"": "3ff", "a": "fc000", "b": "3c00", "+batch": "3fe"},
            (),
            id="mirrored where the shareable ways are low",
        ),
        pytest.param(
            Resctrl((cache(shareable=0),), ()),
            (),
            CacheDemand((claim("a", "19 ways"),)),
            {"": "c0000", "a": "3ffff"},
            ("a gets 18 of 19 ways in domain 0", "a gets 18 of 19 ways in domain 1"),
            id="the default group keeps the minimum",
        ),
        pytest.param(
            LARGE,
            (),
            CacheDemand((claim("a", "18 ways"), claim("b", "9 ways")), BATCH),
            {"": "e0000", "a": "1ff", "b": "1fe00", "+batch": "60000"},
            (
                "a gets 9 of 18 ways in domain 0",
                "b gets 8 of 9 ways in domain 0",
                "a gets 9 of 18 ways in domain 1",
                "b gets 8 of 9 ways in domain 1",
            ),
            id="where more is wanted than there is, the largest part shrinks first",
        ),
        pytest.param(
            LARGE,
            (group("pqos1", 0xF),),
            CacheDemand((claim("a", "6 ways"),), BATCH),
            {"": "ffc00", "a": "3f0", "+batch": "7fc00"},
            (),
            id="ways of a foreign group are avoided",
        ),
        pytest.param(
            LARGE,
            (group("pqos1", 0xFFFFF),),
            CacheDemand((claim("a", "6 ways"),), BATCH),
            {"": "fffc0", "a": "3f", "+batch": "7ffc0"},
            (
                "ways 3f in domain 0 are shared with groups of others",
                "ways 3f in domain 1 are shared with groups of others",
            ),
            id="unless it has all, which is said",
        ),
        pytest.param(
            LARGE,
            (group("pqos1", 0xFF00, exclusive=True),),
            CacheDemand((claim("a", "12 ways"),), BATCH),
            {"": "f0000", "a": "ff", "+batch": "70000"},
            ("a gets 8 of 12 ways in domain 0", "a gets 8 of 12 ways in domain 1"),
            id="what is exclusively of others is never had",
        ),
        pytest.param(
            LARGE,
            (group("pqos1", 0x3FFFF, exclusive=True),),
            CacheDemand((claim("a", "12 ways"),), BATCH),
            {"": "c0000"},
            ("a get no ways: others leave no room for them",),
            id="others have it all",
        ),
        pytest.param(
            HASWELL,
            (),
            CacheDemand((claim("a", "6 ways"), claim("b", "3 ways"), claim("c", "2 ways")), BATCH),
            {"": "ff800", "a": "3f", "b": "7c0", "+batch": "7f800"},
            ("b, c share a group",),
            id="those that need the fewest ways share a CLOSID",
        ),
        pytest.param(
            HASWELL,
            (group("pqos1", 0xFFFFF), group("pqos2", 0xFFFFF)),
            CacheDemand((claim("a", "6 ways"), claim("b", "3 ways")), BATCH),
            {"": "ffe00", "a": "1ff"},
            (
                "batch VMs stay in the default group: critical applications have the only CLOSID",
                "a, b share a group",
                "ways 1ff in domain 0 are shared with groups of others",
                "ways 1ff in domain 1 are shared with groups of others",
            ),
            id="one CLOSID is for the critical applications",
        ),
        pytest.param(
            HASWELL,
            (group("pqos1", 0xF0), group("pqos2", 0xF), group("pqos3", 0xF)),
            CacheDemand((claim("a", "6 ways"),), BATCH),
            {"": "fffff"},
            ("no CLOSID is left: 3 groups are of others",),
            id="no CLOSID is left",
        ),
        pytest.param(
            Resctrl((), (BANDWIDTH,)),
            (),
            CacheDemand((claim("a"),)),
            {},
            ("this host cannot divide its cache",),
            id="no CAT",
        ),
        pytest.param(
            Resctrl((cache(11, 1, 0x600),), ()),
            (),
            CacheDemand(tuple(claim(name, "1 way") for name in "abcdefghij")),
            {"": "600", "a": "1", **{name: f"{2 << number:x}" for number, name in enumerate("cdefghij")}},
            ("a, b share a group", "a gets 1 of 2 ways in domain 0", "a gets 1 of 2 ways in domain 1"),
            id="more applications than ways",
        ),
        pytest.param(
            LARGE,
            (group("equipoise-b", 0x3F), group("equipoise-a", 0x3C0)),
            CacheDemand((claim("a", "6 ways"), claim("b", "4 ways"), claim("0", "2 ways"))),
            {"": "ff000", "b": "f", "a": "3f0", "0": "c00"},
            (),
            id="groups keep their order, new ones come last",
        ),
    ],
)
def test_plans(
    offered: Resctrl, groups: tuple[Group, ...], demand: CacheDemand, expected: dict[str, str], notes: tuple[str, ...]
) -> None:
    plan = allocate(offered, present(*groups), demand)
    assert masks(plan) == expected
    assert plan.notes == notes


def test_an_application_has_its_own_ways_only_where_it_runs() -> None:
    plan = allocate(LARGE, present(), CacheDemand((claim("a", "6 ways", {0}), claim("b", "4 ways", {0, 1})), BATCH))
    assert masks(plan, 0) == {"": "ffc00", "a": "3f", "b": "3c0", "+batch": "7fc00"}
    assert masks(plan, 1) == {"": "ffff0", "a": "ffff0", "b": "f", "+batch": "7fff0"}
    assert plan.groups["equipoise-a"].alone == {0}
    assert plan.groups[BATCH_GROUP].alone == frozenset()


def test_data_and_code_get_the_same_ways_and_the_inner_cache_none() -> None:
    offered = Resctrl((cache(name="L2"), cache(name="L3CODE"), cache(name="L3DATA")), ())
    plan = allocate(offered, present(), CacheDemand((claim("a", "6 ways"),), BATCH))
    assert (
        masks(plan, resource="L3CODE") == masks(plan, resource="L3DATA") == {"": "fffc0", "a": "3f", "+batch": "7ffc0"}
    )
    assert masks(plan, resource="L2") == {}


def test_the_default_group_gets_no_more_than_it_had() -> None:
    original = {Slot("L3", 0): 0xFFF, Slot("L3", 1): 0xF}
    plan = allocate(LARGE, present(), CacheDemand((claim("a", "6 ways"),), original=original))
    assert masks(plan, 0)[""] == "fc0"
    assert masks(plan, 1)[""] == "fffc0", "all that it had is somebody's own now"
    assert masks(allocate(LARGE, present(), CacheDemand(original=original)))[""] == "fff"


def test_held_back_vms_have_the_ways_of_batch_vms_and_less_bandwidth() -> None:
    demand = CacheDemand((claim("a", "6 ways"),), BATCH, frozenset({"hog2"}), 35)
    plan = allocate(LARGE, present(), demand)
    assert plan.groups[HELD_GROUP].vms == {"hog2"}
    assert plan.groups[BATCH_GROUP].vms == {"hog1"}
    held, batch = plan.groups[HELD_GROUP].values, plan.groups[BATCH_GROUP].values
    assert held == {**batch, Slot("MB", 0): 40, Slot("MB", 1): 40}
    assert batch[Slot("MB", 0)] == 100
    assert masks(allocate(LARGE, present(), CacheDemand(batch=BATCH, held=BATCH, bandwidth=20))) == {
        "": "fffff",
        "+held": "7ffff",
    }


def test_without_a_closid_for_them_all_batch_vms_are_held_back() -> None:
    offered = Resctrl((cache(closids=3),), (BANDWIDTH,))
    plan = allocate(offered, present(), CacheDemand((claim("a", "6 ways"),), BATCH, frozenset({"hog2"}), 35))
    assert HELD_GROUP not in plan.groups
    assert plan.groups[BATCH_GROUP].vms == BATCH
    assert plan.groups[BATCH_GROUP].values[Slot("MB", 0)] == 40
    assert plan.notes == ("no CLOSID is left to hold back single batch VMs: all of them are",)


def test_no_group_has_an_empty_mask_whatever_is_asked_for() -> None:
    for count in range(1, 30):
        for size in ("1 way", "100%", "auto"):
            plan = allocate(HASWELL, present(), CacheDemand(tuple(claim(f"a{n}", size) for n in range(count)), BATCH))
            for one in plan.groups.values():
                assert all(HASWELL.caches[0].problem(Mask(value)) == "" for value in one.values.values())
            own = [Mask(one.values[Slot("L3", 0)]) for one in plan.groups.values() if one.alone]
            assert sum(mask.ways for mask in own) == union(own).ways
            assert (union(own) & Mask(plan.groups[DEFAULT].values[Slot("L3", 0)])) == EMPTY
            assert sorted(app for one in plan.groups.values() for app in one.apps) == sorted(
                f"a{n}" for n in range(count)
            )
