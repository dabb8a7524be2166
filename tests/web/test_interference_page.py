"""Interference tables on the pages: of an application, and of a VM that may come to a host."""

from __future__ import annotations

import pytest

from manager.api import admission_routes
from manager.errors import TwinRefused
from manager.sim.twin import Twin
from manager.store.tokens import Role
from tests.api.conftest import HOST
from tests.api.test_interference import TYPE, look, register, tell
from tests.web.desk import Desk


def test_the_page_of_an_application_shows_its_tables(desk: Desk) -> None:
    register(desk.api)
    browser = desk.browser(Role.VIEWER)
    empty = browser.get("/applications/shop")
    assert empty.by_id("no-interference").text.startswith("No table yet: its history has not been looked at yet")
    tell(desk.api)
    look(desk.api)
    page = browser.get("/applications/shop")
    assert TYPE in [title.text for title in page.all("h3")]
    assert "Any loss" in page.text
    assert "Loss ≤ 10 %" in page.text
    assert "60 req/s 60 %" in page.text
    assert "70 req/s" in page.text
    assert f"it runs on {HOST}." in page.text
    assert "For vCPUs by tier: web 1." in page.text


def test_the_answer_of_admission_shows_them(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> Twin:
        raise TwinRefused("it takes too long")

    monkeypatch.setattr(admission_routes, "calibrate", refuse)
    register(desk.api)
    tell(desk.api)
    look(desk.api)
    desk.api.clock.now_s += 600
    tell(desk.api, 10, only_rps=30.0)
    query = "class=batch&vcpus=1&demand_pcpus=0.1&minutes=60"
    page = desk.browser(Role.VIEWER).get(f"/hosts/{HOST}/admission?{query}")
    assert page.by_id("measured").text == "Interference tables, measured"
    assert "with heavy batch load" in page.text
    assert "By interference tables and arithmetic: no response times are predicted." in page.text
    assert "the SLA, met at" in page.by_id("tables").text
