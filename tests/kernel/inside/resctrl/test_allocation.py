"""Plans for several sets of VMs are reached on the real file system, and nothing is passed through that may not be."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.control.cache_plan import BATCH_GROUP, CacheDemand, CachePlan
from manager.model.cache import DEFAULT, Mask, Slot
from tests.kernel.inside.resctrl.host import DOMAINS, POINT, Host, claim, demand

BATCH = frozenset({"batch"})
SETS: dict[str, tuple[CacheDemand, ...]] = {
    "one, growing and shrinking": tuple(demand(claim("shop", f"{ways} ways"), batch=BATCH) for ways in (4, 9, 14, 2)),
    "two, of which one comes and goes": (
        demand(claim("shop", "6 ways"), batch=BATCH),
        demand(claim("shop", "6 ways"), claim("mail", "25%"), batch=BATCH),
        demand(claim("mail", "25%"), batch=BATCH),
        demand(claim("mail", "3MiB"), claim("shop", "6 ways")),
    ),
    "auto": (
        demand(claim("shop", "auto"), claim("mail", "auto"), batch=BATCH),
        demand(claim("shop", "auto", ways=3), claim("mail", "auto", ways=9), batch=BATCH),
    ),
    "in single domains": (
        demand(claim("shop", "5 ways", domains=frozenset({0})), claim("mail", "7 ways", domains=frozenset({1}))),
        demand(claim("shop", "5 ways", domains=frozenset({1})), claim("mail", "7 ways", domains=frozenset({0}))),
    ),
    "an application of two VMs": (
        demand(claim("shop", "8 ways", "shop", "wiki"), batch=BATCH),
        demand(claim("shop", "8 ways"), batch=BATCH | {"wiki"}),
    ),
    "more than there are ways": (
        demand(claim("shop", "15 ways"), claim("mail", "15 ways"), batch=BATCH),
        demand(claim("shop", "100%"), batch=BATCH, default_ways=4),
    ),
}


def follow(host: Host, wanted: CacheDemand, before: CachePlan | None) -> CachePlan:
    """Carry it out and look at all groups after each step."""
    plan, steps = host.plan(wanted)
    for step in steps:
        assert not step.shares, step
        host.take(step)
        look(host, plan, before)
    host.check(plan)
    return plan


def look(host: Host, plan: CachePlan, before: CachePlan | None) -> None:
    """Whoever is and will be alone is alone, and all that is used is legal."""
    present = host.groups.read()
    used = {DEFAULT, *host.placed().values()}
    for name in used:
        for domain in DOMAINS:
            ways = host.ways(present[name], domain)
            assert all(cache.problem(ways) == "" for cache in host.offered.divided)
            if not all(name in one.groups and domain in one.groups[name].alone for one in (before or plan, plan)):
                continue
            for other in used - {name}:
                assert ways.disjoint(host.ways(present[other], domain)), f"{name} shares ways with {other or 'default'}"


@pytest.mark.parametrize("name", SETS)
def test_every_plan_is_reached_and_everything_comes_back(host: Host, name: str) -> None:
    original = host.state()
    plan = follow(host, demand(), None)
    for wanted in SETS[name]:
        plan = follow(host, wanted, plan)
        for one in wanted.claims:
            (group,) = (group for group in plan.groups.values() if one.app in group.apps)
            assert {host.placed()[vm] for vm in one.vms} == {group.name}
    assert host.state() != original
    follow(host, demand(), plan)
    assert host.state() == original


def test_sizes_become_ways_from_the_lowest_on(host: Host) -> None:
    """2 + 5 ways for applications; batch has the rest but for the highest way, which is the default group's alone."""
    plan = host.reach(demand(claim("shop", "2 ways"), claim("mail", "25%"), batch=BATCH))
    present = host.groups.read()
    found = {name: present[name].values[Slot("L3", 0)] for name in plan.groups}
    assert found[DEFAULT] & (found["equipoise-shop"] | found["equipoise-mail"]) == 0
    assert sorted(map(int.bit_count, (found["equipoise-shop"], found["equipoise-mail"]))) == [2, 5]
    assert found["equipoise-shop"] | found["equipoise-mail"] == Mask.span(0, 7).bits
    assert (found[DEFAULT], found[BATCH_GROUP]) == (Mask.span(7, 13).bits, Mask.span(7, 12).bits)


def test_more_applications_than_closids_share(host: Host, closids: int) -> None:
    """With 4 CLOSIDs there are two for applications, beside those of the default group and of batch VMs."""
    claims = [claim(app, f"{ways} ways") for app, ways in (("shop", 6), ("mail", 2), ("wiki", 3))]
    plan = host.reach(demand(*claims, batch=BATCH))
    if closids == 4:
        assert plan.notes == ("mail, wiki share a group",)
        assert host.placed()["mail"] == host.placed()["wiki"] != host.placed()["shop"]
    else:
        assert plan.notes == ()
        assert len(set(host.placed().values())) == 4


def test_closids_of_others_are_counted(host: Host, closids: int) -> None:
    """All but two are taken: one is left for all applications, none for batch VMs."""
    names = [f"pqos{number}" for number in range(closids - 2)]
    for name in names:
        host.tree.make(name)
    plan = host.reach(demand(claim("shop", "6 ways"), claim("mail", "4 ways"), batch=BATCH))
    assert any("share a group" in note for note in plan.notes)
    assert any("batch VMs stay in the default group" in note for note in plan.notes)
    assert host.placed()["shop"] == host.placed()["mail"] != DEFAULT
    assert host.placed()["batch"] == DEFAULT
    assert set(names) < set(host.groups.names())
    host.reach(demand())


def test_no_closid_is_left(host: Host, closids: int) -> None:
    for number in range(closids - 1):
        host.tree.make(f"pqos{number}")
    before = host.state()
    plan = host.reach(demand(claim("shop", "6 ways"), batch=BATCH))
    assert plan.notes[0] == f"no CLOSID is left: {closids - 1} groups are of others"
    assert host.state() == before


@pytest.mark.parametrize("exclusive", [False, True], ids=["shareable", "exclusive"])
def test_groups_of_others_keep_their_ways(host: Host, foreign: Path, exclusive: bool) -> None:
    """Their ways are avoided; after the release all is as it was."""
    (foreign / "schemata").write_text("L3:0=3c0;1=f\n")
    (POINT / "schemata").write_text("L3:0=ff000;1=ffff0\n")
    if exclusive:
        (foreign / "mode").write_text("exclusive\n")
    original, theirs = host.state(), host.groups.read()["pqos1"]
    kept = host.groups.read()[DEFAULT].values
    wanted = CacheDemand((claim("shop", "4 ways", domains=frozenset({0})),), BATCH, original=kept)
    plan = host.reach(wanted)
    present = host.groups.read()
    assert present["pqos1"] == theirs
    own = host.ways(present["equipoise-shop"], 0)
    assert own.ways == 4
    assert own.disjoint(host.ways(theirs, 0))
    assert plan.groups["equipoise-shop"].alone == {0}
    host.reach(CacheDemand(original=kept))
    assert host.state() == original
