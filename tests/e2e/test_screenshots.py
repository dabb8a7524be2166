"""The screenshots of README and docs, of an hour in which an SLA was violated; `deploy/screenshots` keeps them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import Scheme, Visits
from tests.e2e.past import live_through
from tests.e2e.service import Service

HOUR_S = 3600.0
BEGINNING_S = 270.0
"""Of the hour, in which the SLA is violated, too: enough where nobody keeps the pictures."""
SETTLED = 8  # ticks


@dataclass(frozen=True, slots=True)
class Shot:
    """A picture of a page; ``shows`` is text without which it is not worth taking."""

    name: str
    path: str
    shows: str
    charts: int = 0
    width: int = 1280
    height: int = 900
    scheme: Scheme = "light"


SHOTS = (
    Shot("fleet", "/", "violated", height=640),
    Shot("fleet-dark", "/", "violated", height=640, scheme="dark"),
    Shot("fleet-phone", "/", "shop", width=360, height=720),
    Shot("application", "/applications/shop", "80 ms", charts=4, height=1200),
    Shot("host", "/hosts/kvm7", "encode", charts=1, height=1200),
    Shot("decisions", "/decisions?application=shop", "shop"),
    Shot("what-if", "/what-if?host=kvm7&policy=priority&minutes=60", "estimated", height=1200),
    Shot("register", "/registered", "shop-web-1"),
    Shot("report", "/applications/shop/report", "since the first response time", height=1000),
)


@pytest.fixture(scope="module")
def shop(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A host with an hour behind it, or the beginning of one."""
    past_s = HOUR_S if pytestconfig.getoption("--screenshots") else BEGINNING_S
    scenario = Path(__file__).with_name("shop.toml")
    service = Service(tmp_path_factory.mktemp("shop"), str(scenario), host="kvm7", interval_s=5)
    service.prepare()
    service.add_users()
    live_through(service, time.time() - past_s, time.time())
    service.start("agent")
    # Until its weights, which a host that was started anew has not, are as they were.
    service.until(lambda client: (tick := client.get("/hosts/kvm7")["tick"]) and tick["number"] >= SETTLED)
    yield service
    service.close()


@pytest.fixture(scope="session")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pictures go."""
    wanted: Path = request.config.getoption("--screenshots") or tmp_path_factory.mktemp("screenshots")
    wanted.mkdir(parents=True, exist_ok=True)
    return wanted


@pytest.mark.parametrize("shot", SHOTS, ids=lambda shot: shot.name)
def test_screenshot(visits: Visits, shop: Service, folder: Path, shot: Shot) -> None:
    page = visits.page(shop, "operator", width=shot.width, height=shot.height, scheme=shot.scheme)
    page.goto(shot.path)
    expect(page.get_by_role("main")).to_contain_text(shot.shows, ignore_case=True)
    for number in range(shot.charts):
        expect(page.locator(".uplot canvas").nth(number)).to_be_visible()
    expect(page.locator("#connection[data-state=connecting]:not([hidden])")).to_have_count(0)
    file = folder / f"{shot.name}.png"
    page.screenshot(path=file, animations="disabled", caret="hide")
    assert file.stat().st_size > 10_000
