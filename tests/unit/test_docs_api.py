"""docs/reference/api.md has every route with who may use it, and no other; its examples name routes that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask

from manager.api.app import create_app
from manager.api.auth import ADMIN, Access
from manager.api.context import ManagerContext
from manager.api.endpoint import PREFIX
from manager.store.database import Database
from policies.installed import load_policies
from tests.api.conftest import HOST, Api, Clock, report

TOP = Path(__file__).parents[2]
PAGE = (TOP / "docs/reference/api.md").read_text()
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

Routes = dict[str, dict[str, str]]
"""Who may use a route, in words, by its path and method."""


def in_words(access: Access) -> str:
    """As the page says it: the least role, and who else."""
    others = {
        "host": access.own_host,
        "hosts": access.any_host,
        "source": access.own_application,
        "user": access.own_user,
    }
    return " + ".join([str(access.role or "all"), *(name for name, may in others.items() if may)])


@pytest.fixture(scope="module")
def app(migrated: Callable[[str], Database]) -> Flask:
    return create_app(ManagerContext(migrated("sqlite"), {}, 30.0, 20))


@pytest.fixture(scope="module")
def routes(app: Flask) -> Routes:
    found: Routes = {}
    for rule in app.url_map.iter_rules():
        access: Access = getattr(app.view_functions[rule.endpoint], "access", ADMIN)
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule)
        methods = found.setdefault(path, {})
        methods |= {method: in_words(access) for method in rule.methods or () if method in METHODS}
    return found


def test_every_route_and_role_is_told_and_no_other(routes: Routes) -> None:
    [body] = re.findall(r"^## Routes and roles\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in re.findall(r"^\|.*\|$", body, re.MULTILINE)]
    assert rows[0] == ["path", *METHODS]
    told = {
        path.strip("`"): {method: who for method, who in zip(METHODS, cells, strict=True) if who}
        for path, *cells in rows[2:]
    }
    assert told == routes


def test_requests_that_the_documentation_shows_have_a_route(app: Flask) -> None:
    """`METHOD PATH`, with or without the prefix."""
    shown: set[tuple[str, str]] = set()
    for page in (TOP / "README.md", *(TOP / "docs").rglob("*.md")):
        shown |= set(re.findall(rf"\b({'|'.join(METHODS)})\s+(/[\w/{{}}=&.:-]+)", page.read_text()))
    assert len(shown) > 30
    at = app.url_map.bind("manager")
    for method, path in shown - {("GET", "/live")}:  # of the dashboard
        assert at.test(path, method) or at.test(PREFIX + path, method), f"{method} {path}"


@pytest.mark.parametrize("name", ["README.md", "docs/get-started/guide.md"])
def test_requests_that_are_shown_succeed_one_after_the_other(name: str, migrated: Callable[[str], Database]) -> None:
    """Those by curl with a body, as somebody who types them has them answered; the agent has reported before."""
    database = migrated("sqlite")
    context = ManagerContext(database, load_policies(on_error=pytest.fail), 30.0, 20, clock=Clock())
    api = Api(create_app(context), database, Clock())
    api.make_tokens()
    api.ok("POST", f"/hosts/{HOST}/report", report(), role="host")
    text = (TOP / name).read_text().replace("$(hostname)", HOST)
    shown = re.findall(r"curl -X ([A-Z]+) [^\n]*? \$api(/\S+) -d\s+'(.*?)'", text, re.DOTALL)
    assert len(shown) >= 5
    for method, path, body in shown:
        api.ok(method, path, json.loads(body), role="operator")


def test_a_role_is_told_in_words() -> None:
    assert in_words(Access(None)) == "all"
    assert in_words(Access(ADMIN.role, own_host=True, own_user=True)) == "admin + host + user"
