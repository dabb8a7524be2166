"""How much is tried, and the manager with and without its dashboard as the tests of these have it."""

from __future__ import annotations

import secrets

import pytest

from manager.store.tokens import Role
from manager.store.users import create_user
from tests.api.conftest import START, api, get_api, report, shop, sqlite_api  # noqa: F401 - fixtures
from tests.web.conftest import desk, made_desk  # noqa: F401 - fixtures
from tests.web.desk import Desk

SHORT = 100_000


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of these tests."""
    parser.addoption("--inputs", type=int, default=SHORT, help="broken inputs for all parsers together")
    parser.addoption("--fuzz-seed", type=int, default=None, help="to find what was found again")
    parser.addoption("--examples", type=int, default=3, help="requests that Schemathesis makes up for a route and role")


@pytest.fixture(scope="session")
def seed(pytestconfig: pytest.Config) -> int:
    """Of this run."""
    given: int | None = pytestconfig.getoption("--fuzz-seed")
    return secrets.randbelow(2**32) if given is None else given


@pytest.fixture
def shop_desk(desk: Desk) -> Desk:  # noqa: F811 - the fixture
    """A dashboard with a VM, an application and a host, and a user."""
    desk.api.ok("PUT", "/vms/web-1", {"class": "critical"})
    desk.api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web-1"]}]})
    desk.api.ok("POST", "/hosts/kvm1/report", report(), role="host")
    with desk.database.registering() as session:
        create_user(session, "ada", Role.VIEWER, "", START)
    return desk
