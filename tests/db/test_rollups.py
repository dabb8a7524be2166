"""Roll-ups by minute and hour: what they hold, once and whole, after downtime, from several managers, and late."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from manager.control.budget import Period, total
from manager.errors import NotFound
from manager.model.histogram import Histogram
from manager.model.registration import Application, HostSpec, Sla, Tier, VmClass, VmSpec
from manager.model.window import LONGEST_DELAY_S, Ready, Window
from manager.store import retention, rollups
from manager.store.applications import application_with_past, put_application, remove_application
from manager.store.database import Database
from manager.store.history import MeasuredPast, minutes_of_each
from manager.store.hosts import put_host
from manager.store.models import ApplicationRow, HostRow, RollupRow, VmStatusRow, WindowRow
from manager.store.registrations import get
from manager.store.retention import Cleanup, Keep
from manager.store.rollup_queue import MINUTE, note_windows
from manager.store.rollups import RollUps, period_of
from manager.store.vms import put_vm
from manager.store.windows import replace_windows
from tests.aging import long_ago

HOUR = datetime(2026, 3, 1, 12, tzinfo=UTC)
SLOT = timedelta(seconds=5)
KEEP = timedelta(days=30)
RAW = timedelta(days=1)
LEAST = 10


@dataclass
class Store:
    """A database with ``shop``, whose SLA is 100 ms, and the roll-ups of it; tests move the time."""

    database: Database
    now: datetime = HOUR

    def job(self) -> RollUps:
        return RollUps(self.database, SLOT, LEAST, Keep(RAW, KEEP, 2 * KEEP))

    def roll_up(self, seconds: float) -> int:
        self.now = at(seconds)
        return self.job().roll_up(self.now)

    def forget(self) -> int:
        return self.job().forget(Cleanup(self.database, self.now, long_ago))

    def raw(self) -> list[float]:
        """Begins of the slots that are kept, in seconds since the hour."""
        with self.database.reading() as session:
            found = session.scalars(select(WindowRow.slot).order_by(WindowRow.slot))
            return [(slot - HOUR).total_seconds() for slot in found]

    def report(self, *windows: Window, origin: str = "h") -> None:
        with self.database.writing() as session:
            numbers = {"shop": get(session, ApplicationRow, "shop").id}
            replace_windows(session, origin, numbers, windows, SLOT)

    def rows(self, length_s: int) -> list[tuple[float, Period]]:
        """Begin in seconds since the hour, and content, oldest first."""
        with self.database.reading() as session:
            query = select(RollupRow).where(RollupRow.length_s == length_s).order_by(RollupRow.start)
            return [((row.start - HOUR).total_seconds(), period_of("shop", row)) for row in session.scalars(query)]

    def read(self, since: float, until: float, period_s: float) -> list[Period]:
        with self.database.reading() as session:
            row = application_with_past(session, "shop")
            return MeasuredPast(session, row, SLOT, LEAST).periods(at(since), at(until), period_s, self.now)


def at(second: float) -> datetime:
    return HOUR + timedelta(seconds=second)


@pytest.fixture
def store(database: Database) -> Store:
    with database.registering() as session:
        put_application(session, Application("shop", sla=Sla(100.0)), HOUR, lambda _etag: None)
    return Store(database)


def window(start: float, count: int = 20, time_ms: float = 50.0, ready: Ready | None = None) -> Window:
    """A slot."""
    histogram = Histogram.of([time_ms * 1000] * count)
    return Window("shop", at(start).timestamp(), at(start + 5).timestamp(), histogram, count, ready)


def slots(since: float, until: float, seed: int = 0) -> list[Window]:
    """All slots from ``since`` until ``until``, some of them with few response times, some that miss the SLA."""
    random = Random(seed)
    return [
        window(5.0 * number, random.choice((3, 20, 40)), random.choice((20.0, 90.0, 400.0)))
        for number in range(int(since // 5), int(until // 5))
    ]


@pytest.mark.parametrize(("since", "until"), [(0, 1500), (120, 1470), (1380, 1440), (-3600, 1440), (1440, 1440)])
def test_minutes_of_applications_are_read_together_as_one_by_one(store: Store, since: int, until: int) -> None:
    """Rolled up and not, by several hosts, of minutes that came as a row or not, after another SLA; or none at all."""
    names = ("shop", "blog", "idle")
    for name, sla in (("blog", 50.0), ("idle", 50.0)):
        with store.database.registering() as session:
            put_application(session, Application(name, sla=Sla(sla)), HOUR, lambda _etag: None)
    store.report(*slots(0, 1500), *slots(1200, 1260))
    store.report(*slots(1380, 1440, seed=1), origin="other")
    with store.database.writing() as session:
        numbers = {"blog": get(session, ApplicationRow, "blog").id}
        blog = [replace(window, application="blog") for window in slots(900, 1440, seed=2)]
        replace_windows(session, "h", numbers, blog, SLOT, together=True)
        replace_windows(session, "other", numbers, blog[-3:], SLOT)
    assert store.roll_up(1500) > 20
    with store.database.registering() as session:
        put_application(session, Application("blog", sla=Sla(200.0)), at(1400), lambda _etag: None)
    with store.database.reading() as session:
        rows = [get(session, ApplicationRow, name) for name in names]
        pasts = [MeasuredPast(session, row, SLOT, LEAST) for row in rows]
        together = minutes_of_each(session, pasts, at(since), at(until), store.now)
        assert together == {past.application.id: past.periods(at(since), at(until), 60, store.now) for past in pasts}
        assert sum(map(len, together.values())) > 0 or since == until


def same(found: Period, wanted: Period) -> None:
    assert found.window.histogram == wanted.window.histogram
    assert found.window.requests == wanted.window.requests
    assert (found.slots, found.judged, found.violated) == (wanted.slots, wanted.judged, wanted.violated)
    assert found.violations == wanted.violations


def whole(periods: list[Period], since: float, until: float) -> Period:
    return total("shop", periods, at(since).timestamp(), at(until).timestamp())


def test_minutes_and_hours_hold_all_that_their_slots_held(store: Store) -> None:
    store.report(*slots(0, 7200))
    raw = store.read(0, 7200, 5)
    assert store.roll_up(7200 + 360) == 120 + 2
    assert [start for start, _ in store.rows(60)] == [60.0 * minute for minute in range(120)]
    assert [start for start, _ in store.rows(3600)] == [0, 3600]
    for length_s in (60, 3600):
        for start, period in store.rows(length_s):
            same(
                period, whole([one for one in raw if start <= one.start_s - HOUR.timestamp() < start + length_s], 0, 0)
            )
        same(whole(store.read(0, 7200, length_s), 0, 7200), whole(raw, 0, 7200))
    assert len(store.read(0, 7200, 3600)) == 2


@pytest.mark.parametrize(
    ("since", "until", "lengths_s"),
    [
        (0, 10800, [3600] * 2 + [60] * 54 + [5] * 72),  # minutes are settled until 2:54
        (3535, 10795, [5, 60, 3600] + [60] * 54 + [5] * 71),
        (3600, 7200, [3600]),
        (3660, 7140, [60] * 58),
        (65, 125, [5] * 12),
        (60, 60, []),
    ],
)
def test_a_sum_is_made_of_the_longest_periods_within(
    store: Store, since: float, until: float, lengths_s: list[int]
) -> None:
    store.report(*slots(0, 10800))
    raw = store.read(since, until, 5)
    store.roll_up(10800)
    with store.database.reading() as session:
        shop = get(session, ApplicationRow, "shop")
        found = MeasuredPast(session, shop, SLOT, LEAST).fewest_periods(at(since), at(until))
    same(whole(found, since, until), whole(raw, since, until))
    assert [round(one.window.end_s - one.window.start_s) for one in found] == lengths_s


def test_what_several_origins_know_of_a_slot_is_judged_together(store: Store) -> None:
    store.report(window(0, 6, 400.0))
    store.report(window(0, 6, 400.0), origin="g")
    store.roll_up(600)
    [(_, minute)] = store.rows(60)
    assert (minute.window.histogram.count, minute.slots, minute.judged, minute.violated) == (12, 1, 1, 1)


def test_only_what_is_settled_is_rolled_up_and_the_rest_is_read_from_slots(store: Store) -> None:
    store.report(*slots(0, 900))
    assert store.roll_up(900) == 9, "the last six minutes may still change"
    found = store.read(0, 900, 60)
    assert len(found) == 9 + 6 * 12
    same(whole(found, 0, 900), whole(store.read(0, 900, 5), 0, 900))


def test_rolling_up_again_changes_nothing(store: Store) -> None:
    store.report(*slots(0, 3600))
    assert store.roll_up(3960) == 61
    before = store.rows(60), store.rows(3600)
    assert store.roll_up(3960) == 0
    assert store.roll_up(3990) == 0
    assert (store.rows(60), store.rows(3600)) == before


def test_downtime_is_made_up_for_and_times_without_response_times_are_skipped(store: Store) -> None:
    store.report(window(0))
    store.roll_up(600)
    store.report(*slots(86_400, 86_400 + 3600), window(4 * 86_400.0))
    assert store.roll_up(5 * 86_400) == 60 + 1 + 3
    assert [start for start, _ in store.rows(3600)] == [0, 86_400, 4 * 86_400]


def test_a_reboot_in_the_middle_is_made_up_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction but the first few fails."""
    store.report(*slots(0, 3600))
    write, left = rollups._write, iter(range(3))

    def failing(*arguments: object) -> int:
        next(left)
        return write(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rollups, "_write", failing)
    monkeypatch.setattr(rollups, "_AT_ONCE", 10)
    with pytest.raises(StopIteration):
        store.roll_up(3960)
    monkeypatch.undo()
    assert 0 < len(store.rows(60)) < 60
    store.roll_up(3960)
    same(whole(store.read(0, 3600, 3600), 0, 3600), whole(store.read(0, 3600, 5), 0, 3600))
    assert len(store.rows(60)) == 60


def test_what_is_made_at_once_is_bounded_and_makes_no_difference(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither by applications nor by minutes; here the two notes of a minute are even in different rounds."""
    names = [f"app{number}" for number in range(4)]
    with store.database.registering() as session:
        for name in names:
            put_application(session, Application(name, sla=Sla(100.0)), HOUR, lambda _etag: None)
        numbers = {name: get(session, ApplicationRow, name).id for name in names}
        for seed, (name, origin) in enumerate((name, origin) for name in names for origin in "ghi"):
            told = [replace(slot, application=name) for slot in slots(0, 3600, seed)]
            replace_windows(session, origin, numbers, told, SLOT)

    def all_rows() -> list[tuple[object, ...]]:
        row = RollupRow
        columns = row.application_id, row.length_s, row.start, row.count, row.histogram, row.judged, row.violations
        with store.database.reading() as session:
            return [tuple(found) for found in session.execute(select(*columns).order_by(*columns[:3]))]

    largest: list[int] = []
    write = rollups._write

    def counting(session: Session, rows: list[dict[str, object]]) -> int:
        largest.append(len(rows))
        return write(session, rows)

    monkeypatch.setattr(rollups, "_write", counting)
    store.roll_up(3960)
    at_once, most = all_rows(), max(largest)
    with store.database.writing() as session:
        session.execute(delete(RollupRow))
        note_windows(
            session, MINUTE, ((n, at(60.0 * m), o) for n in numbers.values() for m in range(60) for o in "ghi")
        )
    monkeypatch.setattr(rollups, "_AT_ONCE", 7)
    largest.clear()
    store.roll_up(3960)
    assert all_rows() == at_once
    assert (len(at_once), most > 100, max(largest) <= 7) == (4 * 61, True, True)


def test_several_managers_may_roll_up_at_once(store: Store) -> None:
    store.report(*slots(0, 7200))
    store.now = at(7200 + 360)
    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(store.job().roll_up, store.now) for _ in range(4)]:
            job.result()
    assert (len(store.rows(60)), len(store.rows(3600))) == (120, 2)
    same(whole(store.read(0, 7200, 3600), 0, 7200), whole(store.read(0, 7200, 5), 0, 7200))


def test_what_is_reported_late_is_rolled_up_again_with_its_hour(store: Store) -> None:
    """An agent that could not reach the manager for hours."""
    store.report(*slots(0, 3600))
    store.roll_up(3960)
    store.now = at(7200)
    store.report(*slots(600, 1200, seed=1), origin="g")
    assert store.roll_up(7200) == 10 + 1
    for period_s in (60, 3600):
        same(whole(store.read(0, 3600, period_s), 0, 3600), whole(store.read(0, 3600, 5), 0, 3600))
    assert store.roll_up(7260) == 0


def test_a_late_report_of_what_is_forgotten_does_not_make_a_minute_smaller(store: Store) -> None:
    store.report(*(window(5.0 * number) for number in range(12)))
    store.roll_up(3960)
    with store.database.writing() as session:
        session.execute(delete(WindowRow))
    store.report(window(0, 3), origin="g")
    store.roll_up(3960)
    [(_, minute)] = store.rows(60)
    assert minute.window.histogram.count == 240


def test_a_promise_that_changes_later_does_not_change_what_was_violated_under_the_old_one(store: Store) -> None:
    store.report(*(window(5.0 * number, time_ms=400.0) for number in range(12)))
    store.roll_up(600)
    with store.database.registering() as session:
        put_application(session, Application("shop", sla=Sla(500.0)), HOUR, lambda _etag: None)
    store.report(*(window(60 + 5.0 * number, time_ms=400.0) for number in range(12)))
    store.roll_up(3960)
    assert [minute.violated for _, minute in store.rows(60)] == [12, 0]
    [(_, hour)] = store.rows(3600)
    assert (hour.judged, hour.violated) == (24, 12)
    assert [(one.end_s - one.start_s) for one in hour.violations] == [60]


def test_a_ready_percentile_is_kept(store: Store) -> None:
    store.report(window(0, 0, ready=Ready(95, 40.0)), window(5, 0, ready=Ready(95, 140.0)))
    store.roll_up(3960)
    [(_, minute)] = store.rows(60)
    assert (minute.window.percentile_ms(95), minute.judged, minute.violated) == (140.0, 2, 1)


def test_what_was_measured_outlives_the_application_and_belongs_to_it_when_it_is_registered_again(store: Store) -> None:
    store.report(*slots(0, 600))
    store.roll_up(660)
    before = whole(store.read(0, 600, 60), 0, 600)
    with store.database.registering() as session:
        etag = get(session, ApplicationRow, "shop").etag
        remove_application(session, "shop", store.now, lambda _etag: None)
    with store.database.reading() as session, pytest.raises(NotFound):
        get(session, ApplicationRow, "shop")
    store.roll_up(3960)
    assert len(store.rows(60)) == 10, "also what was not yet rolled up when it was removed"
    same(whole(store.read(0, 600, 60), 0, 600), before)
    same(whole(store.read(0, 600, 5), 0, 600), before)
    with store.database.registering() as session:
        row, created = put_application(session, Application("shop"), store.now, lambda _etag: None)
        assert (created, row.etag.split(".")[0], row.etag != etag) == (True, etag.split(".")[0], True)
    store.now = at(3960)
    store.report(window(3900))
    store.roll_up(7200)
    assert [start for start, _ in store.rows(60)] == [*(60.0 * minute for minute in range(10)), 3900]


def test_a_removed_application_is_forgotten_with_the_last_that_was_measured_of_it(store: Store) -> None:
    store.report(*slots(0, 600))
    store.roll_up(3960)
    with store.database.registering() as session:
        number = get(session, ApplicationRow, "shop").id
        remove_application(session, "shop", store.now, lambda _etag: None)
    store.now = HOUR + 2 * KEEP
    store.forget()
    assert len(store.rows(3600)) == 1
    assert store.read(0, 3600, 3600)
    store.now += timedelta(seconds=1)
    store.forget()
    with store.database.reading() as session, pytest.raises(NotFound):
        application_with_past(session, "shop")
    with store.database.registering() as session:
        again, _ = put_application(session, Application("shop"), store.now, lambda _etag: None)
        assert (again.id > number, again.version) == (True, 1)


def test_each_length_is_kept_for_its_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 7)
    store.report(*slots(0, 3600))
    store.roll_up(3960)
    store.now = HOUR + RAW + timedelta(minutes=10)
    assert store.forget() == 10 * 12
    assert store.raw()[0] == 600
    store.now = HOUR + KEEP + timedelta(minutes=10)
    assert store.forget() == 50 * 12 + 10
    store.now = HOUR + 2 * KEEP
    assert store.forget() == 50
    assert len(store.rows(3600)) == 1
    store.now += timedelta(seconds=1)
    assert store.forget() == 1


def test_windows_that_are_not_rolled_up_are_not_forgotten(store: Store) -> None:
    store.now = HOUR + 3 * RAW
    store.report(*slots(0, 3600))
    assert store.forget() == 0
    store.job().roll_up(store.now)
    before = store.rows(60)
    assert store.job().forget(Cleanup(store.database, store.now, lambda *_: 0)) == 0, (
        "they came late, others may come later"
    )
    store.now += RAW + timedelta(seconds=1)
    assert store.forget() == 720
    assert store.rows(60) == before


def test_what_two_hosts_tell_hours_apart_of_a_time_long_gone_is_rolled_up_together(store: Store) -> None:
    """Both were cut off for two days; of the minute one host tells after windows were forgotten once more."""
    store.now = HOUR + 2 * RAW
    store.report(*(window(5.0 * number) for number in range(12)))
    store.job().roll_up(store.now)
    store.now += timedelta(hours=20)
    assert store.job().forget(Cleanup(store.database, store.now, lambda *_: 0)) == 0, "it arrived less than a day ago"
    store.report(*(window(5.0 * number, 7) for number in range(12)), origin="g")
    store.job().roll_up(store.now)
    [(_, minute)] = store.rows(60)
    assert minute.window.histogram.count == 12 * 27
    store.now += RAW + timedelta(seconds=1)
    assert store.forget() == 24
    [(_, hour)] = store.rows(3600)
    assert hour.window.histogram.count == 12 * 27


@pytest.mark.parametrize("rolled", [False, True])
def test_the_latest_violation(store: Store, rolled: bool) -> None:
    missing = [window(start, time_ms=400.0) for start in (20.0, 25.0, 130.0, 135.0)]
    store.report(*missing, *(window(start) for start in (15.0, 30.0, 125.0, 140.0, 300.0)))
    if rolled:
        store.roll_up(3960)

    def latest(until: float) -> tuple[float, float] | None:
        with store.database.reading() as session:
            row = get(session, ApplicationRow, "shop")
            found = MeasuredPast(session, row, SLOT, LEAST).latest_violation(at(until), timedelta(hours=1))
        return (found.start_s - HOUR.timestamp(), found.end_s - HOUR.timestamp()) if found else None

    assert latest(3600) == (130, 140)
    assert latest(119) == (20, 30)
    assert latest(15) is None
    assert latest(7300) is None


def report_at(store: Store, one: Window, second: float) -> None:
    """At that time of the manager's."""
    with store.database.writing() as session:
        numbers = {"shop": get(session, ApplicationRow, "shop").id}
        replace_windows(session, "h", numbers, [one], SLOT, at(second) + timedelta(seconds=60))


def pass_minutes(store: Store, seconds: Iterable[int]) -> None:
    passed = [0.0]
    job = RollUps(store.database, SLOT, LEAST, Keep(RAW, KEEP, 2 * KEEP), steady=lambda: passed[0])
    for second in seconds:
        passed[0], store.now = second, at(second)
        job.roll_up(store.now)


def test_a_minute_that_a_clock_ahead_filled_is_that_which_came_in_its_time(store: Store) -> None:
    report_at(store, window(7200, 40, 400.0), 0)  # at noon, of a host two hours ahead
    pass_minutes(store, range(0, 600, 60))
    report_at(store, window(7200, 20, 50.0), 7205)  # its clock was set right
    pass_minutes(store, range(7200, 7800, 60))
    for period_s in (5, 60):
        [period] = store.read(7200, 7260, period_s)
        assert (period.window.histogram.count, period.violated) == (20, 0)


@pytest.mark.parametrize("registered", [True, False])
def test_windows_stay_while_another_host_of_the_application_is_away(store: Store, registered: bool) -> None:
    with store.database.registering() as session:
        for name in ("g", "h"):
            put_host(session, HostSpec(name), HOUR, lambda _etag: None)
            spec = VmSpec(f"shop-{name}", VmClass.CRITICAL, host=name if registered else None)
            put_vm(session, spec, HOUR, lambda _etag: None)
        tiers = (Tier("web", ("shop-g", "shop-h")),)
        put_application(session, Application("shop", tiers, sla=Sla(100.0)), HOUR, lambda _etag: None)
        away = get(session, HostRow, "g")
        away.silent = True
        if not registered:
            session.add(VmStatusRow(vm="shop-g", host_id=away.id, at=HOUR, body="{}"))
    store.report(*slots(0, 3600))
    store.roll_up(3960)
    store.now = HOUR + 3 * RAW
    assert store.forget() == 0
    with store.database.writing() as session:
        back = get(session, HostRow, "g")
        back.silent, back.back_at = False, store.now
    store.now += timedelta(seconds=LONGEST_DELAY_S, minutes=5)
    assert store.forget() == 0
    store.report(*slots(0, 3600, seed=1), origin="g")
    store.job().roll_up(store.now)
    assert whole([period for _, period in store.rows(60)], 0, 3600).window.histogram.count == sum(
        slot.histogram.count for seed in (0, 1) for slot in slots(0, 3600, seed)
    )
    store.now += RAW
    assert store.forget() == 2 * 720
    with store.database.writing() as session:
        get(session, HostRow, "g").silent = True
    store.report(*slots(0, 60, seed=2))
    store.job().roll_up(store.now)
    store.now = HOUR + KEEP + timedelta(hours=1)
    store.forget()
    assert not store.raw(), "no longer than minutes"
