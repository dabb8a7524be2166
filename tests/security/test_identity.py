"""A host's identity is its own: what the agent, or a join token, of one host cannot do to another."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.cli.admin import ensure_token_file
from manager.store.tokens import Role
from tests.api.conftest import HOST, Api, report

LONG = "h" * 62
"""With `agent-` before it, it is longer than a name may be."""


def join_token(api: Api, name: str, **fields: object) -> str:
    secret: str = api.ok("POST", "/join-tokens", {"name": name, **fields})["token"]
    return secret


def join(api: Api, host: str, secret: str) -> dict[str, str]:
    joined: dict[str, str] = api.ok("POST", f"/hosts/{host}/join", {"token": secret}, role="")
    return joined


def speaks_for(api: Api, host: str, secret: str) -> bool:
    answer = api.call("POST", f"/hosts/{host}/report", report(), role="", Authorization=f"Bearer {secret}")
    return answer.status_code == 200


@pytest.mark.parametrize("fields", [{}, {"host": HOST}], ids=["for any host", "for this host"])
def test_no_join_token_joins_a_host_that_is_served_whatever_its_token_is_called(
    api: Api, fields: dict[str, object]
) -> None:
    """The host's token is `the-host`, as an administrator called it."""
    secret = join_token(api, "stray", **fields)
    problem = api.refused(422, "POST", f"/hosts/{HOST}/join", {"token": secret}, role="")
    assert "is served already, with token 'the-host'" in problem["detail"]
    assert speaks_for(api, HOST, api.secrets["host"])
    assert api.ok("GET", "/join-tokens")["items"][0]["used_at"] is None, "it was not used up"


def test_an_operator_may_let_a_host_join_again(api: Api) -> None:
    joined = join(api, HOST, join_token(api, "again", host=HOST, replace=True))
    assert not speaks_for(api, HOST, api.secrets["host"]), "all tokens of the host are revoked"
    assert speaks_for(api, HOST, joined["token"])
    deleted = [one["object"] for one in api.ok("GET", "/audit")["items"] if one["action"] == "token.delete"]
    assert deleted == ["the-host"]
    api.ok("DELETE", f"/tokens/{joined['name']}")
    assert speaks_for(api, HOST, join(api, HOST, join_token(api, "revoked"))["token"])


def test_an_expired_token_serves_no_host(api: Api) -> None:
    body = {"name": "short", "role": "host", "host": "kvm9", "expires_at": "2026-03-01T12:01:00Z"}
    api.ok("POST", "/tokens", body)
    secret = join_token(api, "any")
    api.refused(422, "POST", "/hosts/kvm9/join", {"token": secret}, role="")
    api.clock.now_s += 60
    assert speaks_for(api, "kvm9", join(api, "kvm9", secret)["token"])


def test_long_names_of_hosts_have_tokens_of_their_own(api: Api) -> None:
    first = join(api, LONG, join_token(api, "a"))
    second = join(api, LONG + "x", join_token(api, "b"))
    assert first["name"] != second["name"]
    assert {len(first["name"]), len(second["name"])} == {63}
    assert speaks_for(api, LONG, first["token"]), "the second did not replace it"
    assert speaks_for(api, LONG + "x", second["token"])


def test_a_token_of_that_name_for_something_else_is_left_alone(api: Api) -> None:
    api.ok("POST", "/tokens", {"name": "agent-kvm9", "role": "viewer"})
    joined = join(api, "kvm9", join_token(api, "a"))
    assert joined["name"].startswith("agent-kvm9-")
    assert {one["name"]: one["role"] for one in api.ok("GET", "/tokens")["items"]}["agent-kvm9"] == "viewer"


def test_the_file_of_a_local_agent_is_for_its_host_and_takes_no_other_token_away(
    sqlite_api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `equipoise run` does: also where the host name is long, or was changed since."""
    file = tmp_path / "agent.token"

    def ensure(host: str) -> str:
        ensure_token_file(sqlite_api.database, file, f"agent-{host}", Role.HOST, host)
        return file.read_text().strip()

    sqlite_api.ok("POST", "/tokens", {"name": "agent-kvm9", "role": "viewer"})
    first = ensure(LONG)
    assert ensure(LONG) == first
    second = ensure("kvm9")
    assert speaks_for(sqlite_api, "kvm9", second), "the file held the token of the name before"
    assert speaks_for(sqlite_api, LONG, first)
    file.unlink()
    third = ensure("kvm9")
    assert not speaks_for(sqlite_api, "kvm9", second), "nobody can read that any more"
    assert speaks_for(sqlite_api, "kvm9", third)
    assert {one["name"]: one["role"] for one in sqlite_api.ok("GET", "/tokens")["items"]}["agent-kvm9"] == "viewer"
