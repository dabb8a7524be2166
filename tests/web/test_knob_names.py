"""Pages call a setting by its one name: those of different vCPUs look different."""

from __future__ import annotations

from typing import Any

import pytest

from manager.model.knob_text import knob_name
from manager.model.knobs import Knob
from manager.store.tokens import Role
from tests.api.conftest import HOST, record, report, status, tick
from tests.web.desk import Browser, Desk, Page

OF_A_VM = [knob for knob in Knob if knob.spec.scope.numbered and knob is not Knob.IRQ_AFFINITY]


def heads(page: Page) -> list[str]:
    """Heads of rows, and cells: in one of them stands the setting."""
    return [" ".join(one.text.split()) for tag in ("th", "td") for one in page.all(tag)]


@pytest.fixture
def operator(shop: Desk) -> Browser:
    return shop.browser(Role.OPERATOR)


def tell(desk: Desk, **changes: Any) -> None:
    desk.api.ok("POST", f"/hosts/{HOST}/report", report(tick=tick(), **changes), role="host")


@pytest.mark.parametrize("knob", OF_A_VM)
def test_every_page_has_the_number(shop: Desk, operator: Browser, knob: Knob) -> None:
    held = {"knob": knob, "value": "1", "original": "0"}
    foreign = [{**held, "index": index, "owned": False, "external": True} for index in (0, 1)]
    owned = [{**held, "index": index, "owned": True, "external": False} for index in (2, 3)]
    tell(
        shop,
        vms=[status("web-1", knobs=[*foreign, *owned])],
        decisions=[record(index + 1, at=record(1)["at"], knob=knob, index=index) for index in (0, 1)],
    )
    names = [knob_name(knob, index) for index in range(4)]
    shop.api.clock.now_s += 60
    assert set(names[:2]) <= set(heads(operator.get("/decisions")))
    released = heads(operator.get("/control/vms/web-1?mode=released"))
    assert set(names) <= set(released), "those to be put back, and those that somebody else changed"
    assert ", ".join(names[:2]) in operator.get(f"/hosts/{HOST}").text
