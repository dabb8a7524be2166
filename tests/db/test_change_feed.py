"""Following changes: who is told, who is not, and how it ends."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from manager.errors import Busy
from manager.model.histogram import Histogram
from manager.model.registration import Application, HostSpec, VmClass, VmSpec
from manager.model.window import Window
from manager.store.applications import put_application
from manager.store.change_feed import Changes, Topic, TopicKind, parse_topic
from manager.store.database import Database
from manager.store.hosts import put_host
from manager.store.models import ApplicationRow
from manager.store.registrations import get
from manager.store.tick_packs import store_ticks
from manager.store.vms import put_vm
from manager.store.windows import replace_windows

SLOT, YEAR = timedelta(seconds=5), timedelta(days=365)
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
FLEET = Topic(TopicKind.FLEET)
LONG_S = 120.0


@pytest.fixture
def changes(database: Database) -> Changes:
    return Changes(database, most=3, period_s=0.02, clock=(NOW + SLOT).timestamp)


def tick(database: Database, host: str, second: int) -> None:
    with database.writing() as session:
        store_ticks(session, host, {NOW + timedelta(seconds=second): "{}"})


def test_topics_are_read_as_they_are_written() -> None:
    assert parse_topic("fleet") == FLEET
    assert parse_topic("decisions") == Topic(TopicKind.DECISIONS)
    assert parse_topic("host:kvm1") == Topic(TopicKind.HOST, "kvm1")
    assert parse_topic("application:shop") == Topic(TopicKind.APPLICATION, "shop")


@pytest.mark.parametrize("text", ["", "fleets", "fleet:x", "host", "host:", "application"])
def test_what_is_no_topic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"topic|TopicKind"):
        parse_topic(text)


def test_a_follower_is_told_of_a_tick(changes: Changes, database: Database) -> None:
    with changes.following(FLEET) as wait:
        mark = wait("", 0)
        assert wait(mark, 0.1) == mark
        tick(database, "kvm1", 1)
        assert wait(mark, LONG_S) != mark
    changes.close()


def window(database: Database, number: int, at: datetime) -> None:
    with database.writing() as session:
        one = Window("shop", at.timestamp(), (at + SLOT).timestamp(), Histogram.of([5e3]))
        replace_windows(session, "kvm1", {"shop": number}, [one], SLOT)


@pytest.mark.parametrize("kind", ["fleet", "host", "application"])
def test_what_a_clock_that_was_ahead_dated_hides_nothing_that_comes_later(
    changes: Changes, database: Database, kind: str
) -> None:
    with database.registering() as session:
        put_application(session, Application("shop", (), None), NOW, lambda _etag: None)
        number = get(session, ApplicationRow, "shop").id
    window(database, number, NOW + YEAR)
    tick(database, "kvm1", round(YEAR.total_seconds()))
    topic = {"fleet": "fleet", "host": "host:kvm1", "application": "application:shop"}[kind]
    with changes.following(parse_topic(topic)) as wait:
        mark = wait("", 0)
        if kind == "host":
            tick(database, "kvm1", -5)
        else:
            window(database, number, NOW - SLOT)
        assert wait(mark, LONG_S) != mark
    changes.close()


def test_a_host_s_page_is_told_of_that_host_s_ticks_alone(changes: Changes, database: Database) -> None:
    with changes.following(parse_topic("host:kvm1")) as wait, changes.following(parse_topic("host:kvm2")) as other:
        mark, other_mark = wait("", 0), other("", 0)
        tick(database, "kvm1", 1)
        assert wait(mark, LONG_S) != mark
        assert other(other_mark, 0.1) == other_mark
    changes.close()


@pytest.mark.parametrize("text", ["fleet", "decisions", "host:kvm1", "application:shop"])
def test_everybody_is_told_of_what_is_registered(changes: Changes, database: Database, text: str) -> None:
    with changes.following(parse_topic(text)) as wait:
        mark = wait("", 0)
        with database.registering() as session:
            put_vm(session, VmSpec("web-1", VmClass.CRITICAL), NOW, lambda _etag: None)
        newer = wait(mark, LONG_S)
        assert newer != mark
        with database.registering() as session:
            put_host(session, HostSpec("kvm1"), NOW, lambda _etag: None)
        assert wait(newer, LONG_S) != newer
    changes.close()


def test_nobody_asks_while_nobody_follows(changes: Changes) -> None:
    with changes.following(FLEET):
        assert "changes" in {thread.name for thread in threading.enumerate()}
    for thread in threading.enumerate():
        if thread.name == "changes":
            thread.join(LONG_S)
            assert not thread.is_alive()
    with changes.following(FLEET) as wait:  # and it begins again
        assert wait("", 0)
    changes.close()


def test_more_than_allowed_are_refused_until_one_leaves(changes: Changes) -> None:
    with changes.following(FLEET), changes.following(FLEET):
        with (
            changes.following(parse_topic("decisions")),
            pytest.raises(Busy, match="3 pages"),
            changes.following(FLEET),
        ):
            pass
        with changes.following(FLEET):
            pass
    changes.close()


def test_the_end_lets_all_go_on_and_nobody_in(changes: Changes) -> None:
    begun, ended = threading.Event(), threading.Event()

    def follow() -> None:
        with changes.following(FLEET) as wait:
            mark = wait("", 0)
            begun.set()
            wait(mark, 600)
            ended.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert begun.wait(LONG_S)
    changes.close()
    assert ended.wait(LONG_S)
    thread.join()
    with pytest.raises(Busy), changes.following(FLEET):
        pass
