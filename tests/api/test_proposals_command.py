"""`equipoise proposals` over the interface."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from manager.cli import main, proposals_command
from manager.model.migration import MigrationReport, MigrationState, MovePrediction, MoveSpan
from manager.protocol.client import ManagerClient
from manager.store.hosts import put_statuses
from manager.store.models import HostRow
from manager.store.proposals import Proposal, propose, take_reports
from manager.store.registrations import get
from tests.api.conftest import START, Api
from tests.api.sweeping import InProcess

PREDICTIONS = (
    MovePrediction("shop", "kvm1", 95.0, 80.0, MoveSpan(120, 110, 130), MoveSpan(60, 55, 65)),
    MovePrediction("blog", "kvm2", 99.0, 50.0, None, None),
)
Call = Callable[..., Result]


@pytest.fixture
def api(sqlite_api: Api) -> Api:
    for name in ("kvm1", "kvm2"):
        sqlite_api.ok("PUT", f"/hosts/{name}", {})
    body = json.dumps({"libvirt_name": "hog", "libvirt_uuid": "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"})
    with sqlite_api.database.registering() as session:
        status = {"vm": "hog", "cpu_share": 0.5, "run_delay_share": 0.0, "body": body}
        put_statuses(session, get(session, HostRow, "kvm1"), [status], START)
        propose(session, Proposal("hog", "kvm1", "kvm2", "shop", "its host is full", PREDICTIONS), START)
        unpredicted = Proposal("render", "kvm3", "kvm4", "blog", "its host is full", (), "kvm3 has no history")
        propose(session, unpredicted, START)
    return sqlite_api


@pytest.fixture
def call(api: Api, monkeypatch: pytest.MonkeyPatch) -> Call:
    client = ManagerClient("http://manager", api.secrets["operator"], InProcess(api))
    monkeypatch.setattr(proposals_command, "connect", lambda _settings: client)
    return lambda *arguments: CliRunner().invoke(main, ["proposals", *arguments])


def test_what_is_proposed_and_predicted(call: Call) -> None:
    text = call().output
    assert "its host is full" in text
    assert "p95 of shop on kvm1 (simulated): 120 ms (110 ms to 130 ms) before, 60 ms (55 ms to 65 ms) after" in text
    assert "p99 of blog on kvm2 (simulated): not known before, not known after; target 50 ms" in text
    assert "not predicted: kvm3 has no history" in text


def test_a_host_and_json(call: Call) -> None:
    [proposal] = json.loads(call("--host", "kvm4", "--json").output)
    assert (proposal["vm"], proposal["state"]) == ("render", "proposed")


def test_decisions_progress_and_results(call: Call, api: Api) -> None:
    assert call("dismiss", "2").output == "Proposal 2, render from kvm3 to kvm4: dismissed.\n"
    assert json.loads(call("approve", "1", "--json").output)["state"] == "approved"
    with api.database.writing() as session:
        take_reports(session, "kvm1", [MigrationReport(1, MigrationState.RUNNING, 0.25)], START)
    assert "25 % copied" in call().output
    assert "render" not in call().output
    with api.database.writing() as session:
        take_reports(session, "kvm1", [MigrationReport(1, MigrationState.FAILED, None, "no disk there")], START)
    assert call().output == "No migration is proposed or under way.\n"
    assert "failed: no disk there" in call("--all").output
    assert call("--all", "--host", "nowhere").output == "No migration is proposed.\n"


def test_what_is_refused(call: Call) -> None:
    for arguments, status, says in (
        (("approve", "7"), 1, "there is no proposal 7"),
        (("approve", "2"), 1, "host kvm3 does not report"),
        (("approve", "0"), 1, "number"),
        (("dismiss", "twelve"), 2, "NUMBER 'twelve' is refused: use the number of a proposal, such as 12"),
    ):
        result = call(*arguments)
        assert (result.exit_code, says in result.output + str(result.exception)) == (status, True), result.output
