"""The overview of a large fleet: who asks waits for it only where there is none, or an old one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import cast

import pytest
from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.api.fleet_overview import FleetOverview, Overview
from manager.errors import DatabaseUnavailable
from manager.model.registration import HostSpec
from manager.store.database import Database
from manager.store.hosts import put_host
from tests.api.conftest import START

SLOT_S = 5.0
_PATIENCE_S = 120.0


@dataclass
class Fleet:
    """A database with hosts, and the steady clock of its reader; ``away``: renewals do not reach the database.

    ``look_s``: how long each look at the clock takes, of which there are three to read an overview.
    """

    database: Database
    now_s: float = 0.0
    look_s: float = 0.0
    away: bool = False
    tries: int = 0

    def steady_s(self) -> float:
        """The time."""
        self.now_s += self.look_s
        return self.now_s

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """For a renewal."""
        self.tries += 1
        if self.away:
            raise DatabaseUnavailable("it is away")
        with self.database.reading() as session:
            yield session

    def put(self, name: str) -> None:
        """Register a host."""
        with self.database.registering() as session:
            put_host(session, HostSpec(name), START, lambda _etag: None)


@pytest.fixture
def fleet(migrated: Callable[[str], Database]) -> Fleet:
    made = Fleet(migrated("sqlite"))
    made.put("kvm1")
    return made


@pytest.fixture
def look(fleet: Fleet) -> Callable[[], Overview]:
    context = ManagerContext(cast(Database, fleet), {}, 30, 1, slot_s=SLOT_S, small_fleet=0)
    overview = FleetOverview(context, fleet.steady_s)
    reading: Callable[[], AbstractContextManager[Session]] = fleet.database.reading

    def ask() -> Overview:
        with reading() as session:
            return overview.of(session)

    return ask


def until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_a_fresh_one_is_not_read_anew(fleet: Fleet, look: Callable[[], Overview]) -> None:
    first = look()
    fleet.now_s += 0.4 * SLOT_S
    assert look() is first
    assert fleet.tries == 0


def test_one_that_is_a_little_old_is_shown_while_the_next_is_read(fleet: Fleet, look: Callable[[], Overview]) -> None:
    first = look()
    fleet.now_s += 0.6 * SLOT_S
    assert look() is first
    until(lambda: look() is not first)
    assert look().read_s == fleet.now_s
    assert fleet.tries == 1


def test_an_old_one_is_not_shown(fleet: Fleet, look: Callable[[], Overview]) -> None:
    look()
    fleet.now_s += 1.6 * SLOT_S
    assert look().read_s == fleet.now_s


def test_one_that_took_long_is_read_less_often(fleet: Fleet, look: Callable[[], Overview]) -> None:
    fleet.look_s = SLOT_S  # two of them while it is read
    first = look()
    fleet.look_s = 0.0
    fleet.now_s = first.read_s + 7.9 * SLOT_S
    assert look() is first
    assert fleet.tries == 0
    fleet.now_s = first.read_s + 8.9 * SLOT_S
    assert look() is first, "shown while it is read anew"
    until(lambda: look() is not first)
    first = look()
    fleet.now_s += 1.6 * SLOT_S
    assert look() is not first, "the next one was quick"


def test_one_that_took_long_is_not_shown_for_ever(fleet: Fleet, look: Callable[[], Overview]) -> None:
    fleet.look_s = SLOT_S
    first = look()
    fleet.look_s = 0.0
    fleet.now_s = first.read_s + 9.1 * SLOT_S
    assert look().read_s == fleet.now_s


def test_what_was_registered_is_not_waited_for(fleet: Fleet, look: Callable[[], Overview]) -> None:
    look()
    fleet.put("kvm2")
    assert [host.name for host in look().hosts] == ["kvm1", "kvm2"]


def test_a_renewal_that_fails_is_tried_again(fleet: Fleet, look: Callable[[], Overview]) -> None:
    first = look()
    fleet.now_s += 0.6 * SLOT_S
    fleet.away = True
    assert look() is first
    until(lambda: look() is first and fleet.tries >= 2)
    fleet.away = False
    until(lambda: look() is not first)
