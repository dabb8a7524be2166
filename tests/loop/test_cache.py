"""Cache ways from their registration to the groups of resctrl and back, on the fake."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.control.cache_plan import BATCH_GROUP
from manager.control.judged_windows import latest
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.apply import Outcome
from manager.loop.journal import CacheNote
from manager.loop.status import tick_status
from manager.loop.tick import TickResult
from manager.model.cache import DEFAULT, Slot
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Application, CacheControl, Mode, Sla, Tier
from manager.model.window import Window
from tests.fakes.cache_host import CacheHost
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

SHOP, BAR = "equipoise-shop", "equipoise-bar"


class CacheRig(Rig):
    """A shop that wants four ways, a batch VM, and a VM that nobody registered."""

    host: CacheHost

    def serve(self, app: str, cache: str | None, *vms: str, **fields: object) -> None:
        served = Application(app, (Tier("web", vms),), cache=cache)
        others = tuple(one for one in self.assignment.applications if one.name != app)
        self.assignment = replace(self.assignment, applications=(*others, replace(served, **fields)))  # type: ignore[arg-type]


def shop(made: CacheRig) -> Iterator[CacheRig]:
    """With an application of one critical VM that asks for 4 ways, a batch VM, and one that is nobody's."""
    for name, kind in (("web", "critical"), ("hog", "batch")):
        made.host.boot(name, 2)
        made.register(name, kind)
    made.host.boot("stranger")
    made.serve("shop", "4 ways", "web")
    made.control(cache=CacheControl.ON, pinning=False)
    yield made
    made.journal.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[CacheRig]:
    yield from shop(CacheRig(tmp_path, CacheHost()))


def kinds(result: TickResult) -> list[OutcomeKind]:
    return [one.kind for one in result.cache.outcomes]


def told(result: TickResult, kind: str = "cache") -> list[str]:
    return [one.message for one in result.events if one.kind == kind]


def masks(rig: CacheRig, domain: int = 0) -> dict[str, str]:
    return {name: rig.host.ways(name, domain) for name in rig.host.resctrl.groups}


def test_a_critical_vm_gets_ways_of_its_own_and_all_goes_back(rig: CacheRig) -> None:
    result = rig.tick()
    assert set(kinds(result)) == {OutcomeKind.APPLIED}
    assert masks(rig) == {DEFAULT: "ff0", SHOP: "f", BATCH_GROUP: "7f0"}
    assert (rig.host.group_of("web"), rig.host.group_of("hog")) == (SHOP, BATCH_GROUP)
    assert rig.host.group_of("stranger") == DEFAULT
    [moved] = [one for one in result.records if one.vm == "web" and one.knob is Knob.CACHE_GROUP]
    assert (moved.before, moved.after, moved.reason) == ("", SHOP, "for shop")
    written = [one for one in result.records if one.knob is Knob.CACHE_WAYS and one.after.startswith(f"{SHOP} L3")]
    assert [(one.vm, one.after) for one in written] == [(None, f"{SHOP} L3:0=f;1=f")]
    again = rig.tick()
    assert not again.cache.outcomes
    assert [(one.name, one.applications, one.vms) for one in again.cache.groups] == [
        (DEFAULT, (), ()),
        (BATCH_GROUP, (), ("hog",)),
        (SHOP, ("shop",), ("web",)),
    ]
    assert again.cache.owned == 2
    undone = rig.loop.release("test")
    assert set(kinds(undone)) == {OutcomeKind.RESTORED}
    assert {one.reason for one in undone.records if one.knob is Knob.CACHE_WAYS} == {"test"}
    assert masks(rig) == {DEFAULT: "fff"}
    assert (undone.cache.owned, rig.journal.cache) == (0, None)
    assert not rig.host.resctrl.held, "nobody is kept from unmounting it"
    assert not rig.loop.release("test").cache.outcomes


@pytest.mark.parametrize("how", [{"cache": CacheControl.OFF}, {"mode": Mode.RELEASED}, {"mode": Mode.OBSERVE}])
def test_what_the_default_group_had_comes_back(rig: CacheRig, how: dict[str, object]) -> None:
    rig.host.resctrl.root.values[Slot("L3", 1)] = 0xFC
    rig.tick()
    assert rig.host.ways(DEFAULT, 1) == "f0"
    rig.control(**how)
    rig.tick()
    assert (masks(rig), masks(rig, 1)) == ({DEFAULT: "fff"}, {DEFAULT: "fc"})
    assert rig.journal.cache is None


def test_observe_writes_nothing_and_tells_once_what_it_would_do(rig: CacheRig) -> None:
    rig.control(mode=Mode.OBSERVE)
    result = rig.tick()
    assert set(kinds(result)) == {OutcomeKind.OBSERVED}
    assert {one.after for one in result.records if one.knob is Knob.CACHE_GROUP} == {SHOP, BATCH_GROUP}
    assert masks(rig) == {DEFAULT: "fff"}
    assert rig.journal.cache is None
    assert not [one for one in rig.tick().records if one.knob is Knob.CACHE_GROUP], "once"


def test_a_vm_that_is_observed_is_left_out_and_the_others_are_not(rig: CacheRig) -> None:
    rig.host.boot("bar")
    rig.register("bar")
    rig.serve("bar", "2 ways", "bar", mode=Mode.OBSERVE)
    rig.tick()
    result = rig.tick()
    assert masks(rig) == {DEFAULT: "ff0", SHOP: "f", BATCH_GROUP: "7f0"}
    assert BAR in {one.group for one in result.cache.outcomes}
    assert set(kinds(result)) == {OutcomeKind.OBSERVED}


def test_a_pinned_vm_has_ways_where_it_runs_only(rig: CacheRig) -> None:
    rig.control(pinning=True)
    rig.tick()
    pins = {cpu for index in (0, 1) for cpu in rig.value("web", Knob.VCPU_PIN, index)}  # type: ignore[union-attr]
    assert pins == {0, 1}
    assert masks(rig) == {DEFAULT: "ff0", SHOP: "f", BATCH_GROUP: "7f0"}
    assert masks(rig, 1)[DEFAULT] == "fff"
    assert not rig.tick().cache.outcomes, "in the very tick that pinned it"


def test_plugged_threads_inherit_and_one_outside_is_fetched(rig: CacheRig) -> None:
    rig.tick()
    rig.host.plug_vcpu("web")
    rig.host.resctrl.start(99)
    rig.host.started[rig.host.vm("web").instance].append(99)
    result = rig.tick()
    assert [(one.key.knob, one.before, one.after) for one in result.cache.outcomes] == [(Knob.CACHE_GROUP, SHOP, SHOP)]
    assert rig.host.group_of("web") == SHOP


def test_a_vm_that_is_registered_no_more_goes_back(rig: CacheRig) -> None:
    rig.tick()
    rig.assignment = replace(rig.assignment, vms=tuple(one for one in rig.assignment.vms if one.name != "hog"))
    rig.tick()
    assert rig.host.group_of("hog") == DEFAULT
    assert masks(rig) == {DEFAULT: "ff0", SHOP: "f"}


def test_one_vm_is_released(rig: CacheRig) -> None:
    rig.tick()
    result = rig.loop.release("VM released", "hog")
    assert rig.host.group_of("hog") == DEFAULT
    assert rig.host.group_of("web") == SHOP
    assert [(one.key.uuid, one.reason) for one in result.cache.outcomes] == [(domain_uuid("hog"), "VM released")]


def test_nothing_is_taken_from_a_vm_that_cannot_be_read(rig: CacheRig) -> None:
    rig.tick()
    rig.host.unreadable.add(domain_uuid("web"))
    assert not rig.tick().cache.outcomes
    assert rig.host.group_of("web") == SHOP
    assert rig.tick().cache.owned == 2


@pytest.mark.parametrize(
    ("values", "reason"), [({Slot("L3", 0): 0x3, Slot("L3", 1): 0xF}, "another tool changed it"), (None, "removed")]
)
def test_a_group_that_somebody_else_changed_is_given_up_until_adopted(
    rig: CacheRig, values: dict[Slot, int] | None, reason: str
) -> None:
    rig.tick()
    if values is None:
        rig.host.resctrl.remove(SHOP)
    else:
        rig.host.resctrl.groups[SHOP].values = dict(values)
    result, metrics = rig.tick(), AgentMetrics()
    [external] = [one for one in result.cache.outcomes if one.kind is OutcomeKind.EXTERNAL]
    assert reason in external.reason
    metrics.observe(result, 0, True)
    labels = {"knob": "cache_ways", "result": "external"}
    assert metrics.registry.get_sample_value("equipoise_agent_writes_total", labels) == 1
    [event] = [one for one in result.events if one.kind == "external-change"]
    assert event.severity is Severity.WARNING
    assert event.message.startswith(f"{SHOP} L3:0=f;1=f: ")
    rig.tick()
    rig.crash()
    assert not told(rig.tick(), "external-change"), "once, and known after a crash"
    assert (SHOP in rig.host.resctrl.groups) == (values is not None)
    assert values is None or rig.host.ways(SHOP) == "3"
    rig.control(adoptions=1)
    rig.tick()
    assert rig.host.group_of("web") == SHOP
    assert rig.host.ways(SHOP) == "f"
    rig.loop.release("test")
    assert masks(rig) == {DEFAULT: "fff"}


def test_a_group_given_up_stays_as_it_is_when_all_else_goes_back(rig: CacheRig) -> None:
    rig.tick()
    rig.host.resctrl.groups[SHOP].values[Slot("L3", 0)] = 0x3
    rig.tick()
    result = rig.loop.release("test")
    assert masks(rig) == {DEFAULT: "fff", SHOP: "3"}
    assert rig.host.group_of("web") == SHOP
    assert result.cache.owned == 0


def test_what_somebody_gives_the_default_group_meanwhile_is_left(rig: CacheRig) -> None:
    rig.tick()
    rig.host.resctrl.root.values[Slot("L3", 0)] = 0xF00
    assert OutcomeKind.EXTERNAL in kinds(rig.tick())
    rig.loop.release("test")
    assert masks(rig) == {DEFAULT: "f00"}


def test_vms_in_groups_of_others_are_left_there_and_told_once(rig: CacheRig) -> None:
    rig.host.resctrl.make("pqos")
    for tid in rig.host.started[rig.host.vm("web").instance]:
        rig.host.resctrl.tasks[tid] = rig.host.resctrl.groups["pqos"]
    result = rig.tick()
    assert told(result) == ["web is in resctrl group pqos, which another tool made: it is left there"]
    assert rig.host.group_of("web") == "pqos"
    assert not told(rig.tick())


def test_a_host_without_cat_or_resctrl_tells_it_once(rig: CacheRig) -> None:
    rig.host.resctrl.mounted = None
    assert told(rig.tick()) == ["the cache is not divided: resctrl is not mounted, and cache_mount does not allow to"]
    assert not told(rig.tick())
    bare = Rig(rig.folder / "bare")
    bare.control(cache=CacheControl.ON)
    assert told(bare.tick()) == ["this host has no resctrl: its cache is not divided"]
    bare.journal.close()


def test_it_is_mounted_where_that_is_allowed_and_unmounted_after(rig: CacheRig) -> None:
    rig.host.resctrl.mounted = None
    rig.control(cache_mount=True)
    rig.tick()
    assert rig.host.group_of("web") == SHOP
    rig.crash()
    rig.tick()
    rig.loop.release("test")
    assert rig.host.resctrl.mounted is None
    assert rig.journal.cache is None


def test_the_mount_stays_where_others_have_made_groups(rig: CacheRig) -> None:
    rig.host.resctrl.mounted = None
    rig.control(cache_mount=True)
    rig.tick()
    rig.host.resctrl.make("pqos")
    result = rig.loop.release("test")
    assert (masks(rig)[DEFAULT], result.cache.owned) == ("fff", 0)
    assert rig.host.resctrl.mounted is not None


def test_a_kernel_that_refuses_the_mount_is_asked_once(rig: CacheRig, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def refuse(_options: frozenset[str]) -> None:
        asked.append(1)
        raise OSError(errno.ENODEV, "No such device")

    rig.host.resctrl.mounted = None
    monkeypatch.setattr(rig.host.resctrl, "mount", refuse)
    rig.control(cache_mount=True)
    assert told(rig.tick()) == ["the cache is not divided: mount resctrl: No such device"]
    assert not told(rig.tick())
    assert asked == [1]
    assert rig.journal.cache is None


def test_who_unmounts_it_is_not_fought(rig: CacheRig) -> None:
    rig.control(cache_mount=True)
    rig.tick()
    resctrl = rig.host.resctrl
    resctrl.held.clear()  # as umount --lazy
    resctrl.unmount()
    resctrl.tasks = dict.fromkeys(resctrl.tasks, resctrl.root)
    rig.host.cache.close()
    assert told(rig.tick()) == ["another tool unmounted resctrl: `equipoise adopt` takes it back"]
    rig.crash()
    rig.tick()
    assert resctrl.mounted is None
    rig.control(adoptions=1)
    rig.tick()
    assert rig.host.group_of("web") == SHOP


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EBUSY, errno.EINVAL])
def test_a_refusal_is_told_with_the_kernels_reason_and_tried_again(rig: CacheRig, number: int) -> None:
    refused: list[Outcome] = []

    def refuse(_group: object, leaf: str, _text: str) -> None:
        if leaf == "schemata" and not refused:
            raise OSError(number, "refused")

    rig.host.resctrl.before_command = refuse
    result = rig.tick()
    refused += [one for one in result.cache.outcomes if one.kind is OutcomeKind.FAILED]
    assert len(refused) == 1
    assert told(result) == [refused[0].detail]
    rig.tick()
    assert masks(rig) == {DEFAULT: "ff0", SHOP: "f", BATCH_GROUP: "7f0"}


def test_when_the_kernel_has_room_for_fewer_groups_than_it_says_less_is_made_of_them(rig: CacheRig) -> None:
    rig.host.resctrl.rmids = 2  # each group takes one
    assert OutcomeKind.FAILED in kinds(rig.tick())
    rig.tick()
    result = rig.tick()
    assert masks(rig) == {DEFAULT: "ff0", SHOP: "f"}
    assert not result.cache.outcomes
    assert result.cache.notes == (
        "batch VMs stay in the default group: critical applications have the only CLOSID",
        "not measured, as RMIDs are few: hog",
    )


def test_groups_without_a_note_are_removed_and_the_default_group_has_all_again(rig: CacheRig) -> None:
    rig.tick()
    rig.journal.note_cache(None)
    rig.crash()
    rig.control(cache=CacheControl.OFF)
    rig.tick()
    assert masks(rig) == {DEFAULT: "fff"}


def test_a_note_outlives_a_crash_and_not_a_boot(rig: CacheRig) -> None:
    note = CacheNote(True, {Slot("L3", 0): 0xF, Slot("MB", 1): 70}, {SHOP: 2})
    rig.journal.note_cache(note)
    rig.crash()
    assert rig.journal.cache == note
    rig.host.boot_id = "another"
    rig.crash()
    assert rig.journal.cache is None


def test_status_and_metrics_tell_the_ways_in_force(rig: CacheRig) -> None:
    rig.host.resctrl.make("pqos")
    rig.host.resctrl.groups["pqos"].values[Slot("L3", 0)] = 0xC00
    metrics = AgentMetrics()
    result = rig.tick()
    metrics.observe(result, 0, True)
    ways = {"application": "shop", "domain": "1"}
    assert metrics.registry.get_sample_value("equipoise_cache_ways", ways) == 4
    status = tick_status(result, 0, 0, True).cache
    assert status is not None
    assert (status.resource, status.ways, status.shareable, status.groups_of_others) == ("L3", 12, "c00", 1)
    told = {group.name: [part.mask for part in group.parts] for group in status.groups}
    assert told[SHOP] == ["f", "f"]
    assert [(group.applications, group.vms) for group in status.groups if group.name == SHOP] == [(["shop"], ["web"])]
    rig.control(cache=CacheControl.OFF)
    assert tick_status(rig.tick(), 0, 0, True).cache is None


def test_auto_grows_while_the_sla_is_violated_and_gives_back_what_does_not_help(rig: CacheRig) -> None:
    rig.serve("shop", "auto", "web", sla=Sla(100.0))
    rig.tick()
    begun = rig.host.resctrl.groups[SHOP].values[Slot("L3", 0)].bit_count()
    most = begun
    reasons = set()
    for _ in range(80):
        rig.now_s += 4.0
        window = Window("shop", rig.now_s - 4.0, rig.now_s + 1.0, Histogram.of([300_000.0] * 50), 50.0)
        rig.now_s += 1.0
        result = rig.loop.tick(rig.assignment, {"shop": (window,)})
        assert latest((window,), rig.now_s, 5.0)
        reasons |= {one.reason for one in result.cache.outcomes if one.group == SHOP}
        most = max(most, rig.host.resctrl.groups[SHOP].values[Slot("L3", 0)].bit_count())
    assert begun == 6
    assert most > begun
    assert any("target 100 ms" in reason for reason in reasons)
    assert any("more ways did not help" in reason for reason in reasons)
