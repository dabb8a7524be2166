"""The number of what is registered grows with each registration, whoever makes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from manager.model.registration import HostSpec
from manager.store.database import Database, orders_number
from manager.store.hosts import put_host, reporting_host

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def number(database: Database) -> int:
    with database.reading() as session:
        return orders_number(session)


def test_it_grows_with_what_is_kept(database: Database) -> None:
    assert number(database) == 0
    with database.registering() as session:
        put_host(session, HostSpec("a"), NOW, lambda _etag: None)
    assert number(database) == 1
    with pytest.raises(RuntimeError), database.registering():
        raise RuntimeError
    assert number(database) == 1
    for _ in range(2):
        with database.writing() as session:
            reporting_host(session, HostSpec("b"), NOW)
    assert number(database) == 2, "a host is registered by its first report, and only by that"


def test_no_registration_is_missed(database: Database) -> None:
    def register(name: str) -> None:
        with database.registering() as session:
            put_host(session, HostSpec(name), NOW, lambda _etag: None)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(register, [f"host-{one}" for one in range(12)]))
    assert number(database) == 12
