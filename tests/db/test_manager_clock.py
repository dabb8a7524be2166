"""The clock of a manager's machine: an event for each time that it is set, also where the database is away then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import select

from manager.clocks import Times
from manager.store.database import Database, open_database
from manager.store.manager_clock import ClockWatch
from manager.store.models import EventRow


class Machine:
    def __init__(self, database: Database) -> None:
        self.now = Times(1.8e9, 1000.0, 1500.0)
        self.watch = ClockWatch(database, "db1", lambda: self.now)

    def second(self) -> None:
        self.now = Times(self.now.wall_s + 1, self.now.monotonic_s + 1, self.now.boot_s + 1)
        self.watch.look()


def told(database: Database) -> list[tuple[str, str, str, float]]:
    with database.reading() as session:
        events = session.scalars(select(EventRow).order_by(EventRow.id))
        return [(one.host, one.kind, one.message, one.at.timestamp()) for one in events]


@pytest.mark.parametrize(
    ("jump_s", "words"),
    [
        (-7200.0, "7200 s (2 h) back"),
        (7200.0, "7200 s (2 h) ahead"),
        (-31_536_000.0, "31536000 s (365 days) back"),
        (31_536_000.0, "31536000 s (365 days) ahead"),
    ],
)
def test_a_clock_that_is_set_is_told_of_once(database: Database, jump_s: float, words: str) -> None:
    machine = Machine(database)
    machine.second()
    machine.now = replace(machine.now, wall_s=machine.now.wall_s + jump_s)
    machine.second()
    machine.second()
    text = f"the manager on db1: the wall clock was set {words}; its jobs go on"
    assert told(database) == [("manager", "clock-jumped", text, 1.8e9 + 2 + jump_s)]


def test_what_the_database_does_not_take_is_told_later(new_url: Callable[[str], str]) -> None:
    database = open_database(new_url("sqlite"))
    machine = Machine(database)
    machine.now = replace(machine.now, wall_s=machine.now.wall_s + 50)
    machine.second()
    database.upgrade()
    machine.second()
    assert [kind for _, kind, _, _ in told(database)] == ["clock-jumped"]
    machine.second()
    assert len(told(database)) == 1
    database.close()
