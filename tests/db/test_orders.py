"""The number of what is registered grows with each registration, whoever makes it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest

from manager.model.registration import HostSpec
from manager.store.database import Database
from manager.store.host_models import RevisionRow
from manager.store.hosts import put_host, reporting_host
from manager.store.revisions import registration_revision

NOW = datetime(2026, 3, 1, tzinfo=UTC)


def number(database: Database) -> int:
    with database.reading() as session:
        return registration_revision(session)


def test_it_grows_with_what_is_kept(database: Database) -> None:
    assert number(database) == 0
    with database.registering() as session:
        put_host(session, HostSpec("a"), NOW, lambda _etag: None)
    first = number(database)
    assert first > 0
    with pytest.raises(RuntimeError), database.registering():
        raise RuntimeError
    assert number(database) == first
    found = []
    for _ in range(2):
        with database.writing() as session:
            reporting_host(session, HostSpec("b"), NOW)
        found.append(number(database))
    assert first < found[0] == found[1], "a host is registered by its first report, and only by that"


def test_no_registration_is_missed(database: Database) -> None:
    def register(name: str) -> int:
        with database.registering() as session:
            put_host(session, HostSpec(name), NOW, lambda _etag: None)
            return registration_revision(session)

    with ThreadPoolExecutor(4) as pool:
        numbers = list(pool.map(register, [f"host-{one}" for one in range(12)]))
    assert len(set(numbers)) == 12
    assert number(database) == max(numbers)


@pytest.mark.parametrize("held", [5, 2**52], ids=["of a backup", "of a clock that was put back"])
def test_no_number_comes_again(database: Database, held: int) -> None:
    seen = set()
    for _ in range(2):
        with database.writing() as session:
            session.merge(RevisionRow(id=1, number=held))
        for _ in range(3):
            with database.registering() as session:
                assert registration_revision(session) > held
            seen.add(number(database))
    assert len(seen) == (6 if held == 5 else 3)
