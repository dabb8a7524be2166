"""A host's identity is its own: what the agent, or a join token, of one host cannot do to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manager.cli.admin_commands import ensure_token_file
from manager.errors import SettingsError
from manager.settings import load_settings
from manager.store.tokens import Role
from tests.api.conftest import HOST, Api, report, status, tick_of, window

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


MOVED_S = 61
OTHER = "kvm2"
UUID, OTHER_UUID = (f"6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a1{digit}" for digit in (0, 1))
DOMAIN = {"libvirt_uuid": UUID, "libvirt_name": "web"}
PROBE = {"type": "http_probe", "name": "probe", "url": "http://10.0.0.1/secret"}


def register(api: Api, host: str | None = None, **fields: object) -> None:
    """An application ``shop`` of one VM with a probe that carries credentials, and two hosts."""
    for name in (HOST, OTHER):
        api.ok("PUT", f"/hosts/{name}", {})
        api.ok("POST", f"/hosts/{name}/report", report())
    api.ok("PUT", "/vms/web", {"class": "critical", "host": host, **fields})
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web"]}], "sources": [PROBE]})
    api.clock.now_s += MOVED_S


def claim(api: Api, role: str = "other host", uuid: str = UUID, *, migrating: bool = False, **changes: Any) -> Any:
    """A host says that it has the VM, and whether it migrates that to another host."""
    name = HOST if role == "host" else OTHER
    told = {"vms": [status("web", libvirt_uuid=uuid, migrating=migrating)], **changes}
    return api.ok("POST", f"/hosts/{name}/report", report(**told), role=role)


def seen_on(api: Api) -> str | None:
    host: str | None = api.ok("GET", "/vms/web")["status_host"]
    return host


def alarms(api: Api) -> list[tuple[str, str]]:
    events = api.ok("GET", "/events")["items"]
    return sorted((one["host"], one["severity"]) for one in events if one["kind"] == "vm-claimed")


def moves(api: Api) -> list[str]:
    return [event["message"] for event in api.ok("GET", "/events?vm=web&kind=vm-moved")["items"]]


def probed_by(api: Api) -> list[str]:
    """The hosts that are given the probe and its credentials."""
    return [name for name in (HOST, OTHER) if "secret" in api.call("GET", f"/hosts/{name}/assignment").text]


def test_a_vm_registered_for_another_host_is_not_taken_over_and_both_hosts_have_the_alarm(api: Api) -> None:
    register(api, HOST)
    claim(api, "host")
    claim(api)
    assert seen_on(api) == HOST
    assert alarms(api) == [(HOST, "error"), (OTHER, "error")]
    [message] = {one["message"] for one in api.ok("GET", "/events?vm=web")["items"]}
    assert message.startswith("kvm2 reports VM web, which is registered for host kvm1")
    assert probed_by(api) == [HOST]
    for _ in range(5):
        claim(api)
    assert len(alarms(api)) == 2, "once in ten minutes"
    api.clock.now_s += 600
    claim(api)
    assert len(alarms(api)) == 4
    metric = 'equipoise_vm_claims_refused_total{why="registered_elsewhere"}'
    assert f"{metric} " in api.call("GET", "//metrics", role="").text


def test_nor_while_it_does_not_run(api: Api) -> None:
    register(api, HOST)
    claim(api)
    assert seen_on(api) is None
    shares = {"vm": "web", "cpu_share": 1.0, "run_delay_share": 0.0, "weight": None, "mode": "enforce"}
    claim(api, vms=None, ticks=[tick_of(1, vms=[shares])])
    assert seen_on(api) is None


def test_a_status_of_before_its_registration_for_another_host_counts_no_more(api: Api) -> None:
    register(api)
    claim(api)
    assert seen_on(api) == OTHER
    api.ok("PUT", "/vms/web", {"class": "critical", "host": HOST})
    assert seen_on(api) is None
    claim(api)
    assert alarms(api) == [], "the agent may not know it yet"
    api.clock.now_s += MOVED_S
    claim(api)
    assert len(alarms(api)) == 2


def test_another_domain_of_that_name_is_not_the_vm(api: Api) -> None:
    register(api, libvirt_uuid=UUID)
    claim(api, uuid=OTHER_UUID)
    assert (seen_on(api), alarms(api)) == (None, [(OTHER, "error")])
    claim(api, uuid=UUID)
    assert seen_on(api) == OTHER


def test_a_vm_registered_for_no_host_stays_where_it_is_until_that_host_lets_it_go(api: Api) -> None:
    """So a VM that migrates is on one host after the other, and a claim takes none over."""
    register(api)
    claim(api, "host")
    claim(api)
    assert (seen_on(api), alarms(api)) == (HOST, []), "it may be on its way"
    claim(api, "host", vms=[])
    claim(api)
    assert (seen_on(api), alarms(api)) == (OTHER, [])
    claim(api, "host", OTHER_UUID)
    api.clock.now_s += MOVED_S
    claim(api, vms=None)
    claim(api, "host", OTHER_UUID)
    assert (seen_on(api), alarms(api)) == (OTHER, [(HOST, "warning"), (OTHER, "warning")])
    api.clock.now_s += MOVED_S
    claim(api, "host", OTHER_UUID)
    assert seen_on(api) == HOST, "the other one is silent"


def test_a_migration_takes_as_long_as_the_host_says_that_it_leaves(api: Api) -> None:
    register(api)
    claim(api, "host", migrating=True)
    claim(api)
    for _ in range(100):
        api.clock.now_s += MOVED_S
        claim(api, "host", vms=None)
        claim(api)
    assert (seen_on(api), alarms(api)) == (HOST, []), "what did not change is not reported again"
    claim(api, "host")
    api.clock.now_s += 59
    claim(api, "host", vms=None)
    claim(api)
    assert alarms(api) == [], "the destination may take a moment to end"
    api.clock.now_s += 1
    claim(api)
    assert (seen_on(api), alarms(api)) == (HOST, [(HOST, "warning"), (OTHER, "warning")])


def test_without_the_word_of_the_host_that_has_it_the_same_domain_is_a_claim_like_any_other(api: Api) -> None:
    """So nobody gains anything who knows its UUID, not even when it migrates later."""
    register(api)
    claim(api, "host", domains=[DOMAIN])
    claims = {"windows": [window(end=MOVED_S)], "domains": [DOMAIN], "migrating": True}
    assert claim(api, **claims)["stored_windows"] == 0
    api.refused(403, "POST", "/applications/shop/samples", {"times_ms": [1]}, role="other host")
    api.clock.now_s += MOVED_S
    claim(api, "host", vms=None)
    assert (claim(api, **claims)["stored_windows"], seen_on(api)) == (0, HOST)
    assert alarms(api) == [(HOST, "warning"), (OTHER, "warning")]
    [message] = {event["message"] for event in api.ok("GET", "/events?vm=web&kind=vm-claimed")["items"]}
    assert f"as the same domain {UUID}, and {HOST} reports no migration" in message


def test_nor_is_another_domain_the_destination(api: Api) -> None:
    register(api)
    claim(api, "host", migrating=True)
    domains = [{**DOMAIN, "libvirt_uuid": OTHER_UUID}]
    for _ in range(2):
        assert claim(api, uuid=OTHER_UUID, windows=[window(end=MOVED_S)], domains=domains)["stored_windows"] == 0
        api.clock.now_s += MOVED_S
        claim(api, "host", vms=None)
    assert (seen_on(api), len(alarms(api))) == (HOST, 2)


def test_a_migration_quicker_than_a_report_is_no_alarm_and_loses_no_response_time(api: Api) -> None:
    """An agent sends its latest windows again with each report."""
    register(api)
    claim(api, "host", domains=[DOMAIN])
    sent = {"windows": [window(end=MOVED_S)], "domains": [DOMAIN]}
    assert claim(api, **sent)["stored_windows"] == 0
    claim(api, "host", vms=[], domains=[])
    assert (claim(api, **sent)["stored_windows"], seen_on(api)) == (1, OTHER)
    assert (alarms(api), moves(api)) == ([], ["web moved from kvm1 to kvm2"])


def test_a_host_that_falls_silent_amid_a_migration_loses_the_vm_to_its_destination(api: Api) -> None:
    register(api)
    claim(api, "host", migrating=True)
    claim(api)
    api.clock.now_s += MOVED_S
    claim(api)
    assert (seen_on(api), alarms(api)) == (OTHER, [])


def test_response_times_count_on_the_host_that_a_vm_migrates_to(api: Api) -> None:
    """In a post-copy migration it runs there while its process on the host that it comes from still exists."""
    register(api)
    claim(api, "host", domains=[DOMAIN], migrating=True)
    assert claim(api, windows=[window(end=MOVED_S)], domains=[])["stored_windows"] == 0, "it has no such domain"
    told = claim(api, windows=[window(end=MOVED_S)], domains=[DOMAIN])
    assert (told["stored_windows"], seen_on(api)) == (1, HOST)
    api.ok("POST", "/applications/shop/samples", {"times_ms": [1]}, role="other host")
    assert claim(api, "host", windows=[window(end=MOVED_S)])["stored_windows"] == 1
    assert claim(api, windows=[window(end=MOVED_S)])["stored_windows"] == 0, "it was cancelled"


def test_a_vm_that_moves_is_an_event(api: Api) -> None:
    def seconds_later(*of: str, **changes: Any) -> None:
        api.clock.now_s += 1
        claim(api, *of, **changes)

    register(api)
    seconds_later("host")
    seconds_later()
    seconds_later("host", vms=[])
    seconds_later("host", vms=[])
    seconds_later()
    seconds_later()
    seconds_later(vms=[])
    seconds_later()
    assert moves(api) == ["web moved from kvm1 to kvm2"], "not when it starts again where it was"
    seconds_later(vms=[])
    seconds_later("host")
    assert moves(api) == ["web moved from kvm2 to kvm1", "web moved from kvm1 to kvm2"]


def test_probes_and_their_credentials_follow_no_claim(api: Api) -> None:
    register(api)
    claim(api)
    assert probed_by(api) == []
    [source] = api.ok("GET", "/applications/shop/sources")["items"]
    assert source["problem"] == "no host is registered for VM web: set its host, or that of the source"
    api.ok("PUT", "/vms/web", {"class": "critical", "host": HOST})
    assert probed_by(api) == [HOST]
    api.ok("PUT", "/vms/web", {"class": "critical"})
    api.ok("PATCH", "/applications/shop", {"sources": [{**PROBE, "host": OTHER}]})
    assert probed_by(api) == [OTHER]


def test_the_only_host_needs_no_registration(api: Api) -> None:
    register(api)
    for name, role in ((OTHER, "other-host"), ("nobody", "")):
        api.call("DELETE", f"/hosts/{name}")
        if role:
            api.ok("DELETE", f"/tokens/the-{role}")
    assert "secret" in api.call("GET", f"/hosts/{HOST}/assignment").text
    [source] = api.ok("GET", "/applications/shop/sources")["items"]
    assert source["problem"] == ""
    api.ok("POST", "/tokens", {"name": "more", "role": "host", "host": "kvm3"})
    assert "secret" not in api.call("GET", f"/hosts/{HOST}/assignment").text, "that one may report at any time"


def test_response_times_come_from_hosts_that_serve_the_application(api: Api) -> None:
    register(api)
    body, times = report(windows=[window(end=MOVED_S)]), {"times_ms": [1]}
    assert api.ok("POST", f"/hosts/{OTHER}/report", body, role="other host")["stored_windows"] == 0
    api.refused(403, "POST", "/applications/shop/samples", times, role="other host")
    assert claim(api, windows=[window(end=MOVED_S)])["stored_windows"] == 1
    api.ok("POST", "/applications/shop/samples", times, role="other host")
    claim(api, vms=[])
    api.clock.now_s += 600
    assert claim(api, vms=None, windows=[window(end=MOVED_S - 5)])["stored_windows"] == 1, "of when it was here"
    assert claim(api, vms=None, windows=[window(end=MOVED_S + 300)])["stored_windows"] == 0


def test_no_host_has_the_name_that_the_managers_own_events_have(sqlite_api: Api) -> None:
    api = sqlite_api
    any_host = join_token(api, "any")
    problems = [
        api.refused(422, "PUT", "/hosts/manager", {}),
        api.refused(422, "POST", "/tokens", {"name": "t", "role": "host", "host": "manager"}),
        api.refused(422, "POST", "/join-tokens", {"name": "j", "host": "manager"}),
        api.refused(422, "POST", "/hosts/manager/join", {"token": any_host}, role=""),
    ]
    for problem in problems:
        assert "'manager' is refused; it is reserved for events of the manager itself" in problem["detail"]
    with pytest.raises(SettingsError, match="'manager' stands for the manager"):
        load_settings(None, {}, {"host_name": "manager"})
