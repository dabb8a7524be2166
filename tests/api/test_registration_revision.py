"""What makes all managers and hosts read registrations again: what is assigned, and neither people nor tokens."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from manager.errors import SignInRefused
from manager.store.revisions import registration_revision
from manager.store.sessions import DEFAULT_LIMITS, sign_in
from tests.api.conftest import HOST, Api, report

PASSWORD = "correct horse battery"


def revision(api: Api) -> int:
    with api.database.reading() as session:
        return registration_revision(session)


def try_in_vain(api: Api) -> None:
    with pytest.raises(SignInRefused):
        enter(api, "wrong")


def enter(api: Api, password: str = PASSWORD) -> None:
    sign_in(api.database, "vera", password, "192.0.2.7", datetime.fromtimestamp(api.clock.now_s, UTC), DEFAULT_LIMITS)


def join(api: Api) -> None:
    made = api.ok("POST", "/join-tokens", {"name": "spare", "host": "kvm9"})
    api.ok("POST", "/hosts/kvm9/join", {"token": made["token"]}, role="")
    api.ok("DELETE", "/join-tokens/spare")


OF_PEOPLE = {
    "a user": lambda api: api.ok("POST", "/users", {"name": "olga", "role": "operator", "password": PASSWORD}),
    "a role": lambda api: api.ok("PUT", "/users/vera", {"role": "operator"}),
    "a user that goes": lambda api: api.ok("DELETE", "/users/vera"),
    "a sign-in": enter,
    "a wrong password": try_in_vain,
    "a token": lambda api: api.ok("POST", "/tokens", {"name": "ci", "role": "viewer"}),
    "a host that joins": join,
    "a VM as it was": lambda api: api.ok("PUT", "/vms/web", {"class": "critical", "host": HOST}),
    "a report": lambda api: api.ok("POST", f"/hosts/{HOST}/report", report(), role="host"),
}
OF_HOSTS = {
    "a VM": lambda api: api.ok("PUT", "/vms/web", {"class": "batch", "host": HOST}),
    "an adopted VM": lambda api: api.ok("POST", "/vms/web/adopt"),
    "a VM that goes": lambda api: api.ok("DELETE", "/vms/web"),
    "an application": lambda api: api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web"]}]}),
    "a host": lambda api: api.ok("PATCH", f"/hosts/{HOST}", {"mode": "enforce"}),
    "a host that is new": lambda api: api.ok("POST", "/hosts/kvm2/report", report(), role="other host"),
}


@pytest.fixture
def site(api: Api) -> Api:
    api.ok("PUT", f"/hosts/{HOST}", {"mode": "observe"})
    api.ok("PUT", "/vms/web", {"class": "critical", "host": HOST})
    api.ok("POST", "/users", {"name": "vera", "role": "viewer", "password": PASSWORD})
    return api


@pytest.mark.parametrize("change", OF_PEOPLE.values(), ids=OF_PEOPLE)
def test_nothing_is_read_again(site: Api, change: Callable[[Api], object]) -> None:
    before = revision(site)
    change(site)
    assert revision(site) == before


@pytest.mark.parametrize("change", OF_HOSTS.values(), ids=OF_HOSTS)
def test_all_is_read_again(site: Api, change: Callable[[Api], object]) -> None:
    before = revision(site)
    change(site)
    assert revision(site) > before
