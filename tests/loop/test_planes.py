"""Two planes: what is so now is reported a few times a minute, what happened once a minute, all where it matters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from manager.cli import main, record_command
from manager.loop import link as link_module
from manager.loop import outgoing as outgoing_module
from manager.loop import reporter as reporter_module
from manager.loop.observer import Clock
from manager.loop.pace import Pace, Waits
from manager.loop.watches import Oversight
from manager.model.records import Severity
from manager.model.traffic import HostServices, SeenService
from manager.protocol.assignment import Cadence
from manager.replay.recording import read_lines
from manager.store.database import Database
from tests.fakes.vm import domain_uuid
from tests.loop.site import SLOT_S, START_S, Machine, Site
from tests.reported import ticks_in

CADENCE = Cadence(live_s=2 * SLOT_S, history_s=60.0)
ITEMS = ("decisions", "events")


@pytest.fixture
def site(migrated: Callable[[str], Database], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A fleet that is large by its setting; host a serves its application alone, and has had a whole exchange."""
    with ExitStack() as stack:
        made = Site(migrated("sqlite"), tmp_path, stack, small_fleet=0)
        for module in (reporter_module, outgoing_module):
            monkeypatch.setattr(module, "system_clock", lambda: Clock(made.now_s, made.now_s))
        [a, _] = made.machines
        made.client.request("PUT", "/vms/web-a", body={"class": "critical", "host": "a"})
        a.host.boot("web-a")
        body = {"tiers": [{"name": "web", "vms": ["web-a"]}], "sla": {"response_time_ms": 10}}
        made.client.request("PUT", "/applications/shop", body=body)
        for _ in range(3):
            interval(made)
        assert a.agent.reporter._link.cadence == CADENCE
        yield made


def interval(site: Site, time_ms: float = 5.0) -> list[dict[str, Any]]:
    """An interval of host a in which requests were answered; the reports of it."""
    [a, _] = site.machines
    site.now_s += SLOT_S
    a.telemetry.finish()
    a.telemetry.count("shop", site.now_s - 1, 30, time_ms=time_ms)
    a.agent.tick()
    site.requests.clear()
    site.bodies.clear()
    a.agent.reporter.turn()
    bodies = zip(site.requests, site.bodies, strict=True)
    return [json.loads(body) for request, body in bodies if request.endswith("/report")]


def has_history(report: dict[str, Any]) -> bool:
    return bool(ticks_in(report)) or any(report[name] for name in ITEMS)


def to_history(site: Site) -> None:
    """Let time pass until a report with history has just been made."""
    for _ in range(20):
        if any(map(has_history, interval(site))):
            return
    raise AssertionError("there was no history for 100 s")


def test_a_minute_has_six_small_reports_of_which_one_has_the_history(site: Site) -> None:
    to_history(site)
    reports = [interval(site) for _ in range(12)]
    made = [report for turn in reports for report in turn]
    assert [len(turn) for turn in reports].count(1) == 6
    whole = [report for report in made if has_history(report)]
    assert [len(ticks_in(report)) for report in whole] == [12]
    assert all(report["tick"] and len(report["windows"]) == 1 for report in made if not has_history(report))
    ends_s = [end_s for end_s, _ in site.windows()]
    assert ends_s == [ends_s[0] + SLOT_S * number for number in range(len(ends_s))], "each slot, once"
    assert len(site.client.items("/hosts/a/ticks")) >= 13


def test_the_present_state_is_known_meanwhile(site: Site) -> None:
    to_history(site)
    while not interval(site):
        pass
    assert site.client.get("/applications/shop")["sla_state"] == "met"
    assert site.windows()[-1] == (site.now_s - START_S, 30)


def test_an_event_is_not_kept_waiting(site: Site) -> None:
    to_history(site)
    interval(site)
    site.machines[0].agent.say(Severity.WARNING, "something", "happened")
    [report] = interval(site)
    assert [event["kind"] for event in report["events"]] == ["something"]
    site.machines[0].agent.say(Severity.WARNING, "something", "happened again")
    site.up = False
    interval(site)
    site.up = True
    [report] = interval(site)
    assert [event["message"] for event in report["events"]] == ["happened again"]


def test_settings_of_vms_come_with_history_or_where_they_cannot_wait(site: Site) -> None:
    to_history(site)
    site.client.request("PATCH", "/vms/web-a", body={"weight": 4000})
    reports = [report for _ in range(4) for report in interval(site)]
    changed = [report for report in reports if report["vms"]]
    assert [[vm["vm"] for vm in report["vms"]] for report in changed] == [["web-a"]], "with a new assignment, at once"
    assert not any(map(has_history, changed))


def test_figures_of_services_come_with_history(site: Site) -> None:
    to_history(site)
    [a, _] = site.machines
    made = []
    for p95_ms in range(1, 13):
        seen = SeenService(domain_uuid("web-a"), 80, "http", 1.0, 48.2, 1.3, p95_ms, None, 0.0, START_S, 45.0)
        a.telemetry.found = HostServices((seen,))
        made += interval(site)
    told = [report for report in made if report["services"] is not None]
    assert len(made) > len(told) == 1, "a live report with them would be none that one statement stores"
    assert has_history(told[0])


def test_violations_and_what_runs_here_are_reported_in_each_interval(site: Site) -> None:
    to_history(site)
    assert all(len(interval(site, time_ms=50)) == 1 for _ in range(3))
    assert site.client.get("/applications/shop")["sla_state"] == "violated"
    assert len(interval(site)) == 1, "also that it ended"
    assert sum(len(interval(site)) for _ in range(4)) == 2
    site.machines[0].host.boot("stranger")
    assert len(interval(site)) == 1
    assert {one["libvirt_name"] for one in site.client.items("/hosts/a/domains")} == {"web-a", "stranger"}


def test_that_ticks_stand_still_is_told_at_once_and_then_in_turns(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a fleet whose agents get no CPU reports twice as often as ever, and none of it is as cheap as usual."""
    to_history(site)
    standing_s: list[float | None] = [45.0]
    monkeypatch.setattr(Oversight, "stalled_s", property(lambda _: standing_s[-1]))
    [report] = interval(site)
    assert (report["live"], report["tick"]["stalled_s"]) == (False, 45.0)
    standing_s.append(60.0)
    told = [report for _ in range(4) for report in interval(site) if not has_history(report)]
    assert [(report["live"], report["tick"]["stalled_s"]) for report in told] == [(True, 60.0)] * 2
    standing_s.append(None)
    [report] = interval(site)
    assert (report["live"], report["tick"]["stalled_s"]) == (False, None)


@pytest.mark.parametrize("path", ["/applications/shop/windows", "/hosts/a/ticks"])
def test_who_looks_gets_all_in_each_interval(site: Site, path: str) -> None:
    to_history(site)
    site.client.get(path)
    while not interval(site):
        pass
    reports = [report for _ in range(5) for report in interval(site)]
    assert [len(ticks_in(report)) for report in reports[1:]] == [1, 1, 1, 1], "after the first, with what waited"
    for _ in range(7):
        interval(site)
    assert sum(len(interval(site)) for _ in range(4)) == 2, "a minute after nobody looked any more"


def test_a_manager_that_asks_for_nothing_gets_all_in_each_interval() -> None:
    pace = Pace("a")
    assert pace.live_due(0.0)
    assert pace.waits_due(0.0) is Waits.ALL
    pace.reported(1.0, None, Waits.ALL)
    assert pace.live_due(1.1)
    assert pace.waits_due(1.1) is Waits.ALL


def test_hosts_take_turns_by_themselves() -> None:
    paces = [Pace(f"kvm{number}") for number in range(1200)]
    for pace in paces:  # after an hour without a manager, all at once
        pace.reported(3600.0, CADENCE, Waits.ALL)
    due = [0] * 12
    for pace in paces:
        first = next(turn for turn in range(12) if pace.waits_due(3600.0 + SLOT_S * (turn + 1)) is Waits.ALL)
        due[first] += 1
    assert min(due) > 60, "about 100 in each interval of the next minute"
    assert sum(pace.live_due(3600.0 + SLOT_S) for pace in paces) in range(480, 720)


def away(pace: Pace, begin_s: float, end_s: float) -> int:
    """No manager answers in between, and is asked every second where that may be; how often it was."""
    asked = 0
    for second in range(int(begin_s), int(end_s)):
        if pace.asks(second) and (pace.live_due(second) or pace.waits_due(second) is Waits.ALL):
            pace.failed(second)
            asked += 1
    return asked


def test_a_fleet_comes_back_by_itself_in_turns() -> None:
    """After an hour without a manager each host is there within two intervals, its events within the minute that
    follows, and all else that waited within a quarter of that hour.
    """
    paces = [Pace(f"kvm{number}") for number in range(1200)]
    for pace in paces:
        pace.reported(0.0, CADENCE, Waits.ALL)
    asked = [away(pace, 60, 3600) for pace in paces]
    assert max(asked) <= 3540 / CADENCE.live_s + 2, "at once again, then once in each turn"
    live, events, history = [0] * 10, [0] * 71, [0] * 15
    for pace in paces:
        first = next(second for second in range(10) if pace.asks(3600.0 + second))
        live[first] += 1
        assert pace.live_due(3600.0 + first)
        assert pace.waits_due(3600.0 + first, urgent=True) is Waits.NOTHING, "first it says that it is there"
        pace.reported(3600.0 + first, CADENCE, Waits.NOTHING)
        told, all_due = False, 0.0
        for second in range(first + 1, first + 901):
            waits = pace.waits_due(3600.0 + second, urgent=not told)
            if waits is Waits.ALL:
                all_due = 3600.0 + second
                break
            if waits is Waits.EVENTS:
                pace.reported(3600.0 + second, CADENCE, waits)
                told = True
                events[second] += 1
        history[int(all_due - 3600 - first - 1) // 60] += 1
        pace.reported(all_due, CADENCE, Waits.ALL)
        assert pace.waits_due(all_due + 1, urgent=True) is Waits.ALL, "then events are as urgent as ever"
    assert min(live) > 90, "about 120 in each second"
    assert sum(events) > 1000, "with all that waits at the hosts whose time comes sooner"
    assert max(events) < 45, "about 20 in each second of the next minute"
    assert min(history) > 40, "about 80 in each minute of the next quarter of an hour"


@pytest.mark.parametrize(("away_min", "made_up_within_s"), [(1, 60), (4, 60), (60, 900), (6_000, 6 * 3600)])
def test_what_waited_comes_within_a_quarter_of_an_outage(away_min: int, made_up_within_s: int) -> None:
    latest_s = 0.0
    for number in range(200):
        pace = Pace(f"kvm{number}")
        pace.reported(0.0, CADENCE, Waits.ALL)
        for second in (1.0, 12.0, 60.0 * away_min - 11.0):
            pace.failed(second)
        now_s = begin_s = 60.0 * away_min
        pace.reported(now_s, CADENCE, Waits.NOTHING)
        while pace.waits_due(now_s) is not Waits.ALL:
            now_s += made_up_within_s / 60
        latest_s = max(latest_s, now_s - begin_s)
    assert 0.9 * made_up_within_s < latest_s <= 1.04 * made_up_within_s


def due_s(pace: Pace, now_s: float) -> float:
    """When all that waits is due."""
    return next(second for second in count(now_s) if pace.waits_due(second) is Waits.ALL)


def test_a_request_that_fails_while_hosts_come_back_does_not_change_their_times() -> None:
    pace, other = Pace("kvm8"), Pace("kvm8")
    for one in (pace, other):
        one.reported(0.0, CADENCE, Waits.ALL)
        away(one, 60, 3600)
        one.reported(3600.0, CADENCE, Waits.NOTHING)
    due = due_s(other, 3600.0)
    assert due > 3660, "so that it says something"
    pace.failed(due - 1)
    assert pace.waits_due(due) is Waits.NOTHING, "first it says that it is there"
    pace.reported(due + 1, CADENCE, Waits.NOTHING)
    assert pace.waits_due(due + 2) is Waits.ALL


def test_after_another_outage_hosts_take_turns_again() -> None:
    """Else all whose time had come meanwhile came at once."""
    latest_s, at_once = 0.0, 0
    for number in range(400):
        pace = Pace(f"kvm{number}")
        pace.reported(0.0, CADENCE, Waits.ALL)
        away(pace, 60, 3600)
        pace.reported(3600.0, CADENCE, Waits.NOTHING)
        away(pace, 3605, 4200)
        pace.reported(4200.0, CADENCE, Waits.NOTHING)
        due = due_s(pace, 4201.0)
        latest_s, at_once = max(latest_s, due - 4200), at_once + (due < 4215)
    assert at_once < 20, "of 400, each at its own time within a quarter of an hour"
    assert 800 < latest_s <= 900, "the hour still waits, too"


def test_a_manager_that_asks_for_fewer_reports_than_before_gets_what_waits_in_turns_as_well() -> None:
    pace = Pace("a")
    pace.reported(0.0, CADENCE, Waits.ALL)
    away(pace, 60, 85)
    pace.reported(85.0, Cadence(live_s=60, history_s=60), Waits.NOTHING)
    assert due_s(pace, 85.0) <= 145


def test_a_manager_that_is_away_for_a_moment_delays_nothing() -> None:
    """As when one of its processes ends: another one is asked at once, and gets all that is due."""
    pace = Pace("a")
    pace.reported(0.0, CADENCE, Waits.ALL)
    pace.failed(60.0)
    assert pace.asks(61.0)
    assert pace.waits_due(61.0) is Waits.ALL
    pace.reported(61.0, CADENCE, Waits.ALL)
    assert pace.waits_due(62.0) is not Waits.ALL
    assert pace.waits_due(62.0, urgent=True) is Waits.ALL


def test_after_an_outage_the_state_comes_first_and_then_what_waited(site: Site) -> None:
    [a, _] = site.machines
    to_history(site)
    site.up = False
    for _ in range(30):
        interval(site)
    site.up = True
    reports = [report for _ in range(14) for report in interval(site)]
    assert not has_history(reports[0])
    [first, *_] = [number for number, report in enumerate(reports) if has_history(report)]
    assert len(ticks_in(reports[first])) > 30, "nothing is lost"
    assert not a.outbox.peek(1, 1000).last or not has_history(reports[-1])


def long_outage(site: Site) -> None:
    """Forty minutes without a manager, with an event in each; this host's own time is late in the ten that follow."""
    to_history(site)
    site.machines[0].outbox._max_rows = 10_000  # so that nothing is merged
    site.up = False
    for number in range(480):
        if number % 12 == 0:
            site.machines[0].agent.say(Severity.WARNING, "something", f"happened in minute {number // 12}")
        interval(site)
    site.up = True


def test_after_a_long_outage_events_come_before_all_else_that_waited(site: Site) -> None:
    begin_s = site.now_s
    long_outage(site)
    back_s = site.now_s
    [live, *reports] = [report for _ in range(130) for report in interval(site)]
    assert (live["events"], has_history(live)) == ([], False)
    told = [report for report in reports if report["events"]]
    assert [len(report["events"]) for report in told] == [40], "each once"
    assert (ticks_in(told[0]), told[0]["decisions"]) == ([], []), "and nothing else that waited"
    assert len(told[0]["windows"]) <= 2
    first = next(number for number, report in enumerate(reports) if ticks_in(report))
    assert first > reports.index(told[0])
    assert sum(len(ticks_in(report)) for report in reports[first : first + 3]) > 480, "then all of it"
    messages = {event["message"] for event in site.client.items("/events") if event["kind"] == "something"}
    assert messages == {f"happened in minute {minute}" for minute in range(40)}
    ends = [window["end"] for window in site.client.items("/applications/shop/windows")]
    assert len(set(ends)) == len(ends) >= (back_s - begin_s) / SLOT_S
    assert len(site.client.items("/hosts/a/ticks")) >= (back_s - begin_s) / SLOT_S


def test_who_looks_after_a_long_outage_gets_all_that_waited_at_once(site: Site) -> None:
    long_outage(site)
    [report] = interval(site) or interval(site)
    assert not has_history(report)
    site.client.get("/hosts/a/ticks")
    reports = [report for _ in range(4) for report in interval(site)]
    assert sum(len(ticks_in(report)) for report in reports) > 480
    assert sum(len(report["events"]) for report in reports) == 40


def test_an_event_after_an_outage_comes_within_the_minute(site: Site) -> None:
    """While what waited has still some minutes."""
    long_outage(site)
    for _ in range(14):
        interval(site)
    site.machines[0].agent.say(Severity.WARNING, "something", "new")
    reports = [report for _ in range(13) for report in interval(site)]
    [told] = [report for report in reports if report["events"]]
    assert ([event["message"] for event in told["events"]], ticks_in(told)) == (["new"], [])


def test_an_agent_that_ends_with_much_to_deliver_tells_events_alone(site: Site) -> None:
    long_outage(site)
    [a, _] = site.machines
    waiting = a.outbox.waiting
    site.bodies.clear()
    a.agent.stop()
    reports = [json.loads(body) for body in site.bodies if body]
    assert not any(map(ticks_in, reports))
    assert [event["kind"] for report in reports for event in report["events"]][-1] == "agent-stopped"
    assert a.outbox.waiting > waiting - 50, "the rest waits for the next start"


def test_an_agent_that_starts_with_much_to_deliver_takes_its_time_as_well(site: Site) -> None:
    """As one that is replaced by a newer version while managers are away."""
    long_outage(site)
    again = Machine(site, "a", site.folder / "a", site.stack)
    again.host.boot("web-a")
    site.machines[0] = again
    site.bodies.clear()
    again.agent.reporter.begin()
    again.agent.tick()
    first = [json.loads(body) for body in site.bodies if body]
    assert [has_history(report) for report in first] == [False], "first it says that it is there"
    assert [report["capabilities"] is not None for report in first] == [True]
    begin_s = site.now_s
    while again.outbox.waiting > 500:
        interval(site)
    assert 60 < site.now_s - begin_s <= 600, "at its own time within a quarter of the outage"
    assert sum(event["kind"] == "something" for event in site.client.items("/events")) == 40


@pytest.mark.parametrize(("waited_s", "small"), [(3600.0, False), (3600.0, True), (0.0, False)])
def test_what_an_earlier_agent_left_comes_in_turns_where_it_is_much(waited_s: float, small: bool) -> None:
    pace = Pace("a")
    pace.begin(waited_s)
    first = pace.waits_due(10.0)
    assert first is (Waits.NOTHING if waited_s else Waits.ALL)
    pace.failed(10.0)
    assert pace.waits_due(11.0) is first, "no manager answers yet"
    pace.reported(12.0, None if small else CADENCE, first)
    due = due_s(pace, 13.0)
    assert 60 < due <= 912 if waited_s and not small else due <= 73
    pace.reported(due, CADENCE, Waits.ALL)
    assert due_s(pace, due + 1) <= due + 61, "once"


def test_of_a_slow_manager_no_more_is_asked_than_it_can_do(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits comes in parts; after one that took long the rest waits for five times as long."""
    [a, _] = site.machines
    monkeypatch.setattr(link_module, "PART_ITEMS", 10)
    site.up = False
    for _ in range(30):
        interval(site)
    site.up = True
    steps = iter(range(1, 100_000))
    monkeypatch.setattr(link_module, "system_clock", lambda: Clock(site.now_s, 0.7 * next(steps)))
    with_history = [sum(has_history(report) for report in interval(site)) for _ in range(22)]
    assert max(with_history) == 1, "one part in a turn"
    assert a.outbox.peek(1, 1000).last, "the rest still waits"
    parts = [number for number, parts in enumerate(with_history) if parts]
    assert {after - before for before, after in pairwise(parts)} == {3}, "5 times 2.1 s, and until the next interval"


def test_the_rest_comes_the_later_the_busier_a_manager_is() -> None:
    pace = Pace("a")
    for took_s, pause_s in ((1.2, 6.0), (3.0, 15.0), (30.0, CADENCE.history_s)):
        pace.reported(0.0, CADENCE, Waits.ALL)
        begin_s = next(
            second for second in range(1, 61) if pace.waits_due(second) is Waits.ALL
        )  # the next turn is as far as it can
        pace.reported(begin_s, CADENCE, Waits.ALL, slow_part_s=took_s)
        assert pace.waits_due(begin_s + pause_s - 1) is not Waits.ALL
        pace.reported(begin_s + 1, CADENCE, Waits.NOTHING)
        assert pace.waits_due(begin_s + pause_s) is Waits.ALL
        pace.reported(begin_s + pause_s, CADENCE, Waits.ALL)
        if pause_s < CADENCE.history_s:
            assert pace.waits_due(begin_s + pause_s + 0.5) is Waits.NOTHING, "nothing is left"


def test_an_hour_comes_within_two_minutes_of_a_busy_manager_once_it_begins() -> None:
    """It comes in nine parts, each of which takes a second."""
    pace = Pace("a")
    pace.reported(0.0, CADENCE, Waits.ALL)
    away(pace, 60, 3660)
    pace.reported(3660.0, CADENCE, Waits.NOTHING)
    now_s = begin_s = due_s(pace, 3661.0)
    parts = 9
    while parts:
        now_s += 1
        if pace.waits_due(now_s) is Waits.ALL:
            parts -= 1
            pace.reported(now_s, CADENCE, Waits.ALL, slow_part_s=1.01 if parts else None)
        elif pace.live_due(now_s):
            pace.reported(now_s, CADENCE, Waits.NOTHING)
    assert now_s - begin_s <= 120


def test_a_manager_that_forgot_the_host_is_told_all_at_once(site: Site) -> None:
    to_history(site)
    site.client.request("DELETE", "/hosts/a")
    reports = [report for _ in range(5) for report in interval(site)]
    assert [report["capabilities"] is not None for report in reports] == [False, True, False][: len(reports)]
    assert site.client.get("/hosts/a/capabilities")["cgroup_version"] == 1


def test_a_recording_that_waits_is_of_all_that_time(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its host counts as looked at meanwhile."""
    passing = SimpleNamespace(
        time=lambda: site.now_s, monotonic=lambda: site.now_s, sleep=lambda _seconds: interval(site)
    )
    monkeypatch.setattr(record_command, "time", passing)
    monkeypatch.setattr(record_command, "connect", lambda _settings: site.client)
    to_history(site)
    file, begin_s = tmp_path / "recording", site.now_s
    result = CliRunner().invoke(main, ["record", str(file), "--host", "a", "--for", "90s"])
    assert result.exit_code == 0, result.output
    recording = read_lines(file.read_text().splitlines())
    assert [tick.time_s - begin_s for tick in recording.ticks] == [SLOT_S * number for number in range(18)]
    assert recording.windows[-1].end_s == begin_s + 90


def test_a_recording_waits_on_while_the_manager_is_away(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_s = site.now_s

    def sleep(_seconds: float) -> None:
        site.up = not begin_s + 30 <= site.now_s < begin_s + 80
        interval(site)

    monkeypatch.setattr(
        record_command, "time", SimpleNamespace(time=lambda: site.now_s, monotonic=lambda: site.now_s, sleep=sleep)
    )
    monkeypatch.setattr(record_command, "connect", lambda _settings: site.client)
    result = CliRunner().invoke(main, ["record", str(tmp_path / "recording"), "--host", "a", "--for", "2m"])
    assert result.exit_code == 0, result.output
    assert "ticks" in result.stderr
