"""What the benchmark of a fleet makes of its measurements: late reports, gaps, and what each host adds."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from manager.loop.outbox import ItemKind
from manager.model.histogram import Histogram
from manager.model.registration import Application
from policies.installed import load_policies
from tests.bench.fault_agents import PastClock, live_through
from tests.bench.fleet import late_reports, percentile
from tests.bench.fleet_agents import REQUESTS, AgentSpec, Common, Reports, SimulatedAgent, SyntheticTelemetry
from tests.bench.fleet_picture import Line, cost_ms, main


def result(hosts: int, manager_share: float) -> dict[str, object]:
    common = {"interval_s": 5.0, "busy_share": 0.5, "late_reports": 0, "told_ms": {"count": 100}}
    return {"hosts": hosts, "manager_share": manager_share, "postgres_share": 0.01, "agents_share": 0.1, **common}


def test_a_report_is_late_from_its_interval_and_the_grace_on() -> None:
    assert late_reports([2.5, 5.9, 6.0], 5.0, 1.0) == 0
    assert late_reports([2.5, 6.1, 40.0], 5.0, 1.0) == 2


def test_the_longest_time_without_a_report_goes_on_until_now() -> None:
    reports = Reports()
    reports.forget(100.0)
    assert reports.gap_s(104.0) == 4.0
    reports.acknowledged(102.5, 105.0)
    reports.acknowledged(122.5, 125.0)
    assert reports.told_s == [2.5, 2.5]
    assert reports.gap_s(126.0) == 20.0
    assert reports.gap_s(150.0) == 25.0
    reports.forget(150.0)
    assert (reports.told_s, reports.gap_s(151.0)) == ([], 1.0)


def test_a_percentile_is_of_what_was_measured() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([1.0], 95) == 1.0
    assert percentile([float(number) for number in range(1, 101)], 95) == 95.0


def test_slots_are_drawn_once_and_used_by_all_hosts() -> None:
    draws = [Histogram.of([10_000.0] * REQUESTS), Histogram.of([20_000.0] * REQUESTS)]
    hosts = [SyntheticTelemetry(5.0, random.Random(number), draws) for number in range(2)]
    for host in hosts:
        host.configure([Application("shop", ())], 5.0, {}, {})
        for slot in range(1, 9):
            host.pass_slot(5.0 * slot)
    slots = [window for host in hosts for window in host.slots()["shop"]]
    assert len(slots) == 16
    assert {id(window.histogram) for window in slots} == {id(one) for one in draws}
    assert all(window.requests == window.histogram.count for window in slots)
    assert [window.end_s for window in hosts[0].slots()["shop"]] == [5.0 * slot for slot in range(1, 9)]


def test_an_earlier_life_leaves_its_history_with_the_agent(tmp_path: Path) -> None:
    policies = {name: found.policy for name, found in load_policies().items()}
    common = Common([Histogram.of([10_000.0] * REQUESTS)], policies)
    folders = tmp_path / "now", tmp_path / "past"
    specs = [AgentSpec("http://manager.example:1", "", "kvm0000", 4, 5.0, folder) for folder in folders]
    clock = PastClock(1_000_000.0)
    agent = SimulatedAgent(specs[0], common)
    past = SimulatedAgent(specs[1], common, outbox=agent.outbox, clock=clock)
    past.telemetry.configure([Application("shop", ())], 5.0, {}, {})
    waited = live_through(agent, past, clock, 24, 5.0)
    past.close()
    waiting = agent.outbox.peek(1000, 1_000_000)
    agent.close()

    def times_of(kind: ItemKind, name: str) -> list[float]:
        written = [fields[name] for fields in waiting.fields[kind]]
        return written + [getattr(item, name) for fresh, item in waiting.fresh if fresh is kind]

    times_s = times_of(ItemKind.TICK, "time_s")
    assert times_s == [1_000_000.0 + 5 * number for number in range(24 - len(times_s), 24)]
    assert len(times_s) >= 23, "of the first nobody knows yet how busy the host was"
    ends_s = times_of(ItemKind.WINDOW, "end_s")
    assert ends_s == [1_000_000.0 + 5 * number for number in range(len(ends_s))]
    assert len(ends_s) >= 20, "all but those that are still open"
    assert waited == sum(map(len, waiting.fields.values())) + len(waiting.fresh)


def test_draws_differ() -> None:
    draws = Common.drawn("a").draws
    assert len({tuple(sorted(one.buckets.items())) for one in draws[:200]}) == 200
    assert all(one.count == REQUESTS for one in draws[:200])
    middle_us = [time_us for one in draws[:200] if (time_us := one.percentile_us(50)) is not None]
    assert 9_000 < sum(middle_us) / len(middle_us) < 11_000


def test_what_a_fleet_costs_as_such_is_told_from_what_each_host_adds() -> None:
    results = [result(hosts, 0.01 + 0.0005 * hosts) for hosts in (10, 60, 300, 1000)]
    line = Line.through(results, "manager")
    assert line.fixed_share == pytest.approx(0.01)
    assert line.share(10_000) == pytest.approx(5.01)
    assert line.cost_ms(300) == pytest.approx(cost_ms(results[2], "manager"))
    with pytest.raises(ValueError, match="one size"):
        Line.through(results[:1], "manager")
    with pytest.raises(ValueError, match="one interval"):
        Line.through([results[0], {**results[1], "interval_s": 1.0}], "manager")


def test_a_picture_is_drawn_of_any_number_of_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    files = []
    for hosts in (1000, 10, 300, 60):
        files.append(tmp_path / f"fleet-{hosts}.json")
        files[-1].write_text(json.dumps({"result": result(hosts, 0.01 + 0.0005 * hosts)}))
    picture = tmp_path / "cost.png"
    monkeypatch.setattr("sys.argv", ["fleet_picture", *map(str, files), "--png", f"{picture}"])
    main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    said = capsys.readouterr().out
    assert "10,000 hosts, cores" in said
    assert "5.0" in said
