"""Signing in and out, roles, and what comes of wrong passwords."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.e2e.browser import Visits, sign_in
from tests.e2e.service import PASSWORD, USERS, Service

OF_OPERATORS = ("/registered", "/first")
OF_ADMINS = ("/people",)


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A manager that only people knock at: wrong passwords lock this machine's address out of it."""
    service = Service(tmp_path_factory.mktemp("door"))
    service.prepare()
    service.add_users()
    yield service
    service.close()


def test_the_page_that_was_asked_for_comes_after_signing_in(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, None)
    page.goto("/events?severity=warning")
    expect(page).to_have_url(re.compile("/sign-in"))
    sign_in(page, USERS["viewer"], PASSWORD)
    expect(page).to_have_url(f"{spike.url}/events?severity=warning")
    page.get_by_role("banner").get_by_text(USERS["viewer"], exact=True).click()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(re.compile("/sign-in"))
    page.goto("/hosts")
    expect(page).to_have_url(re.compile("/sign-in"))


def test_nobody_is_sent_to_another_site(visits: Visits, spike: Service) -> None:
    for target in ("https://example.org/", "/\\example.org"):
        page = visits.page(spike, None)
        page.goto("/sign-in")
        page.goto(f"/sign-in?next={target}")
        sign_in(page, USERS["viewer"], PASSWORD)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        assert page.url.startswith(f"{spike.url}/")


def test_the_admin_that_run_makes_can_sign_in(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, None)
    page.goto("/")
    password = (Path(spike.folder) / "state/admin-password").read_text().strip()
    sign_in(page, "admin", password)
    expect(page.get_by_role("link", name="People")).to_be_visible()


@pytest.mark.parametrize(
    ("role", "refused"), [("viewer", (*OF_OPERATORS, *OF_ADMINS)), ("operator", OF_ADMINS), ("admin", ())]
)
def test_a_page_is_for_its_roles(visits: Visits, spike: Service, role: str, refused: tuple[str, ...]) -> None:
    visits.tolerated.append("status of 403")
    page = visits.page(spike, role)
    for path in (*OF_OPERATORS, *OF_ADMINS):
        response = page.goto(path)
        assert response is not None
        assert response.status == (403 if path in refused else 200), path
        if path in refused:
            expect(page.get_by_role("main")).to_contain_text(re.compile("operator|admin"))


def test_wrong_passwords_are_told_and_then_refused_for_a_while(visits: Visits, door: Service) -> None:
    visits.tolerated += ["status of 401", "status of 403", "status of 422", "status of 429"]
    page = visits.page(door, None)
    page.goto("/sign-in")
    sign_in(page, "nobody", PASSWORD)
    told = page.get_by_role("alert")
    expect(told).to_be_visible()
    unknown = told.inner_text()
    sign_in(page, USERS["viewer"], "wrong wrong wrong")
    expect(told).to_have_text(unknown)  # it does not tell who exists
    for _ in range(4):
        sign_in(page, USERS["viewer"], "wrong wrong wrong")
        page.wait_for_load_state()
    sign_in(page, USERS["viewer"], PASSWORD)
    expect(told).to_contain_text(re.compile("too many", re.I))
    expect(told).to_contain_text(re.compile(r"\d\d:\d\d|\d+ (s|min)"))
    expect(page).to_have_url(re.compile("/sign-in"))
