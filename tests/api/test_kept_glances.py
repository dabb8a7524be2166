"""What hosts' rows keep of the latest windows: lists show what reading the windows would, however they came."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import event, select, update

from manager.model.glanced_window import GlancedWindow, PlacedGlance, pack_glances, unpack_glances
from manager.store.database import Database, open_database
from manager.store.kept_glances import kept_glances, renewed
from manager.store.latest_glances import latest_glances
from manager.store.models import ApplicationRow, HostRow
from tests.api.conftest import HOST, Api, report, status, window
from tests.api.test_live_reports import AGENT, live, make_fleet, seen, send
from tests.conftest import KINDS, SLOW_MACHINE

SLOT_S = 5
OTHER = "kvm2"


@dataclass
class Shop:
    """An application whose response times are counted by slot, from one host or two; slots only grow."""

    api: Api
    counts: dict[str, dict[int, int]] = field(default_factory=lambda: {HOST: {}, OTHER: {}})
    now: int = 0

    def later(self, slots: int) -> None:
        self.now += SLOT_S * slots
        self.api.clock.now_s += SLOT_S * slots

    def answer(self, host: str, requests: int) -> None:
        """In the slot that is open now."""
        counts = self.counts[host]
        counts[self.now] = counts.get(self.now, 0) + requests

    def windows(self, host: str, *back: int) -> list[dict[str, object]]:
        counts = self.counts[host]
        ends = sorted(self.now - SLOT_S * one for one in back)
        return [window(end=end, count=counts[end]) for end in ends if counts.get(end)]

    def live(self) -> None:
        send(self.api, live(windows=self.windows(HOST, 0, 1)))

    def history(self, host: str, *back: int, **changes: object) -> None:
        body = report(windows=self.windows(host, *back), **changes)
        self.api.ok("POST", f"/hosts/{host}/report", body, role="host" if host == HOST else "other host", **AGENT)

    def share(self) -> None:
        """The other host serves it, too."""
        self.api.ok("PUT", "/vms/web-2", {"class": "critical", "host": OTHER})
        tiers = [{"name": "web", "vms": ["web-1", "web-2"]}]
        self.api.ok("PUT", "/applications/shop", {"tiers": tiers, "sla": {"response_time_ms": 10}})
        self.history(OTHER, vms=[status("web-2")], wants_slots=True)

    def check(self) -> None:
        """The list is as without what is kept, which stays."""
        quick = seen(self.api)
        with self.api.database.writing() as session:
            kept = session.execute(select(HostRow.name, HostRow.glances)).all()
            session.execute(update(HostRow).values(glances=None))
        slow = seen(self.api)
        with self.api.database.writing() as session:
            for host, glances in kept:
                session.execute(update(HostRow).where(HostRow.name == host).values(glances=glances))
        assert quick == slow


def reads_windows(api: Api) -> bool:
    """Whether windows that are stored as rows are read for the list."""
    read: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        read.append(statement)

    with api.database.reading() as session:
        percentiles = dict.fromkeys(session.scalars(select(ApplicationRow.id)), 95.0)
        event.listen(api.database._engine, "before_cursor_execute", note)
        assert latest_glances(session, percentiles, timedelta(seconds=SLOT_S), moment_now(api))
        event.remove(api.database._engine, "before_cursor_execute", note)
    return any("window_minutes.body" in statement for statement in read)


def moment_now(api: Api) -> datetime:
    return datetime.fromtimestamp(api.clock.now_s, UTC)


@pytest.fixture(params=KINDS)
def shop(request: pytest.FixtureRequest, migrated: Callable[[str], Database]) -> Shop:
    return Shop(make_fleet(migrated(request.param), served=False))


def test_history_renews_what_is_kept(shop: Shop) -> None:
    for _ in range(6):
        shop.later(1)
        shop.answer(HOST, 3)
    shop.history(HOST, *range(6))
    with shop.api.database.reading() as session:
        [(host, glance)] = kept_glances(session).values()
    assert (host, glance.window.samples) == (HOST, 6), "the last two slots"
    assert not reads_windows(shop.api)
    shop.check()


def test_of_a_slot_alone_the_one_before_is_read(shop: Shop) -> None:
    for _ in range(2):
        shop.later(1)
        shop.answer(HOST, 3)
    shop.history(HOST, 1)
    shop.history(HOST, 0)
    assert reads_windows(shop.api)
    shop.check()


def test_a_clock_that_is_off_renews_nothing(shop: Shop) -> None:
    for _ in range(2):
        shop.later(1)
        shop.answer(HOST, 3)
    shop.live()
    shop.later(1)
    shop.answer(HOST, 9)
    body = report(windows=shop.windows(HOST, 0, 1, 2))
    send(shop.api, body, **AGENT, Equipoise_Clock_Ahead="5")
    shop.check()
    assert reads_windows(shop.api)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("later"), st.integers(1, 3)),
        st.tuples(st.sampled_from([HOST, OTHER]), st.integers(1, 4)),
        st.tuples(st.just("live"), st.just(0)),
        st.tuples(st.sampled_from(["history", "other history"]), st.integers(0, 4)),
        st.tuples(st.sampled_from(["post", "share"]), st.just(0)),
    ),
    min_size=4,
    max_size=14,
)


@settings(max_examples=5 if SLOW_MACHINE else 15, deadline=None)
@given(steps=STEPS)
def test_lists_do_not_depend_on_what_is_kept(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    with closing(open_database(f"sqlite:///{tmp_path_factory.mktemp('shop')}/equipoise.sqlite")) as database:
        database.upgrade()
        shop = Shop(make_fleet(database, served=False))
        shared = False
        for what, number in steps:
            match what:
                case "later":
                    shop.later(number)
                case "live":
                    shop.live()
                case "history":
                    shop.history(HOST, *range(number, number + 6))
                case "other history" if shared:
                    shop.history(OTHER, *range(number, number + 6))
                case "post":
                    shop.api.ok("POST", "/applications/shop/samples", {"times_ms": [5.0]})
                case "share":
                    shop.share()
                    shared = True
                case host if host in shop.counts:
                    shop.answer(host, number)
            shop.check()


def glance(slot: int, samples: int, *, slots: int = 2, number: int = 1) -> PlacedGlance:
    start_s = slot - (SLOT_S if slots == 2 else 0)
    return PlacedGlance(number, slot * 1_000_000, GlancedWindow(start_s, slot + SLOT_S, samples, None, 95.0, 5.0))


@pytest.mark.parametrize(
    ("kept", "came", "left"),
    [
        ([], [glance(10, 4)], [glance(10, 4)]),
        ([glance(10, 4)], [glance(20, 1)], [glance(20, 1)]),
        ([glance(10, 4)], [glance(10, 5)], [glance(10, 5)]),
        ([glance(10, 4, slots=1)], [glance(10, 4)], [glance(10, 4)]),
        ([glance(10, 4)], [glance(10, 3)], []),
        ([glance(10, 4)], [glance(5, 9)], []),
        ([glance(10, 4)], [glance(0, 9)], [glance(10, 4)]),
        ([glance(10, 4, number=2)], [], [glance(10, 4, number=2)]),
        ([glance(10, 4, number=3)], [glance(10, 4)], [glance(10, 4)]),
    ],
)
def test_what_stays_in_a_hosts_row(
    kept: list[PlacedGlance], came: list[PlacedGlance], left: list[PlacedGlance]
) -> None:
    assert unpack_glances(renewed(pack_glances(kept), came, {1, 2}, timedelta(seconds=SLOT_S))) == left
