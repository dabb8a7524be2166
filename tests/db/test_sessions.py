"""Users, their sessions, and what stops somebody who guesses passwords."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import NoReturn

import pytest
from sqlalchemy import select

from manager.errors import (
    Conflict,
    DatabaseUnavailable,
    InvalidRequest,
    NotFound,
    SignInRefused,
    SignInThrottled,
)
from manager.store import sessions, sign_in_throttle, users
from manager.store.access_models import AuditRow, SessionRow, SignInFailureRow, UserRow
from manager.store.audit import AuditFilter, list_audit
from manager.store.database import Database
from manager.store.registrations import delete, get
from manager.store.retention import Cleanup, prune_access
from manager.store.sessions import (
    DEFAULT_LIMITS,
    SignedIn,
    find_session,
    list_sessions,
    sign_in,
    sign_out,
    verify_password,
)
from manager.store.sign_in_throttle import count_try
from manager.store.tokens import Principal, PrincipalKind, Role, create_token, revoke_token
from manager.store.users import create_user, hash_password, is_password, set_password, set_role
from tests.aging import long_ago

pytestmark = pytest.mark.usefixtures("quick_passwords")

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PASSWORD = "correct horse"
ALICE = Principal("alice", Role.OPERATOR, None, PrincipalKind.USER)
ADDRESS = "192.0.2.7"


@pytest.fixture
def password_hash(quick_passwords: None) -> str:
    del quick_passwords
    return hash_password(PASSWORD)


@pytest.fixture
def store(database: Database, password_hash: str) -> Database:
    """A database with the user ``alice``."""
    with database.registering() as session:
        create_user(session, "alice", Role.OPERATOR, password_hash, NOW)
    return database


def enter(store: Database, name: str = "alice", password: str = PASSWORD, now: datetime = NOW) -> SignedIn:
    return sign_in(store, name, password, ADDRESS, now, DEFAULT_LIMITS)


def fail(store: Database, times: int, now: datetime = NOW, name: str = "alice", address: str = ADDRESS) -> None:
    for _ in range(times):
        count_try(store, name, address, now)


def wait_s(store: Database, now: datetime, name: str = "alice", address: str = ADDRESS) -> int:
    """How long a try has to wait; it counts as a failure if it has not."""
    try:
        count_try(store, name, address, now)
    except SignInThrottled as refusal:
        return refusal.retry_after_s
    return 0


def after(**length: float) -> datetime:
    return NOW + timedelta(**length)


def test_a_password_is_kept_as_a_hash_with_a_salt(store: Database, password_hash: str) -> None:
    assert password_hash != hash_password(PASSWORD)
    with store.reading() as session:
        row = get(session, UserRow, "alice")
        assert PASSWORD not in str([getattr(row, column.name) for column in UserRow.__table__.columns])
    assert is_password(row, PASSWORD)
    assert not is_password(row, PASSWORD + "x")
    assert not is_password(None, PASSWORD)


@pytest.mark.parametrize("length", [0, 9, 201])
def test_a_password_has_bounds(length: int) -> None:
    with pytest.raises(InvalidRequest, match="allowed: 10 to 200 characters") as refusal:
        hash_password("x" * length)
    assert refusal.value.field == "password"


@pytest.mark.parametrize(("name", "role", "field"), [("a b", Role.VIEWER, "name"), ("a", Role.HOST, "role")])
def test_a_user_that_makes_no_sense_is_refused(database: Database, name: str, role: Role, field: str) -> None:
    with pytest.raises(InvalidRequest) as refusal, database.registering() as session:
        create_user(session, name, role, "", NOW)
    assert refusal.value.field == field


def test_a_name_is_had_by_one_user(store: Database) -> None:
    with pytest.raises(Conflict, match="'alice'"), store.registering() as session:
        create_user(session, "alice", Role.VIEWER, "", NOW)


def test_a_user_signs_in_and_out(store: Database) -> None:
    signed_in = enter(store)
    assert signed_in.principal == ALICE
    assert find_session(store, signed_in.secret, NOW, DEFAULT_LIMITS) == signed_in
    with store.reading() as session:
        row = session.scalars(select(SessionRow)).one()
        assert signed_in.secret not in str([getattr(row, column.name) for column in SessionRow.__table__.columns])
        assert row.address == ADDRESS
        assert get(session, UserRow, "alice").signed_in_at == NOW
    sign_out(store, signed_in.secret, ADDRESS, NOW)
    assert find_session(store, signed_in.secret, NOW, DEFAULT_LIMITS) is None
    sign_out(store, signed_in.secret, ADDRESS, NOW)  # twice is no error


def test_a_session_goes_on_where_its_use_cannot_be_noted(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    signed_in = enter(store)

    def disk_full() -> NoReturn:
        raise DatabaseUnavailable("database or disk is full")

    monkeypatch.setattr(store, "writing", disk_full)
    assert find_session(store, signed_in.secret, NOW + timedelta(minutes=2), DEFAULT_LIMITS) == signed_in


def test_each_session_has_a_secret_and_a_csrf_token_of_its_own(store: Database) -> None:
    first, second = enter(store), enter(store)
    assert len({first.secret, second.secret, first.csrf_token, second.csrf_token}) == 4
    found = find_session(store, first.secret, NOW, DEFAULT_LIMITS)
    assert found is not None
    assert found.csrf_token == first.csrf_token, "made from the secret alone"


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("alice", PASSWORD + "x"),
        ("alice", ""),
        ("bob", PASSWORD),
        ("", ""),
        ("a\0b", "\0"),
        ("ü" * 9999, "ü" * 9999),
        (PASSWORD, "alice"),
    ],
)
def test_whatever_is_wrong_is_refused_in_the_same_words(store: Database, name: str, password: str) -> None:
    with pytest.raises(SignInRefused) as refusal:
        enter(store, name, password)
    assert str(refusal.value) == "the name is unknown or the password is wrong"
    with store.reading() as session:
        assert session.scalars(select(SessionRow)).all() == []


def test_a_name_that_nobody_has_takes_as_much_work(
    store: Database, password_hash: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = []
    monkeypatch.setattr(users, "_METHOD", password_hash.partition("$")[0])

    def check(password_hash: str, _password: str) -> bool:
        method, *parts = password_hash.split("$")
        checked.append((method, *map(len, parts)))
        return False

    monkeypatch.setattr(users, "check_password_hash", check)
    for name in ("alice", "bob", "not a name"):
        with pytest.raises(SignInRefused):
            enter(store, name)
    assert checked == [checked[0]] * 3
    assert checked[0][1:] == (16, 128), "salt and hash"


def test_a_token_signs_in_with_its_name_and_secret(store: Database) -> None:
    with store.registering() as session:
        _, secret = create_token(session, "ops", Role.ADMIN, None, NOW)
        _, host_secret = create_token(session, "kvm7", Role.HOST, "kvm7", NOW)
        _, namesake = create_token(session, "alice", Role.VIEWER, None, NOW)
    signed_in = enter(store, "ops", secret)
    assert signed_in.principal == Principal("ops", Role.ADMIN, None, PrincipalKind.TOKEN)
    assert enter(store, "alice", namesake).principal.role is Role.VIEWER
    assert enter(store).principal == ALICE
    for name, wrong in (("ops", namesake), ("kvm7", host_secret)):
        with pytest.raises(SignInRefused):
            enter(store, name, wrong)
    with store.registering() as session:
        revoke_token(session, "ops")
    assert find_session(store, signed_in.secret, NOW, DEFAULT_LIMITS) is None


def test_a_session_ends_after_its_length_and_when_it_is_idle(store: Database) -> None:
    used, idle = enter(store), enter(store)
    for minutes in range(100, 720, 100):
        assert find_session(store, used.secret, after(minutes=minutes), DEFAULT_LIMITS)
    assert find_session(store, idle.secret, after(minutes=119), DEFAULT_LIMITS, used=False)
    assert find_session(store, idle.secret, after(minutes=120), DEFAULT_LIMITS) is None
    assert find_session(store, used.secret, after(hours=12), DEFAULT_LIMITS) is None


def test_the_own_sessions_that_go_on_are_listed(store: Database, password_hash: str) -> None:
    with store.registering() as session:
        create_user(session, "bob", Role.VIEWER, password_hash, NOW)
        _, secret = create_token(session, "alice", Role.VIEWER, None, NOW)
    for minute in (0, 60, 150):
        enter(store, now=after(minutes=minute))
    enter(store, "bob")
    enter(store, "alice", secret)

    def begun(principal: Principal, minutes: int) -> list[datetime]:
        with store.reading() as session:
            found = list_sessions(session, principal, after(minutes=minutes), DEFAULT_LIMITS, None, 100)
            return [row.created_at for row in found]

    assert begun(ALICE, 160) == [after(minutes=150), after(minutes=60)]
    assert begun(Principal("alice", Role.VIEWER), 100) == [NOW]
    assert begun(Principal("nobody", Role.VIEWER), 100) == []


def test_another_role_password_or_the_end_of_a_user_ends_its_sessions_and_no_others(
    store: Database, password_hash: str
) -> None:
    with store.registering() as session:
        create_user(session, "bob", Role.VIEWER, password_hash, NOW)
    others = enter(store, "bob")

    def goes_on(signed_in: SignedIn) -> bool:
        return find_session(store, signed_in.secret, NOW, DEFAULT_LIMITS) is not None

    signed_in = enter(store)
    with store.registering() as session:
        assert set_role(session, "alice", Role.OPERATOR, NOW, lambda _etag: None).version == 1
    assert goes_on(signed_in), "it is the role it had"
    with store.registering() as session:
        assert set_role(session, "alice", Role.VIEWER, NOW, lambda _etag: None).version == 2
    assert not goes_on(signed_in)
    signed_in = enter(store)
    with store.registering() as session:
        set_password(session, "alice", hash_password("another one"), NOW)
    assert not goes_on(signed_in)
    with pytest.raises(SignInRefused):
        enter(store)
    signed_in = enter(store, password="another one")
    with store.registering() as session:
        delete(session, UserRow, "alice", lambda _etag: None)
    assert not goes_on(signed_in)
    assert goes_on(others)
    for change in (lambda session: set_role(session, "alice", Role.VIEWER, NOW, lambda _etag: None),):
        with pytest.raises(NotFound, match="no user named 'alice'"), store.registering() as session:
            change(session)


def test_after_five_failures_tries_wait_longer_and_longer(store: Database) -> None:
    waits, now = [], NOW
    fail(store, 4)
    for _ in range(5):
        assert wait_s(store, now) == 0, "one more failure"
        waits.append(wait_s(store, now))
        assert wait_s(store, now + timedelta(seconds=waits[-1] - 0.5)) == 1
        now += timedelta(seconds=waits[-1])
    assert waits == [30, 60, 120, 240, 480]
    assert now > NOW + sign_in_throttle.WINDOW
    fail(store, 2, now)
    assert wait_s(store, now) == 30, "of the first failures none counts any more, of the later ones three"


def test_the_longest_wait_is_that_of_the_window(store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    fail(store, 5)
    monkeypatch.setattr(sign_in_throttle, "FIRST_WAIT", timedelta(hours=1))
    assert wait_s(store, NOW) == 900


def test_failures_count_for_the_name_and_for_the_network(store: Database) -> None:
    fail(store, 5)
    assert wait_s(store, NOW, address="198.51.100.1") == 30
    assert wait_s(store, NOW, name="bob") == 30
    assert wait_s(store, NOW, name="bob", address="198.51.100.1") == 0


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2", True),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("", "", True),
    ],
)
def test_what_counts_as_one_network(store: Database, one: str, other: str, same: bool) -> None:
    fail(store, 5, name="a", address=one)
    assert wait_s(store, NOW, "b", other) == (30 if same else 0)


def test_success_forgives_the_name_and_not_the_network(store: Database) -> None:
    fail(store, 4, name="bob")
    enter(store)
    fail(store, 1)
    assert wait_s(store, NOW, name="carol") == 30, "five failures from there"
    assert wait_s(store, NOW, address="198.51.100.1") == 0, "alice failed once"


def test_the_right_password_is_not_looked_at_while_tries_wait(store: Database) -> None:
    fail(store, 5)
    with pytest.raises(SignInThrottled, match="try again in 30 s") as refusal:
        enter(store)
    assert refusal.value.retry_after_s == 30
    assert enter(store, now=after(seconds=30)).principal == ALICE


def test_a_new_password_forgives_failures(store: Database, password_hash: str) -> None:
    fail(store, 5, address="198.51.100.1")
    with store.registering() as session:
        set_password(session, "alice", password_hash, NOW)
    assert enter(store).principal == ALICE


def test_of_many_tries_at_once_five_get_through(store: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda _: wait_s(store, NOW), range(20)))
    assert sorted(waits) == [0] * 5 + [30] * 15


def test_the_name_that_failed_is_not_kept(store: Database) -> None:
    with pytest.raises(SignInRefused):
        enter(store, PASSWORD, "alice")
    with store.reading() as session:
        [row] = session.scalars(select(SignInFailureRow)).all()
    assert PASSWORD not in str([row.name_hash, row.network])


def test_a_user_proves_who_it_is_once_more(store: Database) -> None:
    verify_password(store, "alice", PASSWORD, ADDRESS, NOW)
    for _ in range(5):
        with pytest.raises(SignInRefused, match="not the current password"):
            verify_password(store, "alice", "wrong", ADDRESS, NOW)
    with pytest.raises(SignInThrottled):
        verify_password(store, "alice", PASSWORD, ADDRESS, NOW)


def test_a_session_that_a_clock_that_was_ahead_began_does_not_last_until_then(store: Database) -> None:
    signed_in = enter(store, now=after(days=365))
    assert find_session(store, signed_in.secret, after(days=365), DEFAULT_LIMITS)
    assert find_session(store, signed_in.secret, after(days=365, seconds=-30), DEFAULT_LIMITS)
    assert find_session(store, signed_in.secret, NOW, DEFAULT_LIMITS) is None


@pytest.mark.parametrize("back", [timedelta(minutes=10), timedelta(hours=2), timedelta(days=365)])
def test_a_session_that_was_used_before_the_clock_was_set_back_ends(store: Database, back: timedelta) -> None:
    """Else it would last longer by as much."""
    signed_in = enter(store, now=NOW - timedelta(minutes=5))

    def goes_on(now: datetime) -> tuple[bool, int]:
        with store.reading() as session:
            listed = list_sessions(session, signed_in.principal, now, DEFAULT_LIMITS, None, 100)
        return find_session(store, signed_in.secret, now, DEFAULT_LIMITS, used=False) is not None, len(listed)

    assert (goes_on(NOW), goes_on(NOW - back)) == ((True, 1), (False, 0))


@pytest.mark.parametrize("ahead", [timedelta(minutes=10), timedelta(hours=2), timedelta(days=365)])
def test_failures_that_a_clock_that_was_ahead_dated_lock_nobody_out_neither_now_nor_then(
    store: Database, ahead: timedelta
) -> None:
    fail(store, 5, NOW + ahead)
    with pytest.raises(SignInThrottled):
        enter(store, now=NOW + ahead)
    enter(store)
    enter(store, now=NOW + ahead + timedelta(seconds=1))
    fail(store, 5)
    with pytest.raises(SignInThrottled):
        enter(store)


def test_what_counts_no_more_is_removed(store: Database) -> None:
    enter(store)
    fail(store, 2)
    fail(store, 1, after(minutes=1))
    assert prune_access(Cleanup(store, after(minutes=30), long_ago), timedelta(minutes=30)) == 2
    assert prune_access(Cleanup(store, after(hours=12), long_ago), timedelta(hours=12)) == 2, "a failure and a session"
    assert prune_access(Cleanup(store, after(hours=12), long_ago), timedelta(hours=12) - timedelta(seconds=1)) == 1, (
        "the sign-in, from the audit"
    )


def test_a_full_table_of_failures_locks_nobody_out_and_the_oldest_are_forgotten(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sign_in_throttle, "MOST_ROWS", 20)
    for number in range(30):
        fail(store, 1, after(seconds=number), f"guess-{number}", f"198.51.100.{number}")
    assert enter(store, now=after(seconds=31)).principal == ALICE
    fail(store, 5, after(seconds=32), "bob", "203.0.113.1")
    assert wait_s(store, after(seconds=32), "bob", "203.0.113.2") == 30, "the newest count"
    with store.reading() as session:
        assert len(session.scalars(select(SignInFailureRow)).all()) == 20


def test_a_flood_of_failures_adds_few_rows_to_the_audit_and_they_count_it(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "is_password", lambda *_: False)
    monkeypatch.setattr(sign_in_throttle, "MOST_A_DAY", 10)

    def refused(minute: int, name: str = "") -> None:
        with pytest.raises(SignInRefused):
            address = f"198.51.100.{minute % 250}"
            sign_in(store, name or f"guess-{minute}", "x", address, after(minutes=minute), DEFAULT_LIMITS)

    def entries() -> Sequence[AuditRow]:
        with store.reading() as session:
            return list_audit(session, AuditFilter(object_kind="session"), None, 1000)

    for minute in range(75):
        refused(minute)
    refused(75, "alice")
    [named, *guesses] = entries()
    assert named.actor == "alice", "what others guessed hides nothing"
    assert len(guesses) == 10 + 3
    assert guesses[0].after == {"failures": 30, "since": after(minutes=40).isoformat()}
    refused(3 * 24 * 60)
    assert entries()[0].after is None, "another day has rows of its own"
