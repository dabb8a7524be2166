"""What agents and a manager tell each other, and what comes of it; see ``tests.loop.site``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import delete

from manager.errors import ManagerUnavailable
from manager.logs import TICK_NUMBER
from manager.loop.link import joined
from manager.loop.pace import Waits
from manager.model.histogram import Histogram
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Mode
from manager.model.source import SourceKind, SourceState, SourceStatus
from manager.model.traffic import HostServices, SeenService
from manager.model.warp import Mechanism
from manager.model.window import Window
from manager.store.database import Database
from manager.store.models import VmStatusRow
from tests.fakes.examiner import FOUND
from tests.fakes.vm import domain_uuid
from tests.loop.site import SLOT_S, START_S, Site

STATUS = SourceStatus("shop", "log", SourceKind.NGINX_SYSLOG, SourceState.OK, START_S, accepted=7, refused=2)


@pytest.fixture
def site(migrated: Callable[[str], Database], tmp_path: Path) -> Iterator[Site]:
    """An application with a VM on each of two hosts."""
    with ExitStack() as stack:
        made = Site(migrated("sqlite"), tmp_path, stack)
        for machine in made.machines:
            made.client.request("PUT", f"/hosts/{machine.name}", body={})
            made.client.request("PUT", f"/vms/web-{machine.name}", body={"class": "critical", "host": machine.name})
            machine.host.boot(f"web-{machine.name}")
        body: dict[str, Any] = {
            "tiers": [{"name": "web", "vms": ["web-a", "web-b"]}],
            "sla": {"response_time_ms": 10},
            "sources": [{"type": "nginx_syslog", "name": "log"}],
        }
        made.client.request("PUT", "/applications/shop", body=body)
        made.pass_slot()
        yield made


def test_what_one_host_measured_is_at_the_other_within_an_interval_and_counts_once(site: Site) -> None:
    a, b = site.machines
    a.telemetry.count("shop", site.now_s + 4, 30)
    site.pass_slot()
    assert (a.window(), b.window()) == (a.telemetry.recent()[0], a.telemetry.recent()[0])
    b.telemetry.count("shop", site.now_s + 1, 12, time_ms=50)
    a.telemetry.count("shop", site.now_s + 2, 8)
    site.client.request(
        "POST", "/applications/shop/samples", body={"times_ms": [5.0] * 100, "end": _text(site.now_s + 2)}
    )
    site.pass_slot()
    for machine in (a, b):
        assert machine.slots() == [(10, 30), (15, 120)]
    assert a.window() == b.window()
    assert (a.window().rate_rps, a.window().percentile_ms(95)) == (24, pytest.approx(50, rel=0.01))
    assert site.windows() == [(10, 30), (15, 120)]


def test_the_manager_knows_what_runs_on_a_host_and_when_that_changes(site: Site) -> None:
    a, _ = site.machines

    def domains() -> list[tuple[str, str | None]]:
        items = site.client.items("/hosts/a/domains")
        return sorted((one["libvirt_name"], one["registered_as"]) for one in items)

    assert domains() == [("web-a", "web-a")]
    a.host.boot("stranger")
    a.agent.reporter.sync()
    assert domains() == [("stranger", None), ("web-a", "web-a")]
    site.bodies.clear()
    site.pass_slot()
    assert not any(b'"libvirt_name":"stranger"' in body for body in site.bodies), "told once"
    a.host.stop("web-a")
    a.agent.reporter.sync()
    assert domains() == [("stranger", None)]


def test_telling_and_asking_are_one_request_where_nobody_else_waits_for_it(site: Site) -> None:
    a, _ = site.machines

    def exchange() -> list[str]:
        site.requests.clear()
        a.agent.reporter.exchange()
        return [one.rpartition("/")[2] for one in site.requests]

    assert exchange() == ["report", "slots"]
    site.client.request("PUT", "/applications/shop", body={"tiers": [{"name": "web", "vms": ["web-a"]}]})
    assert exchange() == ["report", "slots", "assignment"]
    assert exchange() == ["report"]
    site.client.request("PATCH", "/vms/web-a", body={"mode": "observe"})
    assert exchange() == ["report", "assignment"]
    a.agent.tick()
    assert a.policy.seen[-1].vms[0].mode is Mode.OBSERVE
    site.up = False
    a.agent.reporter.exchange()
    assert a.metrics.registry.get_sample_value("equipoise_agent_manager_up") == 0


def test_findings_are_told_once_they_are_known(site: Site) -> None:
    a, _ = site.machines
    with pytest.raises(ManagerUnavailable, match="never reported findings"):
        site.client.get("/hosts/a/findings")
    a.findings.start()
    a.examiner.going.set()
    deadline = time.monotonic() + 120
    while a.findings.latest is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    a.agent.reporter.sync()
    [found] = site.client.get("/hosts/a/findings")["findings"]
    assert (found["id"], found["status"], found["advice"]) == (FOUND.id, FOUND.status, FOUND.advice)
    site.bodies.clear()
    a.agent.reporter.sync()
    assert not any(FOUND.advice.encode() in body for body in site.bodies)
    a.findings.stop()


def test_services_are_reported_now_and_then_and_where_they_changed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    a, _ = site.machines
    service = SeenService(domain_uuid("web-a"), 80, "http", 1.0, 48.2, 1.3, 1.9, None, 0.0, START_S, 45.0)

    def reported() -> list[dict[str, Any]]:
        site.bodies.clear()
        a.agent.reporter.sync()
        bodies = [json.loads(body) for body in site.bodies if b'"services":' in body]
        return [body["services"] for body in bodies if body["services"] is not None]

    assert reported() == [], "that there are none was reported with the first exchange"
    a.telemetry.found = HostServices((service,))
    assert reported() == [], "not so soon"
    monkeypatch.setattr("manager.loop.reporter._SERVICES_S", 0.0)
    [body] = reported()
    assert body["services"][0] | {"port": 80, "p95_ms": 1.9, "p99_ms": None} == body["services"][0]
    assert reported() == [], "nothing changed"
    [shown] = site.client.items("/hosts/a/services")
    assert (shown["registered_as"], shown["port"], shown["since"]) == ("web-a", 80, "2026-03-01T12:00:00Z")
    monkeypatch.setattr("manager.loop.reporter._REPEAT_S", 0.0)
    assert reported() == [body], "for a manager that has forgotten"


def test_a_tick_says_which_registrations_it_acted_on(site: Site) -> None:
    a, _ = site.machines

    def acted_on() -> int:
        return int(site.client.get("/hosts/a")["tick"]["assignment_revision"])

    site.client.request("PATCH", "/vms/web-a", body={"mode": "observe"})
    number = int(site.client.request("GET", "/hosts/a/assignment").headers["Equipoise-Revision"])
    a.agent.reporter.sync()
    a.agent.reporter.sync()
    assert acted_on() < number, "known, and not acted on yet"
    assert site.client.get("/vms/web-a")["status"]["mode"] == "enforce"
    a.agent.tick()
    a.agent.reporter.sync()
    assert acted_on() == number
    assert site.client.get("/vms/web-a")["status"]["mode"] == "observe"


def test_of_vms_only_changes_are_told_while_the_manager_knows_them(site: Site) -> None:
    a, _ = site.machines

    def told() -> tuple[list[str] | None, bool]:
        site.bodies.clear()
        a.agent.tick()
        a.agent.reporter.report()
        body = json.loads(site.bodies[0])
        return body["vms"] and [vm["vm"] for vm in body["vms"]], body["vms_changed_only"]

    def cpu_share() -> float:
        return float(site.client.get("/vms/web-a")["status"]["cpu_share"])

    told()
    a.host.vms[domain_uuid("web-a")].cpu_ns += 10**9
    site.now_s += SLOT_S
    assert told() == (None, True)
    assert cpu_share() == 0.05
    a.host.vms[domain_uuid("web-a")].weight = 77
    assert told() == (["web-a"], True)
    stolen = {"agent_version": "0.1.0", "vms": [site.client.get("/vms/web-a")["status"]]}
    site.client.request("POST", "/hosts/b/report", body=stolen)
    assert told() == (None, True)
    assert site.client.get("/vms/web-a")["status_host"] == "a", "it is not registered for b"
    with site.database.writing() as session:
        session.execute(delete(VmStatusRow))
    assert told() == (None, True), "the manager has forgotten it"
    assert told() == (["web-a"], False), "and says that it misses it here"


def kinds_of_claims(site: Site) -> list[str]:
    return [event["kind"] for event in site.client.items("/events") if event["kind"] in {"vm-claimed", "vm-moved"}]


def let_web_a_move(site: Site) -> None:
    """It may run on any host, and is all that the application has."""
    site.client.request("PUT", "/applications/shop", body={"tiers": [{"name": "web", "vms": ["web-a"]}]})
    site.client.request("PUT", "/vms/web-a", body={"class": "critical"})
    site.pass_slot()
    site.pass_slot()


def test_a_vm_migrates_by_the_word_of_the_host_that_it_leaves(site: Site) -> None:
    """Also for longer than any alarm takes; what is measured at the destination counts at once and once."""
    a, b = site.machines
    let_web_a_move(site)
    a.host.leaving.add(b.host.boot("web-a"))
    for _ in range(20):
        site.pass_slot()
    assert site.client.get("/vms/web-a")["status"]["migrating"] is True
    b.telemetry.count("shop", site.now_s + 1, 12)
    end_s = site.now_s + SLOT_S - START_S
    site.pass_slot()
    assert (site.windows(), kinds_of_claims(site)) == ([(end_s, 12)], [])
    a.host.stop("web-a")
    site.pass_slot()
    site.pass_slot()
    shown = site.client.get("/vms/web-a")
    assert (shown["status_host"], shown["status"]["migrating"]) == ("b", False)
    assert (site.windows(), kinds_of_claims(site)) == ([(end_s, 12)], ["vm-moved"])


def test_a_vm_that_migrates_between_two_ticks_loses_no_response_times(site: Site) -> None:
    a, b = site.machines
    let_web_a_move(site)
    a.host.stop("web-a")
    b.host.boot("web-a")
    b.telemetry.count("shop", site.now_s + 1, 12)
    end_s = site.now_s + SLOT_S - START_S
    site.pass_slot()
    site.pass_slot()
    assert site.client.get("/vms/web-a")["status_host"] == "b"
    assert (site.windows(), kinds_of_claims(site)) == ([(end_s, 12)], ["vm-moved"])


def test_a_host_that_has_the_same_domain_without_that_word_counts_for_nothing(site: Site) -> None:
    _, b = site.machines
    let_web_a_move(site)
    uuid = b.host.boot("web-a")
    b.host.leaving.add(uuid)
    b.telemetry.count("shop", site.now_s + 1, 12)
    for _ in range(15):
        site.pass_slot()
    assert site.client.get("/vms/web-a")["status_host"] == "a"
    assert (site.windows(), kinds_of_claims(site)) == ([], ["vm-claimed", "vm-claimed"])


def test_earlier_slots_stay_known_while_few_are_told(site: Site) -> None:
    a, b = site.machines
    for _ in range(8):
        a.telemetry.count("shop", site.now_s + 1, 1)
        site.pass_slot()
    assert b.slots() == a.slots() == [(10 + 5 * number, 1) for number in range(8)]


def test_without_the_manager_a_host_goes_by_what_it_measures_itself(site: Site) -> None:
    a, b = site.machines
    a.telemetry.count("shop", site.now_s + 1, 30)
    b.telemetry.count("shop", site.now_s + 1, 4)
    site.pass_slot()
    site.up = False
    for _ in range(7):
        a.telemetry.count("shop", site.now_s + 1, 10)
        a.telemetry.finish()
        site.pass_slot()
    assert a.slots()[-1] == (45, 10)
    assert a.policy.seen[-1].applications[0].sla_state == "met"
    assert b.slots() == [(10, 34)], "kept, with its age"
    assert b.policy.seen[-1].applications[0].sla_state == "no_data"
    site.up = True
    site.pass_slot()
    site.pass_slot()
    assert site.windows() == [(10, 34), *((15 + 5 * number, 10) for number in range(7))], "each once"
    assert b.slots()[-4:] == [(30, 10), (35, 10), (40, 10), (45, 10)]
    ticks = site.client.items("/hosts/a/ticks")
    recorded = len(a.policy.seen) - 2  # the first measures nothing, the last one is yet to be sent
    assert len(ticks) == len({one["at"] for one in ticks}) == recorded


def test_an_answer_that_got_lost_counts_nothing_twice(site: Site) -> None:
    a, _ = site.machines
    a.telemetry.count("shop", site.now_s + 1, 30)
    a.telemetry.finish()
    a.agent.tick()
    working, lost = site.app.test_client, [True]

    def losing() -> Any:
        client = working()
        real = client.open

        def handle(*arguments: Any, **options: Any) -> Any:
            answer = real(*arguments, **options)
            if lost.pop() if lost else False:
                raise httpx.ReadTimeout("timed out")
            return answer

        client.open = handle
        return client

    site.app.test_client = losing
    a.agent.reporter.sync()
    assert a.outbox.peek(9, 10**6).last, "nothing was acknowledged"
    a.agent.reporter.sync()
    assert (a.outbox.peek(9, 10**6).last, site.windows()) == (0, [(10, 30)])


def test_what_was_measured_last_is_kept_at_the_end(site: Site) -> None:
    a, _ = site.machines
    a.telemetry.count("shop", site.now_s + 1, 30)
    site.up = False
    a.agent.stop()
    assert [one["end_s"] for one in a.outbox.peek(99, 10**6).fields["window"]] == [site.now_s + 5]
    site.up = True
    a.agent.reporter.sync()
    assert site.windows() == [(10, 30)]


def test_sources_are_those_of_the_assignment_and_believe_the_vms_that_run_here(site: Site) -> None:
    a, _ = site.machines
    a.host.ips = {domain_uuid("web-a"): frozenset({"10.0.0.1"}), domain_uuid("stranger"): frozenset({"10.0.0.9"})}
    a.host.interfaces = {domain_uuid("web-a"): frozenset({7}), domain_uuid("stranger"): frozenset({9})}
    a.host.boot("stranger")
    before = len(a.telemetry.configured)
    site.pass_slot()
    [applications], slot_s, addresses = a.telemetry.configured[-1]
    assert ([source.name for source in applications.sources], slot_s) == (["log"], SLOT_S)
    assert addresses == {"web-a": frozenset({"10.0.0.1"})}
    assert a.telemetry.taps == {"web-a": frozenset({7})}
    assert a.telemetry.domain_taps == a.host.interfaces, "services are found in VMs that nobody registered, too"
    site.pass_slot()
    assert len(a.telemetry.configured) == before + 1, "only when something changed"
    a.host.stop("web-a")
    site.pass_slot()
    assert a.telemetry.configured[-1][2] == {}
    site.client.request("DELETE", "/applications/shop")
    site.pass_slot()
    assert a.telemetry.configured[-1][0] == ()


def test_the_health_of_sources_is_told_and_shown(site: Site) -> None:
    a, _ = site.machines
    a.telemetry.health = (STATUS,)
    site.pass_slot()
    shown = {one["host"]: one["status"] for one in site.client.items("/applications/shop/sources")}
    assert shown["a"]["accepted"] == 7

    def metric(name: str, **labels: str) -> float | None:
        return a.metrics.registry.get_sample_value(name, {"application": "shop", "source": "log", **labels})

    assert [metric("equipoise_source_samples_total", result=one) for one in ("accepted", "refused", "late")] == [
        7,
        2,
        0,
    ]
    assert [metric("equipoise_source_state", state=one) for one in ("ok", "failing")] == [1, 0]
    a.telemetry.health = (replace(STATUS, state=SourceState.FAILING),)
    site.pass_slot()
    assert [metric("equipoise_source_state", state=one) for one in ("ok", "failing")] == [0, 1]
    a.telemetry.health = ()
    site.pass_slot()
    assert metric("equipoise_source_samples_total", result="accepted") is None


def test_another_policy_is_an_event(site: Site) -> None:
    site.pass_slot()
    site.client.request("PUT", "/hosts/a", body={"policy": "equal"})
    site.pass_slot()
    site.pass_slot()
    events = [one for one in site.client.items("/events") if one["kind"] == "policy-changed"]
    assert [(one["host"], one["message"]) for one in events] == [("a", "policy equal instead of priority")]
    assert [one["policy"] for one in site.client.items("/hosts/a/ticks", limit=2)] == ["equal", "priority"]


def test_the_history_of_ticks_holds_what_they_saw(site: Site) -> None:
    a, _ = site.machines
    a.host.vms[domain_uuid("web-a")].cpu_ns += 10**9
    site.pass_slot()
    a.agent.reporter.sync()
    newest = site.client.items("/hosts/a/ticks", limit=1)[0]
    assert newest["at"] == "2026-03-01T12:00:10Z"
    [vm] = newest["vms"]
    assert (vm["vm"], vm["cpu_share"], vm["weight"], vm["mode"]) == ("web-a", 0.05, 10_000, Mode.ENFORCE)
    told = {"application": "shop"}
    assert a.metrics.registry.get_sample_value("equipoise_application_cpu_share", told) == pytest.approx(0.05)


def test_a_rate_that_nobody_knows_is_not_shown(site: Site) -> None:
    a, _ = site.machines
    a.telemetry.count("shop", site.now_s + 1, 30)
    site.pass_slot()
    assert a.metrics.registry.get_sample_value("equipoise_application_rate_rps", {"application": "shop"}) == 6
    unknown = [replace(one, requests=None) for one in a.telemetry.recent()]
    a.telemetry.slots = lambda: {"shop": tuple(unknown)}
    a.agent.tick()
    assert a.metrics.registry.get_sample_value("equipoise_application_rate_rps", {"application": "shop"}) is None
    assert a.metrics.registry.get_sample_value("equipoise_application_window_samples", {"application": "shop"}) == 30


def test_slots_of_both_are_joined() -> None:
    mine, same, other = (Window("shop", end_s - 5, end_s, Histogram({500: 1})) for end_s in (5, 5, 6))
    assert joined({"a": (mine,), "b": (mine,)}, {"b": (same, other), "c": (other,)}, 5.0) == {
        "a": (mine,),
        "b": (Window("shop", 0, 5, Histogram({500: 2})), other),
        "c": (other,),
    }


def _text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).isoformat()


def test_capabilities_are_told_once_and_when_they_change(site: Site) -> None:
    machine = site.machines[0]

    def told_by_exchange() -> int:
        site.bodies.clear()
        machine.agent.reporter.sync()
        return sum(b'"capabilities":{' in body for body in site.bodies)

    assert told_by_exchange() == 0, "it was told when the fixture made its first exchange"
    machine.host.offline.add(3)
    machine.agent.tick()
    assert (told_by_exchange(), told_by_exchange()) == (1, 0)
    assert site.client.get("/hosts/a")["capabilities"]["online_cpus"] == "0-2"


def test_our_scheduler_is_watched_while_it_decides_and_its_end_is_told_before_the_next_interval(site: Site) -> None:
    a, _ = site.machines
    a.host.mechanisms = (Mechanism.SCHED_EXT, Mechanism.BVT)

    def events() -> list[str]:
        a.agent.reporter.sync()
        items = site.client.items("/events", host="a", severity="error")
        return [one["message"] for one in items if one["kind"] == "warp"]

    def ticks_of_a_watch() -> int:
        before = a.agent._loop.number
        a.agent.watch()
        return a.agent._loop.number - before

    assert ticks_of_a_watch() == 0
    site.client.request("PATCH", "/hosts/a", body={"warp": "sched_ext"})
    for _ in range(2):
        site.pass_slot()
    assert a.host.settings()[KnobKey(domain_uuid("web-a"), Knob.WARP)] == 29_651
    assert ticks_of_a_watch() == 0
    assert events() == []
    a.host.eject()
    assert ticks_of_a_watch() == 1
    [message] = events()
    assert message.startswith("warps: the kernel threw our sched_ext scheduler out")
    assert ticks_of_a_watch() == 0, "nothing is looked at again and again in vain"
    assert a.host.settings()[KnobKey(domain_uuid("web-a"), Knob.BVT_WARP)] == 29_651_000
    told = site.client.get("/hosts/a")["tick"]["warp"]
    assert (told["mechanism"], told["vms"]) == ("bvt", 1)
    assert site.client.get("/vms/web-a")["status"]["warp_us"] == 29_651
    a.agent.stop()
    assert not a.host.settings()[KnobKey(domain_uuid("web-a"), Knob.BVT_WARP)]


def test_a_mistake_in_an_exchange_is_counted_and_exchanges_go_on(
    site: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    a, _ = site.machines
    exchanged = threading.Event()
    mistakes = iter([KeyError("a mistake")])

    def exchange(waits: Waits) -> None:
        assert waits is Waits.ALL
        for mistake in mistakes:
            raise mistake
        exchanged.set()

    monkeypatch.setattr(a.agent.reporter, "exchange", exchange)
    a.agent.start()
    assert exchanged.wait(120)
    a.agent.stop()
    assert a.metrics.registry.get_sample_value("equipoise_agent_errors_total", {"kind": "bug"}) == 1
    assert "the exchange with the manager failed: KeyError('a mistake')" in caplog.text


def test_what_is_logged_in_a_tick_has_its_number(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = site.machines[0].agent
    seen: list[str] = []
    slots = agent._telemetry.slots
    monkeypatch.setattr(agent._telemetry, "slots", lambda: seen.append(TICK_NUMBER.get()) or slots())
    agent.tick()
    agent.tick()
    last = agent._loop.number
    assert seen == [str(last - 1), str(last)]
    assert TICK_NUMBER.get() == ""
