"""The page of migrations: what is proposed and predicted, the buttons, and what came of earlier ones."""

from __future__ import annotations

import json

import pytest

from manager.model.migration import MigrationReport, MigrationState, MovePrediction, MoveSpan
from manager.store.hosts import put_statuses
from manager.store.models import HostRow
from manager.store.proposals import Proposal, propose, take_reports
from manager.store.registrations import get
from manager.store.tokens import Role
from tests.api.conftest import START
from tests.web.desk import Desk
from webui import proposal_pages

PREDICTION = MovePrediction("shop", "kvm1", 95.0, 80.0, MoveSpan(120, 110, 130), MoveSpan(60, 55, 65))


def proposed(desk: Desk, reason: str = "its host is full", unpredicted: str = "") -> int:
    predictions = () if unpredicted else (PREDICTION,)
    with desk.api.database.registering() as session:
        proposal = Proposal("hog", "kvm1", "kvm2", "shop", reason, predictions, unpredicted)
        return propose(session, proposal, START).id


@pytest.fixture
def fleet(shop: Desk) -> Desk:
    for name in ("kvm1", "kvm2"):
        shop.api.ok("PUT", f"/hosts/{name}", {})
    shop.api.ok("PUT", "/vms/hog", {"class": "batch"})
    body = json.dumps({"libvirt_name": "hog", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"})
    status = {"vm": "hog", "cpu_share": 0.5, "run_delay_share": 0.0, "body": body}
    with shop.api.database.writing() as session:
        put_statuses(session, get(session, HostRow, "kvm1"), [status], START)
    return shop


def test_nothing_is_proposed(fleet: Desk) -> None:
    page = fleet.browser(Role.VIEWER).get("/proposals")
    assert page.status == 200
    assert "No migration is proposed or under way." in page.source


def test_what_is_predicted_is_shown_and_viewers_have_no_buttons(fleet: Desk) -> None:
    proposed(fleet)
    card = fleet.browser(Role.VIEWER).get("/proposals").by_id("proposal-1").text
    for text in ("hog: kvm1 → kvm2", "Its host is full", "p95 ≤ 80 ms", "120 ms", "110 ms to 130 ms", "60 ms"):
        assert text in card
    assert "Dismiss" not in card
    assert "Dismiss" in fleet.browser(Role.OPERATOR).get("/proposals").by_id("proposal-1").text


def test_all_that_is_open_is_shown_however_many_are_newer(fleet: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_pages, "_SHOWN", 2)
    numbers = [proposed(fleet) for _ in range(4)]
    for number in numbers[2:]:
        fleet.api.ok("POST", f"/proposals/{number}/dismiss")
    fleet.api.ok("POST", f"/proposals/{numbers[0]}/approve")
    page = fleet.browser(Role.VIEWER).get("/proposals")
    assert [number for number in numbers if f'id="proposal-{number}"' in page.source] == numbers[:2]


def test_texts_of_others_are_no_markup(fleet: Desk) -> None:
    proposed(fleet, unpredicted="<b>kvm1</b>: no ticks")
    page = fleet.browser(Role.VIEWER).get("/proposals")
    assert "Not predicted: <b>kvm1</b>: no ticks" in page.by_id("proposal-1").text
    assert "<b>kvm1</b>" not in page.source


@pytest.mark.parametrize(("decision", "state"), [("approve", "approved"), ("dismiss", "dismissed")])
def test_the_buttons_decide(fleet: Desk, decision: str, state: str) -> None:
    number, browser = proposed(fleet), fleet.browser(Role.OPERATOR)
    sent = browser.client.post(f"/proposals/{number}/{decision}", data={"csrf_token": browser.csrf_token})
    assert (sent.status_code, sent.headers["Location"]) == (303, "/proposals")
    assert fleet.api.ok("GET", f"/proposals/{number}")["state"] == state
    assert fleet.api.ok("GET", f"/proposals/{number}")["decided_by"]


def test_what_is_refused_is_said_on_the_page(fleet: Desk) -> None:
    number, browser = proposed(fleet), fleet.browser(Role.OPERATOR)
    fleet.api.ok("PATCH", "/hosts/kvm1", {"mode": "observe"})
    sent = browser.client.post(f"/proposals/{number}/approve", data={"csrf_token": browser.csrf_token})
    assert sent.status_code == 409
    assert "host kvm1 is in mode observe: nothing is migrated" in sent.get_data(as_text=True)


def test_progress_and_results_are_shown(fleet: Desk) -> None:
    number, browser = proposed(fleet), fleet.browser(Role.OPERATOR)
    fleet.api.ok("POST", f"/proposals/{number}/approve")
    with fleet.api.database.writing() as session:
        take_reports(session, "kvm1", [MigrationReport(number, MigrationState.RUNNING, 0.25)], START)
    card = browser.get("/proposals").by_id(f"proposal-{number}").text
    assert "under way" in card
    assert "25 %" in card
    with fleet.api.database.writing() as session:
        take_reports(session, "kvm1", [MigrationReport(number, MigrationState.FAILED, None, "no disk there")], START)
    assert "failed no disk there" in " ".join(browser.get("/proposals").by_id("earlier").text.split())


def test_what_was_refused_stays_on_the_page(fleet: Desk) -> None:
    proposed(fleet)
    operator = fleet.browser(Role.OPERATOR)
    fleet.api.ok("POST", "/proposals/1/dismiss")
    page = operator.post("/proposals/1/approve")
    assert page.status == 409
    assert page.by_id("refused")
    [body] = page.all("body")
    assert "data-live" not in body.attributes, "its address is a button's: there is nothing to fetch"
    assert operator.get("/proposals").all("body", data_live="fleet")
