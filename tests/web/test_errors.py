"""Errors: a page for a person, JSON from the interface, and never how the program came to it."""

from __future__ import annotations

from urllib.parse import unquote

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


@pytest.mark.parametrize("path", ["/?sort=name", "/"])
@pytest.mark.parametrize(
    ("error", "status", "title", "told"),
    [
        (RuntimeError("secret inside"), 500, "Internal Server Error", "described in the manager's log"),
        (DatabaseUnavailable("secret inside"), 503, "Service Unavailable", "try again"),
    ],
)
def test_what_was_not_expected_is_a_page_without_its_inside(
    shop: Desk, monkeypatch: pytest.MonkeyPatch, path: str, error: Exception, status: int, title: str, told: str
) -> None:
    def fail(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(fleet_pages, "host_health", fail)
    page = shop.browser(Role.VIEWER).get(path)
    is_page(page, 200 if path == "/" else status, title)  # where the page had begun, 200 was sent
    assert told in page.text
    assert "Traceback" not in page.source
    assert "secret inside" not in page.source


@pytest.mark.parametrize(
    ("path", "status"), [("/api/v1/nowhere", 404), ("/api/v1/people", 404), ("/api/v1/hosts", 401)]
)
def test_the_interface_answers_problems(desk: Desk, path: str, status: int) -> None:
    response = desk.browser(None).client.get(path, headers={"Accept": "text/html"})
    assert (response.status_code, response.mimetype) == (status, "application/problem+json")


@pytest.mark.parametrize("path", ["/hosts/.", "/applications/.", "/registered/vms/.", "/people/users/."])
def test_a_name_that_is_a_step_in_a_path_is_refused(desk: Desk, path: str) -> None:
    page = desk.browser().get(path)
    assert page.status in {404, 422}
    assert "." in page.text


@pytest.mark.parametrize("name", ["%E2%82%AC", "%C3%BC", "%F0%9F%98%80"])
def test_a_name_in_another_script_is_refused(desk: Desk, name: str) -> None:
    browser = desk.browser()
    for path in (f"/hosts/{name}", f"/applications/{name}", f"/registered/vms/{name}"):
        page = browser.get(path)
        assert page.status == 422
        assert unquote(name) in page.text
    page = browser.get(f"/what-if?host={name}&policy=equal")
    assert page.status == 200
    assert page.by_id("host")["value"] == unquote(name)


def test_a_name_leads_to_no_other_path(shop: Desk) -> None:
    browser = shop.browser()
    assert "is saved" not in browser.get("/registered?saved=applications&name=shop/budget").text
    assert browser.get("/first?application=shop/budget").status == 200


def test_a_cause_without_an_application_is_not_found(desk: Desk) -> None:
    is_page(desk.browser().get("/decisions/cause"), 404, "Not Found")
