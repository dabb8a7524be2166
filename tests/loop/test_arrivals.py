"""A tick for a VM that has come, which does not wait for the next interval."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from manager.model.knobs import Knob, KnobKey
from manager.store.database import Database
from tests.fakes.vm import domain_uuid
from tests.loop.site import Machine, Site

HANGS_S = 60


@pytest.fixture
def machine(migrated: Callable[[str], Database], tmp_path: Path) -> Iterator[Machine]:
    """Of a running agent that knows of a VM which does not run yet."""
    with ExitStack() as stack:
        site = Site(migrated("sqlite"), tmp_path, stack)
        site.client.request("PUT", "/hosts/a", body={})
        site.client.request("PUT", "/vms/web", body={"class": "critical", "host": "a"})
        made = site.machines[0]
        made.agent.start()
        yield made
        made.agent.stop()


def test_once_it_has_ended_the_vm_is_set(machine: Machine) -> None:
    machine.host.boot("web")
    assert machine.agent.tick_now().wait(HANGS_S)
    assert machine.host.settings()[KnobKey(domain_uuid("web"), Knob.WEIGHT)] == 10_000


def test_ticks_for_several_vms_never_overlap(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    slots, all_asked_for = machine.telemetry.slots, threading.Event()
    within: list[int] = []
    most: list[int] = []

    def watched() -> object:
        within.append(1)
        all_asked_for.wait(HANGS_S)
        most.append(len(within))
        within.pop()
        return slots()

    monkeypatch.setattr(machine.telemetry, "slots", watched)
    asked = [machine.agent.tick_now() for _ in range(5)]
    all_asked_for.set()
    for ended in asked:
        assert ended.wait(HANGS_S)
    assert len(most) >= 5
    assert set(most) == {1}


def test_nobody_waits_for_a_tick_that_fails(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(machine.telemetry, "slots", lambda: 1 / 0)
        assert machine.agent.tick_now().wait(HANGS_S)
    errors = machine.metrics.registry.get_sample_value
    deadline = threading.Event()
    while not errors("equipoise_agent_errors_total", {"kind": "bug"}):
        assert not deadline.wait(0.005)
    machine.host.boot("web")
    assert machine.agent.tick_now().wait(HANGS_S)
    assert machine.host.settings()[KnobKey(domain_uuid("web"), Knob.WEIGHT)] == 10_000


def test_an_agent_that_has_stopped_makes_no_more_of_them(machine: Machine) -> None:
    machine.agent.stop()
    machine.host.boot("web")
    before = machine.host.settings()
    assert machine.agent.tick_now().is_set()
    assert machine.host.settings() == before
