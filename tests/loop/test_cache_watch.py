"""Monitoring groups come, go with their VMs and are removed; what is counted becomes numbers, and a warning."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from manager.control.cache_plan import BATCH_GROUP
from manager.control.monitoring import HELD, LASTING, Traffic
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.cache_watch import RETRY_S
from manager.loop.status import tick_status
from manager.loop.tick import TickResult
from manager.model.cache import DEFAULT, BandwidthResource, BandwidthUnit
from manager.model.records import Severity
from manager.model.registration import CacheControl, Mode
from tests.fakes.cache_host import CACHE, CacheHost
from tests.fakes.resctrl import FakeResctrl
from tests.loop.test_cache import CacheRig

SHOP = "equipoise-shop"
LIMIT = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 5, (0, 1))
GB = 10**9
RMIDS = 12


class WatchRig(CacheRig):
    """A critical VM that is alone in its group, two batch VMs, and one of neither that nobody divides the cache for."""

    def groups(self) -> set[str]:
        """The paths of all monitoring groups."""
        tree = self.host.resctrl.groups
        return {f"{name}/{one}".lstrip("/") for name, group in tree.items() for one in group.monitored}

    def serve_all(self, gbps: dict[str, float], domain: int = 0) -> TickResult:
        """A tick of one second in which VMs had so much memory traffic."""
        for name, amount in gbps.items():
            self.host.use(name, int(amount * GB), int(amount * GB) // 2, 1 << 20, domain)
        return self.tick()


def made(folder: Path, rmids: int = RMIDS, bandwidths: tuple[BandwidthResource, ...] = ()) -> WatchRig:
    rig = WatchRig(folder, CacheHost(resctrl=FakeResctrl((CACHE,), bandwidths, rmids=rmids)))
    for name, kind in (("web", "critical"), ("hog", "batch"), ("crunch", "batch"), ("db", "critical")):
        rig.host.boot(name, 2)
        rig.register(name, kind)
    rig.host.boot("stranger")
    rig.serve("shop", "4 ways", "web")
    rig.control(cache=CacheControl.ON, pinning=False)
    return rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[WatchRig]:
    rig = made(tmp_path)
    yield rig
    rig.journal.close()


def total(result: TickResult, vm: str, domain: int = 0) -> float | None:
    parts = result.cache.measured.vms.get(vm, ())
    return next((one.total for one in parts if one.domain == domain), None)


def told(result: TickResult) -> list[str]:
    return [one.message for one in result.events if one.kind == "cache"]


ALL = {f"{BATCH_GROUP}/equipoise-hog", f"{BATCH_GROUP}/equipoise-crunch", "equipoise-db"}


def test_each_vm_is_measured_by_a_group_of_its_own_or_the_one_it_is_alone_in(rig: WatchRig) -> None:
    first = rig.tick()
    assert rig.groups() == ALL
    assert rig.host.measured_in("web") == {SHOP}
    assert rig.host.measured_in("hog") == {f"{BATCH_GROUP}/equipoise-hog"}
    assert rig.host.measured_in("db") == {"/equipoise-db"}
    assert rig.host.measured_in("stranger") == {DEFAULT}
    assert {vm: total(first, vm) for vm in ("web", "hog", "crunch", "db")} == dict.fromkeys(
        ("web", "hog", "crunch", "db")
    ), "one reading is no rate"
    result = rig.serve_all({"web": 1, "hog": 7, "crunch": 2, "db": 0.5, "stranger": 4})
    assert result.cache.measured.vms == {
        vm: (Traffic(0, 1 << 20, rate * GB, rate * GB / 2), Traffic(1, 0, 0.0, 0.0))
        for vm, rate in (("web", 1), ("hog", 7), ("crunch", 2), ("db", 0.5))
    }
    assert [(one.domain, one.rate) for one in result.cache.measured.memories] == [(0, 14.5 * GB), (1, 0.0)]
    assert not told(result)


def test_files_are_held_from_tick_to_tick_and_nothing_is_written(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tick()
    rig.tick()
    held = set(rig.host.resctrl.held)

    def opened(path: str, *, write: bool = False) -> object:
        raise AssertionError(f"{path} was opened again")

    monkeypatch.setattr(rig.host.resctrl, "open", opened)
    assert total(rig.serve_all({"hog": 3}), "hog") == 3 * GB
    assert rig.host.resctrl.held == held


def test_a_vm_that_goes_to_another_group_is_measured_there(rig: WatchRig) -> None:
    rig.tick()
    rig.serve("bar", "2 ways", "db")
    rig.tick()
    assert rig.host.measured_in("db") == {"equipoise-bar"}, "alone there"
    rig.assignment = replace(rig.assignment, applications=rig.assignment.applications[:1])
    rig.tick()
    assert rig.host.measured_in("db") == {"/equipoise-db"}
    assert rig.groups() == ALL


def test_a_vm_that_becomes_alone_needs_its_group_no_more_and_gets_it_back(rig: WatchRig) -> None:
    rig.tick()
    rig.host.use("hog", 99 * GB)
    rig.host.stop("crunch")
    rig.tick()
    assert rig.groups() == {"equipoise-db"}
    assert rig.host.measured_in("hog") == {BATCH_GROUP}
    assert total(rig.serve_all({"hog": 2}), "hog") == 2 * GB, "what it had before is not counted"
    rig.host.boot("crunch", 2)
    result = rig.serve_all({"hog": 2})
    assert rig.groups() == ALL
    assert total(result, "hog") is None, "counted by another group from now on"
    assert total(rig.serve_all({"hog": 2}), "hog") == 2 * GB


def test_threads_that_start_are_counted_and_those_outside_fetched(rig: WatchRig) -> None:
    rig.tick()
    rig.host.plug_vcpu("hog")
    rig.host.resctrl.start(99)
    rig.host.started[rig.host.vm("hog").instance].append(99)
    rig.tick()
    assert rig.host.measured_in("hog") == {f"{BATCH_GROUP}/equipoise-hog"}


def test_a_thread_that_somebody_took_out_is_counted_again_with_its_vm(rig: WatchRig) -> None:
    rig.tick()
    tid = rig.host.started[rig.host.vm("hog").instance][-1]
    rig.host.resctrl.tasks[tid] = rig.host.resctrl.root
    rig.tick()
    assert rig.host.measured_in("hog") == {f"{BATCH_GROUP}/equipoise-hog"}


@pytest.mark.parametrize("text", ["Unavailable", "Error", "0"])
def test_a_counter_that_says_nothing_or_goes_back_is_no_number(rig: WatchRig, text: str) -> None:
    rig.tick()
    rig.serve_all({"hog": 3, "crunch": 1})
    counters = rig.host.resctrl.groups[BATCH_GROUP].monitored["equipoise-hog"].counters
    before = counters[0, "mbm_total_bytes"]
    counters[0, "mbm_total_bytes"] = text
    result = rig.tick()
    assert total(result, "hog") is None
    assert result.cache.measured.vms["hog"][0].occupancy_bytes == 1 << 20
    assert total(result, "crunch") == 0
    assert not result.problems
    counters[0, "mbm_total_bytes"] = before
    rig.tick()
    assert total(rig.serve_all({"hog": 3}), "hog") == 3 * GB


def test_few_counters_are_for_critical_vms_and_it_is_said_who_gets_none(tmp_path: Path) -> None:
    rig = made(tmp_path, rmids=7)  # five for control groups
    rig.host.resctrl.make("mon_groups/perf")
    result = rig.tick()
    assert rig.groups() == {"equipoise-db", "perf"}
    assert told(result) == ["not measured, as RMIDs are few: crunch, hog"]
    assert not told(rig.tick()), "once"
    rig.host.resctrl.remove("mon_groups/perf")
    assert told(rig.tick()) == ["not measured, as RMIDs are few: hog"]
    rig.host.resctrl.make("mon_groups/perf")
    rig.tick()
    assert rig.groups() == {"equipoise-db", "perf"}, "what another tool takes is given up"
    rig.loop.release("test")
    assert rig.groups() == {"perf"}
    rig.journal.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EBUSY, errno.EIO])
def test_a_group_that_the_kernel_refuses_is_asked_for_again_after_a_while(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    asked, make = [], rig.host.resctrl.make

    def refuse(path: str) -> None:
        if "mon_groups" not in path:
            make(path)
            return
        asked.append(path)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(rig.host.resctrl, "make", refuse)
    [message] = told(rig.tick())
    assert message.startswith("some are not measured: make resctrl group ")
    for _ in range(int(RETRY_S) - 2):
        assert not told(rig.tick())
    assert len(asked) == 1
    assert rig.host.group_of("web") == SHOP, "the ways are as they are to be"
    assert total(rig.serve_all({"web": 2}), "web") == 2 * GB, "it needs none"
    rig.tick()
    rig.tick()
    assert len(asked) == 2
    monkeypatch.setattr(rig.host.resctrl, "make", make)
    rig.now_s += RETRY_S
    rig.tick()
    assert rig.groups() == ALL


@pytest.mark.parametrize("number", [errno.EIO, errno.EBUSY, errno.EINVAL, errno.ENODEV])
def test_a_move_that_fails_is_said_and_tried_again(rig: WatchRig, number: int) -> None:
    def refuse(group: object, leaf: str, _text: str) -> None:
        if leaf == "tasks" and getattr(group, "above", None) is not None:
            raise OSError(number, os.strerror(number))

    rig.host.resctrl.before_command = refuse
    result = rig.tick()
    assert any("mon_groups" in one for one in told(result)) is (number != errno.ENODEV)
    assert rig.host.group_of("web") == SHOP
    rig.host.resctrl.before_command = lambda _group, _leaf, _text: None
    rig.tick()
    assert rig.host.measured_in("db") == {"/equipoise-db"}
    assert rig.host.measured_in("hog") == {f"{BATCH_GROUP}/equipoise-hog"}


@pytest.mark.parametrize("how", [{"cache": CacheControl.OFF}, {"mode": Mode.RELEASED}, {"mode": Mode.OBSERVE}])
def test_all_groups_of_ours_go_and_only_these(rig: WatchRig, how: dict[str, object]) -> None:
    rig.tick()
    assert rig.tick().cache.owned == len(ALL) + 2
    rig.host.resctrl.make("mon_groups/perf")
    rig.control(**how)
    result = rig.tick()
    assert rig.groups() == {"perf"}
    assert result.cache.owned == 0
    assert not result.cache.measured.vms
    assert len(rig.host.resctrl.held) == (3 if how.get("mode") is Mode.OBSERVE else 0), "of the default group"


def test_a_group_that_cannot_be_removed_is_tried_again_until_it_can(
    rig: WatchRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.tick()
    remove = rig.host.resctrl.remove

    def refuse(path: str) -> None:
        if path == "mon_groups/equipoise-db":
            raise OSError(errno.EBUSY, "busy")
        remove(path)

    monkeypatch.setattr(rig.host.resctrl, "remove", refuse)
    result = rig.loop.release("test")
    assert result.cache.owned == 1
    assert told(result) == ["remove resctrl group mon_groups/equipoise-db: busy"]
    monkeypatch.setattr(rig.host.resctrl, "remove", remove)
    assert rig.loop.release("test").cache.owned == 0
    assert not rig.groups()
    assert not rig.host.resctrl.held


def test_after_a_crash_groups_are_found_by_their_names(rig: WatchRig) -> None:
    rig.tick()
    rig.crash()
    rig.host.port = None
    rig.tick()
    assert rig.groups() == ALL
    assert total(rig.serve_all({"hog": 2}), "hog") == 2 * GB
    rig.crash()
    rig.host.port = None
    rig.loop.release("test")
    assert not rig.groups()


def test_one_vm_is_released_from_its_group_alone(rig: WatchRig) -> None:
    rig.tick()
    rig.loop.release("VM released", "hog")
    assert rig.groups() == ALL - {f"{BATCH_GROUP}/equipoise-hog"}


def test_in_mode_observe_nothing_is_made_and_that_is_said(rig: WatchRig) -> None:
    rig.control(mode=Mode.OBSERVE)
    assert "in mode observe nothing is measured: that takes groups" in told(rig.tick())
    assert not rig.groups()
    rig.control(mode=Mode.ENFORCE)
    rig.assignment = replace(
        rig.assignment,
        vms=tuple(replace(one, mode=Mode.OBSERVE) if one.name == "db" else one for one in rig.assignment.vms),
    )
    rig.tick()
    assert rig.groups() == ALL - {"equipoise-db"}


def test_without_counters_of_memory_traffic_it_is_said_that_guilt_cannot_be_told(tmp_path: Path) -> None:
    rig = made(tmp_path, 0, (LIMIT,))
    assert told(rig.tick()) == [
        "this host does not measure memory traffic: no VM can be found to be the cause, and none is held back"
    ]
    assert not rig.tick().cache.measured.vms
    rig.journal.close()


# Saturation


def fill(rig: WatchRig, ticks: int, hog: float) -> list[TickResult]:
    return [rig.serve_all({"hog": hog, "web": 1}) for _ in range(ticks)]


def test_memory_that_is_used_up_is_warned_of_once_with_who_takes_it(rig: WatchRig) -> None:
    rig.tick()
    fill(rig, HELD, 19)
    fill(rig, 1, 1)
    results = fill(rig, LASTING + 3, 18)
    [event] = [one for result in results for one in result.events if one.kind == "cache"]
    assert event.severity is Severity.WARNING
    assert event.message == (
        "the memory of domain 0 is all but used up: 19 GB/s for 5 intervals, at most 20 were measured; most is taken by"
        " hog 18, web 1"
    )
    assert [one.cache.measured.memories[0].saturated for one in results] == [False] * (LASTING - 1) + [True] * 4
    assert results[-1].cache.notes == (event.message,)
    calm = fill(rig, LASTING, 2)
    assert calm[-1].cache.notes == ()
    assert not calm[-1].cache.measured.memories[0].saturated
    rig.control(bandwidth_warning=0)
    assert not [one for result in fill(rig, 20, 19) for one in told(result)]


def test_the_most_measured_outlives_a_crash_and_not_a_boot(rig: WatchRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.tick()
    fill(rig, HELD, 19)
    with monkeypatch.context() as patch:
        patch.setattr(rig.journal, "note_maxima", lambda _maxima: pytest.fail("written again, though it is the same"))
        fill(rig, 3, 19.1)
    rig.crash()
    assert rig.journal.maxima == {0: 20 * GB}
    assert rig.tick().cache.measured.memories[0].maximum == 20 * GB
    rig.host.boot_id = "another"
    rig.crash()
    assert rig.journal.maxima == {}


# What is told


def test_status_and_metrics_tell_what_was_measured(rig: WatchRig) -> None:
    rig.tick()
    fill(rig, HELD, 9)
    rig.host.resctrl.groups[BATCH_GROUP].monitored["equipoise-crunch"].counters[0, "llc_occupancy"] = "Unavailable"
    result = rig.serve_all({"hog": 7})
    status = tick_status(result, 0, 0, True).cache
    assert status is not None
    of = {one.vm: one.parts[0] for one in status.vms}
    assert list(of) == ["crunch", "db", "hog", "web"]
    assert (of["hog"].occupancy_bytes, of["hog"].bandwidth_total_bytes_per_s) == (1 << 20, 7 * GB)
    assert of["crunch"].occupancy_bytes is None
    assert (status.memories[0].bandwidth_bytes_per_s, status.memories[0].maximum_bytes_per_s) == (7 * GB, 10 * GB)
    metrics = AgentMetrics()
    metrics.observe(result, 0, True)
    labels = {"vm": "hog", "domain": "0"}
    sample = metrics.registry.get_sample_value
    assert sample("equipoise_cache_occupancy_bytes", labels) == 1 << 20
    assert sample("equipoise_cache_occupancy_bytes", {"vm": "crunch", "domain": "0"}) is None
    traffic = "equipoise_memory_bandwidth_bytes_per_second"
    assert [sample(traffic, {**labels, "scope": scope}) for scope in ("total", "local")] == [7 * GB, 3.5 * GB]
    whole = [f"equipoise_memory_traffic_{name}bytes_per_second" for name in ("", "max_")]
    assert [sample(name, {"domain": "0"}) for name in whole] == [7 * GB, 10 * GB]
