"""Hosts that join with a token that works once."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, cast
from unittest.mock import MagicMock

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import select

from manager import private
from manager.cli import main
from manager.serving.server import HttpServer, Lanes
from manager.store.host_models import JoinTokenRow
from manager.store.joining import KEEP
from manager.store.retention import Cleanup, prune_access
from tests.aging import long_ago
from tests.api.conftest import HOST, START, Api, moment, report


def make(api: Api, name: str = "rack-4", **fields: object) -> str:
    made = api.ok("POST", "/join-tokens", {"name": name, **fields})
    assert made["token"].startswith("eqj_")
    secret: str = made["token"]
    return secret


def refused(api: Api, secret: str, host: str = "kvm9") -> str:
    why: str = api.refused(422, "POST", f"/hosts/{host}/join", {"token": secret}, role="")["detail"]
    return why


def test_a_host_joins_once_and_reports_with_the_token_it_got(api: Api) -> None:
    secret = make(api)
    joined = api.ok("POST", "/hosts/kvm9/join", {"token": secret}, role="")
    assert (joined["host"], joined["name"]) == ("kvm9", "agent-kvm9")
    own = {"Authorization": f"Bearer {joined['token']}"}
    api.ok("POST", "/hosts/kvm9/report", report(), role="", **own)
    api.refused(403, "POST", f"/hosts/{HOST}/report", report(), role="", **own)
    assert "was used at 2026-03-01 12:00:00+00:00 by host 'kvm9'" in refused(api, secret, "kvm10")
    assert "was used" in refused(api, secret)
    [listed] = api.ok("GET", "/join-tokens")["items"]
    assert listed == {
        "name": "rack-4",
        "host": None,
        "replace": False,
        "created_at": moment(0),
        "expires_at": moment(86_400),
        "used_at": moment(0),
        "used_by": "kvm9",
    }
    api.refused(401, "GET", "/vms", role="", Authorization=f"Bearer {secret}")


def test_why_a_host_may_not_join_is_said(api: Api) -> None:
    ours = make(api, "ours", host="kvm9", expires_at=moment(60))
    assert refused(api, ours, "kvm8") == "join token 'ours' is for host 'kvm9', not 'kvm8'"
    api.clock.now_s += 60
    assert "expired at 2026-03-01 12:01:00+00:00" in refused(api, ours)
    assert "unknown" in refused(api, ours + "x")
    gone = make(api, "gone")
    api.ok("DELETE", "/join-tokens/gone")
    assert "unknown or was deleted" in refused(api, gone)
    with api.database.reading() as session:
        assert session.scalars(select(JoinTokenRow.used_at)).all() == [None]
    assert "agent-kvm9" not in {one["name"] for one in api.ok("GET", "/tokens")["items"]}


def test_a_token_for_any_host_takes_no_host_over(api: Api) -> None:
    first = api.ok("POST", "/hosts/kvm9/join", {"token": make(api, "a")}, role="")["token"]
    b = make(api, "b")
    assert "is served already, with token 'agent-kvm9'" in refused(api, b)
    api.ok("POST", "/hosts/kvm10/join", {"token": b}, role="")
    assert "--join --host kvm9 --replace" in refused(api, make(api, "early", host="kvm9")), "it was made for the first"
    replacing = make(api, "c", host="kvm9", replace=True)
    again = api.ok("POST", "/hosts/kvm9/join", {"token": replacing}, role="")["token"]
    api.refused(401, "POST", "/hosts/kvm9/report", report(), role="", Authorization=f"Bearer {first}")
    api.ok("POST", "/hosts/kvm9/report", report(), role="", Authorization=f"Bearer {again}")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "expires_at": moment(0)}, "expires_at"),
        ({"name": "x", "expires_at": moment(31 * 86_400)}, "expires_at"),
        ({"name": "x", "host": "no host"}, "host"),
        ({"name": "x", "replace": True}, "replace"),
        ({"name": "x", "role": "admin"}, "role"),
        ({}, "name"),
    ],
)
def test_what_no_join_token_can_be_is_refused(sqlite_api: Api, body: dict[str, object], field: str) -> None:
    assert sqlite_api.refused(422, "POST", "/join-tokens", body)["field"] == field


def test_who_may_make_them_and_what_the_audit_tells(api: Api) -> None:
    for role in ("viewer", "operator", "host"):
        api.refused(403, "POST", "/join-tokens", {"name": "x"}, role=role)
        api.refused(403, "GET", "/join-tokens", role=role)
        api.refused(403, "DELETE", "/join-tokens/x", role=role)
    secret = make(api, host="kvm9")
    api.refused(409, "POST", "/join-tokens", {"name": "rack-4"})
    made = api.ok("POST", "/hosts/kvm9/join", {"token": secret}, role="")["token"]
    api.ok("DELETE", "/join-tokens/rack-4")
    audit = api.ok("GET", "/audit")["items"]
    told = [(one["action"], one["object"], one["actor_kind"], one["actor"], one["role"]) for one in reversed(audit)]
    assert told == [
        ("join-token.create", "rack-4", "token", "the-admin", "admin"),
        ("token.create", "agent-kvm9", "token", "rack-4", "join"),
        ("join-token.delete", "rack-4", "token", "the-admin", "admin"),
    ]
    assert audit[1]["after"]["host"] == "kvm9"
    assert secret not in str(audit)
    assert made not in str(audit)
    problem = api.refused(422, "POST", "/hosts/kvm9/join", {"token": "eqj_" + "x" * 300}, role="")
    assert "xxx" not in str(problem), "a secret is not repeated"


def test_they_are_forgotten_some_time_after_their_end(api: Api) -> None:
    make(api, expires_at=moment(60))
    api.clock.now_s += 60
    end = START.replace(minute=1)
    prune_access(Cleanup(api.database, end + KEEP.__class__(seconds=KEEP.total_seconds() - 1), long_ago), KEEP)
    assert len(api.ok("GET", "/join-tokens")["items"]) == 1
    prune_access(Cleanup(api.database, end + KEEP, long_ago), KEEP)
    assert api.ok("GET", "/join-tokens")["items"] == []


@pytest.fixture
def url(sqlite_api: Api) -> Iterator[str]:
    server = HttpServer(sqlite_api.app, "127.0.0.1", 0, Lanes(2))
    server.start()
    [(host, port)] = server.addresses
    yield f"http://{host}:{port}"
    server.close()


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.delenv("EQUIPOISE_CONFIG", raising=False)
    given = {"EQUIPOISE_STATE_DIR": str(tmp_path / "state"), "EQUIPOISE_HOST_NAME": "kvm9"}
    return lambda *words, text=None: CliRunner(env=given).invoke(main, ["agent", "join", *words], input=text)


def test_the_command_writes_the_token_for_its_owner_alone(
    sqlite_api: Api, url: str, call: Callable[..., Result], tmp_path: Path
) -> None:
    secret = make(sqlite_api)
    result = call(url, "-", text=secret + "\n")
    assert result.exit_code == 0, result.output
    assert secret not in result.output
    file = tmp_path / "state/agent.token"
    assert file.stat().st_mode & 0o777 == 0o600
    own = {"Authorization": f"Bearer {file.read_text().strip()}"}
    sqlite_api.ok("POST", "/hosts/kvm9/report", report(), role="", **own)
    assert [one.name for one in file.parent.iterdir()] == ["agent.token"]
    other = make(sqlite_api, "other", host="kvm9", replace=True)
    refusal = call(url, other)
    assert (refusal.exit_code, "--force" in refusal.output) == (1, True)
    assert call(url, other, "--force").exit_code == 0
    assert file.read_text().strip() not in own["Authorization"]


def test_the_command_says_why_and_uses_nothing_up_that_it_cannot_write(
    sqlite_api: Api, url: str, call: Callable[..., Result], tmp_path: Path
) -> None:
    secret = make(sqlite_api)
    nowhere = call(url, secret, "--token-file", str(tmp_path / "none/token"))
    assert (nowhere.exit_code, "cannot be written: No such file" in nowhere.output) == (1, True)
    unknown = call(url, "eqj_nonsense")
    assert (unknown.exit_code, "is unknown" in unknown.output) == (1, True)
    away = call("http://127.0.0.1:9", secret)
    assert (away.exit_code, "does not answer" in away.output) == (1, True)
    assert not (tmp_path / "state/agent.token").exists()
    assert call(url, secret).exit_code == 0, "it was not used up"


class LastBlocks:
    """A disk with so many free blocks, of which each file takes one. ``fails``: at the write of that number."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int, fails: int = 0) -> None:
        real, self.writes = private.open_new, 0
        used: set[Path] = set()

        def opened(path: Path) -> BinaryIO:
            file = real(path)
            write = file.write

            def writing(content: bytes) -> int:
                self.writes += 1
                used.add(path)
                if len(used) > free or self.writes == fails:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return write(content)

            watched = MagicMock(wraps=file)
            watched.write = writing
            watched.__enter__.return_value = watched
            watched.__exit__ = lambda *_: file.close()
            return cast(BinaryIO, watched)

        monkeypatch.setattr(private, "open_new", opened)


def test_a_token_is_exchanged_where_there_is_room_for_what_it_brings(
    sqlite_api: Api, url: str, call: Callable[..., Result], tmp_path: Path
) -> None:
    secret, folder = make(sqlite_api), tmp_path / "state"
    for free, fails, said in ((0, 0, "cannot be written: No space left"), (1, 0, "joined as kvm9")):
        with pytest.MonkeyPatch.context() as patch:
            LastBlocks(patch, free, fails)
            assert said in call(url, secret).output
    own = {"Authorization": f"Bearer {(folder / 'agent.token').read_text().strip()}"}
    sqlite_api.ok("POST", "/hosts/kvm9/report", report(), role="", **own)
    other = make(sqlite_api, "other", host="kvm9", replace=True)
    with pytest.MonkeyPatch.context() as patch:
        LastBlocks(patch, 1, fails=2)
        lost = call(url, other, "--force")
    assert lost.exit_code == 1
    assert "kvm9 joined, but its token cannot be written" in lost.output
    assert "`equipoise token create --join --host kvm9 --replace`" in lost.output
    assert [one.name for one in folder.iterdir()] == ["agent.token"]


def test_tokens_to_join_with_are_made_listed_and_revoked_on_the_managers_machine(tmp_path: Path) -> None:
    def token(*words: str) -> Result:
        return CliRunner(env={"EQUIPOISE_STATE_DIR": str(tmp_path / "state")}).invoke(main, ["token", *words])

    made = token("create", "--join", "--host", "kvm9", "--days", "2")
    assert re.fullmatch(r"eqj_\S{43}\n", made.stdout), made.output
    assert token("create", "--join", "--name", "rack").exit_code == 0
    listed = token("list").output
    assert "kvm9" in listed
    assert "any host" in listed
    assert token("revoke", "rack").exit_code == 0
    assert token("revoke", "rack").exit_code == 1
    assert "rack" not in token("list").output
    assert token("create", "--join", "--host", "kvm9", "--replace").exit_code == 0
    for words in (["--join", "--replace"], ["--join", "--role", "viewer"], ["--name", "x"], ["--role", "viewer"], []):
        assert token("create", *words).exit_code == 2
