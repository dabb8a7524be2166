"""Ticks rolled up: their means, once, however late they come; what is kept for how long, and what charts read."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from sqlalchemy import select

from manager.control.tick_means import mean_tick
from manager.model.records import TickRecord, VmTick
from manager.model.registration import HostSpec
from manager.store import retention
from manager.store.database import Database
from manager.store.host_models import TickRollupRow
from manager.store.hosts import put_host
from manager.store.registrations import delete
from manager.store.retention import Cleanup, Keep
from manager.store.tick_packs import store_ticks, ticks_between
from manager.store.tick_rollups import TickRollUps, read_ticks, tick_of
from tests.aging import long_ago

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
KEEP = Keep(DAY, 30 * DAY, 730 * DAY)


def at(second: float) -> datetime:
    return HOUR + timedelta(seconds=second)


def report(database: Database, since: int, until: int, step: int = 5, host: str = "h") -> None:
    """Ticks of a host on which ``web`` uses 0.1, and each other time 0.3; and in every odd minute ``hog``."""
    ticks = {}
    for second in range(since, until, step):
        used = 0.1 if second // step % 2 else 0.3
        vms = [{"vm": "web", "cpu_share": used, "run_delay_share": 0.5, "weight": second, "mode": "enforce"}]
        if second // 60 % 2:
            vms.append({"vm": "hog", "cpu_share": 0.5, "run_delay_share": 0.0, "weight": None, "mode": "observe"})
        body = {"at": at(second).isoformat(), "policy": "fair", "mode": "enforce", "host_cpu_share": used, "vms": vms}
        ticks[at(second)] = json.dumps(body)
    with database.registering() as session:
        put_host(session, HostSpec(host), HOUR, lambda _etag: None)
        store_ticks(session, host, ticks)


def rows(database: Database, length_s: int) -> list[tuple[float, int]]:
    """Begin in seconds since the hour and number of ticks, oldest first."""
    with database.reading() as session:
        of_length = TickRollupRow.length_s == length_s
        found = session.scalars(select(TickRollupRow).where(of_length).order_by(TickRollupRow.start))
        return [((row.start - HOUR).total_seconds(), row.ticks) for row in found]


def read(database: Database, since: float, until: float, most: int = 1500) -> list[TickRecord]:
    with database.reading() as session:
        return list(read_ticks(session, "h", at(since), at(until), most))


def raw(database: Database) -> int:
    with database.reading() as session:
        return len(ticks_between(session, "h", at(0), at(DAY.total_seconds())))


def test_the_mean_of_ticks() -> None:
    def vm(name: str, used: float, weight: int | None) -> VmTick:
        return VmTick(name, used, 2 * used, weight, "enforce")

    first = TickRecord(5.0, "equal", "observe", 0.2, (vm("a", 0.1, 100), vm("b", 0.3, None)))
    second = TickRecord(10.0, "fair", "enforce", 0.8, (vm("a", 0.5, 200),))
    mean = TickRecord(10.0, "fair", "enforce", 0.65, (vm("a", 0.4, 200), vm("b", 0.3, None)))
    assert mean_tick([(first, 1), (second, 3)]) == mean
    assert mean_tick([(first, 7)]) == first
    powers = [(replace(first, power_watts=100.0), 1), (second, 5), (replace(second, power_watts=200.0), 3)]
    assert mean_tick(powers).power_watts == 175.0
    with pytest.raises(ValueError, match="no ticks"):
        mean_tick([])


def test_means_hold_what_is_used_besides_cpu_time(database: Database) -> None:
    """Of every second tick, as between two rounds of readings there is none."""
    use = {"vms": [{"vm": "web", "memory_pressure": 0.5, "resident_bytes": 7}], "memory_pressure": 0.3}
    ticks = {}
    for second in range(0, 7300, 5):
        resources = {"resources": use if second % 20 == 0 else {}} if second % 10 == 0 else {}
        of = {"at": at(second).isoformat(), "policy": "fair", "mode": "enforce", "host_cpu_share": 0.1, "vms": []}
        ticks[at(second)] = json.dumps(of | resources)
    with database.registering() as session:
        put_host(session, HostSpec("h"), HOUR, lambda _etag: None)
        store_ticks(session, "h", ticks)
    TickRollUps(database, KEEP).roll_up()
    with database.reading() as session:
        bodies = [json.loads(body) for body in session.scalars(select(TickRollupRow.body))]
    mean = {"vms": [{"vm": "web", "memory_pressure": 0.25, "resident_bytes": 7}], "memory_pressure": 0.15}
    assert [body["resources"] for body in bodies] == [mean] * (121 + 2)
    [hour, *_] = read(database, 0, 7200, most=1)
    assert hour.resources is not None
    assert hour.resources.memory_pressure == 0.15


def test_means_hold_the_power_of_ticks_that_know_it(database: Database) -> None:
    of = {"policy": "fair", "mode": "enforce", "host_cpu_share": 0.1, "vms": []}
    ticks = {}
    for second in range(0, 7300, 5):
        power = {"power_watts": 140.0 if second % 20 else 160.0} if second < 3600 and second % 10 == 0 else {}
        ticks[at(second)] = json.dumps(of | {"at": at(second).isoformat()} | power)
    with database.registering() as session:
        put_host(session, HostSpec("h"), HOUR, lambda _etag: None)
        store_ticks(session, "h", ticks)
    TickRollUps(database, KEEP).roll_up()
    assert [tick.power_watts for tick in read(database, 0, 3600, most=1)] == [150.0]
    assert [tick.power_watts for tick in read(database, 3600, 7200, most=1)] == [None]
    with database.reading() as session:
        bodies = [json.loads(body) for body in session.scalars(select(TickRollupRow.body))]
    assert sum("power_watts" in body for body in bodies) == 60 + 1, "nothing is said where nothing is known"


def test_means_of_ticks_with_the_same_vms(database: Database) -> None:
    chance = Random(5)
    ticks = {}
    for second in range(0, 65, 5):
        vms = [
            {
                "vm": name,
                "cpu_share": chance.random(),
                "run_delay_share": chance.random() * 3,
                "weight": chance.choice((None, 50, 700)),
                "mode": chance.choice(("enforce", "observe")),
            }
            for name in ("web", "db", "cache")
        ]
        of = {"policy": "fair", "mode": "enforce", "host_cpu_share": 0.1, "vms": vms}
        ticks[at(second)] = json.dumps({"at": at(second).isoformat()} | of)
    with database.registering() as session:
        put_host(session, HostSpec("h"), HOUR, lambda _etag: None)
        store_ticks(session, "h", ticks)
    assert TickRollUps(database, KEEP).roll_up() == 1
    with database.reading() as session:
        [body] = session.scalars(select(TickRollupRow.body))
    assert tick_of(body) == mean_tick([(tick_of(text), 1) for text in [*ticks.values()][:12]])


def test_means_are_those_of_the_ticks_whatever_is_in_them(database: Database) -> None:
    """VMs come and go and come back, with and without a weight, a full vCPU, power; a minute is in several rows."""
    chance = Random(7)

    def vm(name: str) -> dict[str, object]:
        vcpu = {"index": chance.randrange(4), "used": chance.random(), "waited": chance.random(), "full": 1}
        return {
            "vm": name,
            "cpu_share": chance.random(),
            "run_delay_share": chance.random() * 3,
            "weight": chance.choice((None, 50, 700)),
            "mode": chance.choice(("enforce", "observe")),
        } | ({"vcpu": vcpu} if chance.random() < 0.6 else {})

    ticks = {}
    for second in range(0, 3605, 5):
        names = chance.sample([f"vm-{number}" for number in range(6)], chance.randrange(7))
        ticks[at(second)] = json.dumps(
            {
                "at": at(second).isoformat(),
                "policy": chance.choice(("fair", "equal")),
                "mode": chance.choice(("enforce", "observe")),
                "host_cpu_share": chance.random(),
                "vms": [vm(name) for name in names],
            }
            | ({"power_watts": chance.random() * 300} if chance.random() < 0.5 else {})
        )
    *shuffled, last = ticks.items()
    chance.shuffle(shuffled)
    with database.registering() as session:
        put_host(session, HostSpec("h"), HOUR, lambda _etag: None)
        for first in range(0, len(shuffled), 200):
            store_ticks(session, "h", dict(shuffled[first : first + 200]))
        store_ticks(session, "h", dict([last]))
    TickRollUps(database, KEEP).roll_up()
    of_minutes = [
        mean_tick([(tick_of(ticks[at(second)]), 1) for second in range(start, start + 60, 5)])
        for start in range(0, 3600, 60)
    ]
    with database.reading() as session:
        bodies = [
            session.scalars(
                select(TickRollupRow.body).where(TickRollupRow.length_s == length_s).order_by(TickRollupRow.start)
            ).all()
            for length_s in (60, 3600)
        ]
    assert [tick_of(body) for body in bodies[0]] == of_minutes
    assert tick_of(bodies[1][0]) == mean_tick([(tick, 12) for tick in of_minutes])
    assert all(vm.vcpu is None or vm.vcpu.full == 1 for tick in of_minutes for vm in tick.vms)


def test_hosts_are_rolled_up_together_and_each_has_its_own(database: Database) -> None:
    """One that reports as ever, one since a moment ago, one that comes late, more than fit in one transaction."""
    report(database, 0, 190)
    report(database, 120, 190, step=10, host="i")
    report(database, 7200, 11000, host="j")
    for number in range(30):
        report(database, 60, 130, host=f"k{number}")
    assert TickRollUps(database, KEEP).roll_up() == 3 + 1 + (63 + 1) + 30
    with database.reading() as session:
        row = TickRollupRow
        columns = row.host, row.length_s, row.start, row.ticks, row.body
        found = {
            (host, length_s, start): (ticks, body)
            for host, length_s, start, ticks, body in session.execute(select(*columns))
        }
    minutes = {key: ticks for key, (ticks, _) in found.items() if key[1] == 60}
    assert {key: ticks for key, ticks in minutes.items() if key[0] != "j"} == {
        **{("h", 60, at(60 * minute)): 12 for minute in range(3)},
        ("i", 60, at(120)): 6,
        **{(f"k{number}", 60, at(60)): 12 for number in range(30)},
    }
    assert found["j", 3600, at(7200)][0] == 720
    weights = {host: json.loads(found[host, 60, at(120)][1])["vms"][0]["weight"] for host in "hi"}
    assert weights == {"h": 175, "i": 170}, "of the newest tick of the host itself"


def test_minutes_and_hours_hold_the_means_of_their_ticks(database: Database) -> None:
    report(database, 0, 7300)
    job = TickRollUps(database, KEEP)
    assert job.roll_up() == 121 + 2
    assert rows(database, 60) == [(60.0 * minute, 12) for minute in range(121)]
    assert rows(database, 3600) == [(0, 720), (3600, 720)]
    assert job.roll_up() == 0
    with database.reading() as session:
        bodies = session.execute(select(TickRollupRow.at, TickRollupRow.body).order_by(TickRollupRow.id)).all()
    for when, body in bodies:
        tick = json.loads(body)
        assert datetime.fromisoformat(tick["at"]) == when
        assert (tick["policy"], tick["mode"], tick["host_cpu_share"]) == ("fair", "enforce", 0.2)
        assert {vm["vm"]: vm["cpu_share"] for vm in tick["vms"]}["web"] == 0.2
    assert [one["vm"] for one in json.loads(bodies[0].body)["vms"]] == ["web"]
    assert json.loads(bodies[1].body)["vms"][0] == {
        "vm": "hog",
        "cpu_share": 0.5,
        "run_delay_share": 0.0,
        "weight": None,
        "mode": "observe",
    }


def test_what_a_host_tells_days_late_is_rolled_up_before_it_is_forgotten(database: Database) -> None:
    report(database, 0, 60)
    job = TickRollUps(database, KEEP)
    now = at(0) + 3 * DAY
    assert (job.roll_up(), job.forget(Cleanup(database, now, long_ago))) == (0, 0), (
        "of its minute there may be more to come"
    )
    report(database, 60, 3605)
    assert (job.roll_up(), job.forget(Cleanup(database, now, long_ago))) == (60 + 1, 60), "ticks are rows of a minute"
    assert rows(database, 60) == [(60.0 * minute, 12) for minute in range(60)]
    assert raw(database) == 1, "of the minute that is not over"


def test_each_length_is_kept_for_its_time(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 7)
    report(database, 0, 7300, 20)
    job = TickRollUps(database, KEEP)
    job.roll_up()
    assert job.forget(Cleanup(database, at(600) + DAY, long_ago)) == 10
    assert job.forget(Cleanup(database, at(600) + 30 * DAY, long_ago)) == (121 - 10) + 10
    assert job.forget(Cleanup(database, at(3600) + 730 * DAY, long_ago)) == (120 - 10) + 1
    assert (rows(database, 60), rows(database, 3600)) == ([(7200, 3)], [(3600, 180)]), "of an hour that is not over"
    assert job.forget(Cleanup(database, at(3601) + 730 * DAY, long_ago)) == 1


def test_the_ticks_of_a_host_that_was_removed_are_forgotten_like_others(database: Database) -> None:
    report(database, 0, 600)
    job = TickRollUps(database, KEEP)
    with database.registering() as session:
        delete(session, type(put_host(session, HostSpec("h"), HOUR, lambda _etag: None)[0]), "h", lambda _etag: None)
    assert len(read(database, 0, 600)) == 120, "they are still there to be read"
    assert (job.roll_up(), job.forget(Cleanup(database, at(300) + DAY, long_ago)), raw(database)) == (0, 5, 60)


def test_a_short_range_is_read_from_ticks_and_a_long_one_from_means(database: Database) -> None:
    report(database, 0, 7300)
    before = read(database, 0, 3600, 720)
    assert len(before) == 720
    job = TickRollUps(database, KEEP)
    job.roll_up()
    assert read(database, 0, 3600, 720) == before
    minutes = read(database, 0, 7200, 120)
    assert [tick.time_s - HOUR.timestamp() for tick in minutes] == [55.0 + 60 * minute for minute in range(120)]
    assert [tick.time_s - HOUR.timestamp() for tick in read(database, 0, 7260, 4)] == [3595, 7195, 7255], "and the rest"
    assert len(read(database, 0, 7300, 4)) <= 4


def test_where_ticks_are_gone_minutes_tell_and_where_those_are_gone_hours_do(database: Database) -> None:
    report(database, 0, 10900)
    job = TickRollUps(database, KEEP)
    job.roll_up()
    job.forget(Cleanup(database, at(9000) + DAY, long_ago))
    found = read(database, 0, 10900, 100_000)
    assert len(found) == 9000 / 60 + 1900 / 5
    job.forget(Cleanup(database, at(7200) + 30 * DAY, long_ago))
    found = read(database, 0, 10800, 100_000)
    assert [tick.time_s - HOUR.timestamp() for tick in found[:3]] == [3595, 7195, 7255]
    assert found == sorted(found, key=lambda tick: tick.time_s)
    assert read(database, 50_000, 60_000) == []
