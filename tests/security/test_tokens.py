"""Tokens and passwords: what is kept of them, when they end, and that guessing is slow on all managers together."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import select

from manager.cli import main
from manager.errors import SignInRefused, SignInThrottled
from manager.store.access_models import TokenRow
from manager.store.database import Database, open_database
from manager.store.sessions import DEFAULT_LIMITS, find_session, sign_in
from manager.store.sign_in_throttle import FAILURES
from manager.store.tokens import Role, authenticate, create_token
from manager.store.users import create_user, hash_password
from tests.api.conftest import START, Api, moment

DAY = timedelta(days=1)


def test_a_tokens_secret_has_256_bits_and_only_its_hash_is_kept(database: Database) -> None:
    with database.registering() as session:
        made = [create_token(session, f"t{number}", Role.VIEWER, None, START)[1] for number in range(50)]
    assert len(set(made)) == 50
    assert all(re.fullmatch(r"eqp_[A-Za-z0-9_-]{43}", secret) for secret in made), "43 letters of 6 bits: 256 bits"
    with database.reading() as session:
        kept = session.scalars(select(TokenRow.secret_hash)).all()
    assert all(re.fullmatch(r"[0-9a-f]{64}", one) for one in kept)


def test_passwords_are_kept_by_scrypt_with_salts_of_their_own() -> None:
    one, other = hash_password("correct horse"), hash_password("correct horse")
    assert one != other
    assert one.startswith("scrypt:32768:8:3$"), "32 MiB and three passes"


def test_a_token_ends_when_it_was_to(database: Database) -> None:
    with database.registering() as session:
        _, secret = create_token(session, "report", Role.VIEWER, None, START, START + DAY)
    just_before = START + DAY - timedelta(seconds=1)
    assert authenticate(database, secret, just_before) is not None
    signed_in = sign_in(database, "report", secret, "192.0.2.7", START, DEFAULT_LIMITS)
    late = sign_in(database, "report", secret, "192.0.2.7", just_before, DEFAULT_LIMITS)
    assert find_session(database, signed_in.secret, START, DEFAULT_LIMITS) is not None
    assert find_session(database, late.secret, just_before, DEFAULT_LIMITS) is not None
    assert authenticate(database, secret, START + DAY) is None
    assert find_session(database, late.secret, START + DAY, DEFAULT_LIMITS) is None, "its sessions end with it"
    with pytest.raises(SignInRefused):
        sign_in(database, "report", secret, "192.0.2.7", START + DAY, DEFAULT_LIMITS)


def test_the_end_of_a_token_is_set_and_told_over_the_interface(api: Api) -> None:
    body: dict[str, Any] = {"name": "report", "role": "viewer", "expires_at": moment(3600)}
    api.secrets["report"] = api.ok("POST", "/tokens", body)["token"]
    [listed] = [one for one in api.ok("GET", "/tokens")["items"] if one["name"] == "report"]
    assert (listed["expires_at"], listed["last_used_at"]) == (moment(3600), None)
    api.ok("GET", "/vms", role="report")
    api.clock.now_s += 3600
    assert "expired" in api.refused(401, "GET", "/vms", role="report")["detail"]
    refused = api.refused(422, "POST", "/tokens", {**body, "name": "past"})
    assert refused["field"] == "expires_at"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"role": "source"}, "application"),
        ({"role": "viewer", "application": "shop"}, "application"),
        ({"role": "source", "application": "a b"}, "application"),
        ({"role": "source", "application": "shop", "host": "kvm1"}, "host"),
        ({"role": "viewer", "expires_at": "tomorrow"}, "expires_at"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(sqlite_api: Api, body: dict[str, Any], field: str) -> None:
    assert sqlite_api.refused(422, "POST", "/tokens", {"name": "x", **body})["field"] == field


def test_what_machines_use_signs_nobody_in(sqlite_api: Api) -> None:
    for name in ("source", "host"):
        with pytest.raises(SignInRefused):
            sign_in(sqlite_api.database, f"the-{name}", sqlite_api.secrets[name], "192.0.2.7", START, DEFAULT_LIMITS)
    for role in ("source", "host"):
        assert sqlite_api.refused(422, "POST", "/users", {"name": "x", "role": role, "password": "correct horse"})


def test_its_use_is_noted_at_most_once_a_minute(sqlite_api: Api) -> None:
    def used() -> str:
        [found] = [one for one in sqlite_api.ok("GET", "/tokens")["items"] if one["name"] == "the-viewer"]
        return str(found["last_used_at"])

    for seconds, noted in ((0, 0), (30, 0), (29, 0), (1, 60), (59, 60)):
        sqlite_api.clock.now_s += seconds
        sqlite_api.ok("GET", "/vms", role="viewer")
        assert used() == moment(noted)


def test_the_command_line_makes_tokens_that_end(tmp_path: Any) -> None:
    def call(*arguments: str) -> str:
        ended = CliRunner().invoke(main, ["token", *arguments, "--state-dir", str(tmp_path)])
        assert ended.exit_code == 0, ended.output
        return ended.output

    call("create", "--role", "viewer", "--name", "report", "--days", "30")
    call("create", "--role", "source", "--application", "shop", "--name", "probe")
    lines = {line.split()[1]: line for line in call("list").splitlines() if "│" in line}
    assert lines["report"].count("never") == 1, "never used, but it ends"
    assert "shop" in lines["probe"]


def test_managers_count_failed_tries_together(database: Database) -> None:
    """Two of them, with connections of their own, on one database; none gets past the limit."""
    url = database.url.render_as_string(hide_password=False)
    other = open_database(url)
    with database.registering() as session:
        create_user(session, "ada", Role.VIEWER, hash_password("correct horse"), START)

    def guess(number: int) -> str:
        try:
            sign_in((database, other)[number % 2], "ada", f"guess {number}", f"192.0.2.{number}", START, DEFAULT_LIMITS)
        except (SignInRefused, SignInThrottled) as error:
            return type(error).__name__
        return "in"

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(guess, range(12)))
    other.close()
    assert (found.count("SignInRefused"), found.count("SignInThrottled")) == (FAILURES, 12 - FAILURES)
