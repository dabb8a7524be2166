"""Every field that the token of a host can write, tried on another host's things: nothing of those changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manager.model.fields import adapter_of, timestamp
from manager.model.packed_ticks import packs_of
from manager.model.records import TickRecord
from manager.protocol.report import ReportIn
from manager.store.proposals import Proposal, propose
from tests.api.conftest import (
    CAPABILITIES,
    HOST,
    Api,
    event,
    moment,
    record,
    report,
    source_status,
    status,
    tick,
    tick_of,
    window,
)

OTHER = "kvm2"
UUID = "6f1f5b0e-6f0e-4b62-9d2b-0d3f6f0f8a10"
FINDING = {"id": "x", "area": "a", "title": "t", "status": "works", "essential": True, "detail": "forged"}
SHARES = {"vm": "web", "cpu_share": 1.0, "run_delay_share": 9.0, "weight": 1, "mode": "released"}
TICK = tick_of(2, vms=[{**SHARES, "mode": "observe"}], policy="forged", power_watts=9900.0)
FORGED: dict[str, Any] = {
    "agent_version": "forged",
    "capabilities": {**CAPABILITIES, "kernel": "forged"},
    "tick": tick(policy="forged", power={"package_watts": 9000.0, "dram_watts": 900.0}),
    "vms": [status("web", pid=666)],
    "vms_changed_only": True,
    "sources": [source_status("probe", detail="forged")],
    "domains": [{"libvirt_name": "forged", "libvirt_uuid": UUID}],
    "findings": {"at": moment(0), "findings": [FINDING]},
    "services": {"services": [], "problem": "forged"},
    "windows": [window(count=99)],
    "ticks": [tick_of(1, vms=[SHARES], policy="forged", power_watts=9900.0)],
    "packed_ticks": [*packs_of([adapter_of(TickRecord).validate_python(TICK)])],
    "decisions": [record(1), record(2, vm="web", host=HOST)],
    "events": [event(1, severity="error", message="forged")],
    "migrations": [{"number": 1, "state": "done"}],
    "live": True,
    "wants_slots": True,
}
"""Of each field what would harm the host ``kvm1``, if it were believed."""

READ = (
    "/hosts/kvm1",
    "/hosts/kvm1/capabilities",
    "/hosts/kvm1/domains",
    "/hosts/kvm1/findings",
    "/hosts/kvm1/services",
    "/hosts/kvm1/ticks",
    "/hosts/kvm1/assignment",
    "/vms/web",
    "/applications/shop",
    "/applications/shop/windows",
    "/applications/shop/sources",
    "/proposals",
    "/decisions?host=kvm1",
    "/events?host=kvm1",
)


@pytest.fixture
def site(api: Api) -> Api:
    """A host with a VM that serves an application, all of which it reported, and that is to migrate to the other."""
    api.ok("PUT", "/vms/web", {"class": "critical", "host": HOST})
    probe = {"type": "http_probe", "name": "probe", "url": "http://10.0.0.1/secret"}
    api.ok("PUT", "/applications/shop", {"tiers": [{"name": "web", "vms": ["web"]}], "sources": [probe]})
    own = {"vms": [status("web")], "sources": [source_status("probe")], "windows": [window(count=3)], "tick": tick()}
    own["domains"] = [{"libvirt_name": "web", "libvirt_uuid": UUID}]
    own["findings"] = {"at": moment(0), "findings": [{**FINDING, "detail": "true"}]}
    own["services"] = {"services": [], "problem": "true"}
    api.ok("POST", f"/hosts/{HOST}/report", report(**own), role="host")
    api.ok("POST", f"/hosts/{OTHER}/report", report(), role="other host")
    proposal = Proposal("web", HOST, OTHER, "shop", "its host is full", ())
    with api.database.registering() as session:
        assert propose(session, proposal, timestamp(api.clock.now_s), approved=True).id == 1
    api.clock.now_s += 1
    return api


def state(api: Api) -> dict[str, Any]:
    return {path: api.ok("GET", path) for path in READ}


@pytest.mark.parametrize("field", [*FORGED, "all at once"])
def test_a_host_changes_nothing_of_another_one(site: Api, field: str) -> None:
    before = state(site)
    body = FORGED if field == "all at once" else {field: FORGED[field]}
    answer = site.call("POST", f"/hosts/{OTHER}/report", report(**body), "other host")
    assert answer.status_code == 200, answer.text
    after = state(site)
    for path in READ:
        assert after[path] == before[path], path
    assert "secret" not in site.call("GET", f"/hosts/{OTHER}/assignment").text
    assert "secret" not in answer.text


def test_every_field_of_a_report_is_tried_and_told() -> None:
    assert set(FORGED) == set(ReportIn.model_fields)
    page = (Path(__file__).parents[2] / "docs/concepts/identity.md").read_text()
    table = page.partition("## What a host's token can change")[2].partition("\n## ")[0]
    missing = {name for name in ReportIn.model_fields if f"`{name}`" not in table}
    assert missing <= {"wants_slots", "vms_changed_only", "live"}, "these say how the others are meant"


def test_a_host_reads_and_writes_its_own_routes_alone(site: Api) -> None:
    for what in ("assignment", "slots", "capabilities", "domains", "findings", "services"):
        site.refused(403, "GET", f"/hosts/{HOST}/{what}", role="other host")
    site.refused(403, "POST", f"/hosts/{HOST}/report", report(), role="other host")
    site.refused(403, "POST", "/applications/shop/samples", {"times_ms": [1]}, role="other host")
    for path in ("/vms/web", f"/hosts/{OTHER}", "/applications/shop"):
        site.refused(403, "PUT", path, {}, role="other host")
