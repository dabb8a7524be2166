"""A browser, services on simulated hosts, and a watch over everything that pages do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.e2e.browser import Visits, chromium
from tests.e2e.service import Service


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, metavar="FOLDER", help="keep the screenshots in this folder")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it is kept who is signed in."""
    return tmp_path_factory.mktemp("sessions")


@pytest.fixture
def visits(browser: Browser, sessions: Path) -> Iterator[Visits]:
    """Opens pages; fails the test when one of them complained, or asked anybody else than its own server."""
    made = Visits(browser, sessions)
    yield made
    assert made.close() == []


@pytest.fixture(scope="session")
def spike(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`equipoise run` on the scenario `spike`, sixty times as fast: a spike of 5 s each 20 s. Tests only read."""
    service = Service(tmp_path_factory.mktemp("spike"), "spike", speed=60)
    service.start("run")
    service.add_users()
    service.until(lambda client: client.items("/decisions") and client.get("/applications/spiking")["window"])
    yield service
    service.close()


@pytest.fixture(scope="session")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Manager and agent of the scenario `flapping`, which tests change, stop, and start again."""
    service = Service(tmp_path_factory.mktemp("own"), "flapping", speed=10, stale_s=5)
    service.prepare()
    service.add_users()
    service.start("agent")
    service.until(lambda client: client.items("/decisions"))
    yield service
    service.close()


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A manager with nothing registered and no agent."""
    service = Service(tmp_path_factory.mktemp("empty"))
    service.prepare()
    service.add_users()
    yield service
    service.close()
