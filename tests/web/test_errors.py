"""Errors: a page for a person, JSON from the interface, and never how the program came to it."""

from __future__ import annotations

import pytest

from manager.errors import DatabaseUnavailable
from manager.serving.exchange import MAX_BODY_BYTES
from manager.store.tokens import Role
from tests.web.desk import Desk, Page
from webui import fleet_pages


def is_page(page: Page, status: int, title: str) -> None:
    assert (page.status, page.response.mimetype) == (status, "text/html")
    assert [one.text for one in page.all("h1")] == [title]
    assert page.response.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self' 'sha256-")
    assert page.response.headers["Cache-Control"] == "no-store"


def test_an_address_that_there_is_not_is_a_page(desk: Desk) -> None:
    for role in (Role.VIEWER, None):
        page = desk.browser(role).get("/nowhere")
        is_page(page, 404, "Not Found")
        assert page.all("a", href="/")


def test_a_method_that_an_address_has_not_is_a_page(desk: Desk) -> None:
    page = Page(desk.browser().client.put("/"))
    is_page(page, 405, "Method Not Allowed")
    assert "GET" in page.response.headers["Allow"]


def test_what_a_role_may_not_is_a_page(desk: Desk) -> None:
    page = desk.browser(Role.VIEWER).get("/people")
    is_page(page, 403, "Forbidden")
    assert "this needs role admin" in page.text


def test_a_form_of_another_site_is_a_page(desk: Desk) -> None:
    is_page(desk.browser(None).post("/sign-in", {"name": "a"}, Origin="https://evil.example"), 403, "Forbidden")


def test_a_form_that_is_too_large_is_a_page(desk: Desk) -> None:
    page = Page(desk.browser(None).client.post("/sign-in", data={"name": "x" * (MAX_BODY_BYTES + 1)}))
    is_page(page, 413, "Request Entity Too Large")


@pytest.mark.parametrize(
    ("error", "status", "title", "told"),
    [
        (RuntimeError("secret inside"), 500, "Internal Server Error", "described in the manager's log"),
        (DatabaseUnavailable("secret inside"), 503, "Service Unavailable", "try again"),
    ],
)
def test_what_was_not_expected_is_a_page_without_its_inside(
    shop: Desk, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int, title: str, told: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(fleet_pages, "host_health", fail)
    page = shop.browser(Role.VIEWER).get("/")
    is_page(page, status, title)
    assert told in page.text
    assert "Traceback" not in page.source
    assert "secret inside" not in page.source


@pytest.mark.parametrize(
    ("path", "status"), [("/api/v1/nowhere", 404), ("/api/v1/people", 404), ("/api/v1/hosts", 401)]
)
def test_the_interface_answers_problems(desk: Desk, path: str, status: int) -> None:
    response = desk.browser(None).client.get(path, headers={"Accept": "text/html"})
    assert (response.status_code, response.mimetype) == (status, "application/problem+json")
