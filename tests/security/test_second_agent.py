"""Two agents under one host name: the first serves the host, the second is refused, and everybody hears of it."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.tenure_rules import ReportOrigin, Tenure, Who, judge
from manager.errors import ManagerRefused
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.link import ManagerLink, Report
from manager.loop.lock import instance_id
from manager.loop.outbox import ItemKind, Outbox
from manager.loop.outgoing import Outgoing
from manager.model.records import Severity
from manager.protocol.client import ManagerClient
from tests.api.conftest import HOST, Api, notice_silence, report, status
from tests.fakes.manager import Wire

FIRST, SECOND = "11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"


def said(api: Api) -> list[str]:
    kinds = {"second-agent", "agent-cloned", "agent-replaced"}
    return [one["kind"] for one in reversed(api.ok("GET", "/events")["items"]) if one["kind"] in kinds]


def tell(api: Api, instance: str = FIRST, boot: str = "boot-1", code: int = 200, vm: str = "web") -> str:
    """A report of an agent; the detail of a refusal."""
    headers = {"Equipoise_Instance": instance, "Equipoise_Boot": boot}
    body = report(vms=[status(vm)])
    answer = api.call("POST", f"/hosts/{HOST}/report", body, "host", **headers)
    assert answer.status_code == code, answer.text
    asked = api.call("GET", f"/hosts/{HOST}/assignment", None, "host", **headers)
    assert asked.status_code == code, "and it is told nothing of what there is to do"
    return "" if code == 200 else str(answer.get_json()["detail"])


def vms(api: Api) -> list[str]:
    return [one["name"] for one in api.ok("GET", f"/vms?host={HOST}")["items"] if one["status"]]


def test_the_second_is_refused_while_the_first_reports_and_takes_over_when_it_is_silent(api: Api) -> None:
    for name in ("web", "other"):
        api.ok("PUT", f"/vms/{name}", {"class": "batch", "host": HOST})
    tell(api)
    for _ in range(20):
        api.clock.now_s += 1
        why = tell(api, SECOND, "boot-9", 409, "other")
        tell(api)
    assert why.startswith(
        f"host kvm1 is served by agent {FIRST} (boot boot-1), which reported 1 s ago, so agent {SECOND}"
    )
    assert "equipoise host replace kvm1" in why
    assert (vms(api), said(api)) == (["web"], ["second-agent"])
    assert "equipoise_second_agent_reports_total 20.0" in api.call("GET", "//metrics", role="").text
    shown = api.ok("GET", f"/hosts/{HOST}")
    assert (shown["agent_instance"], shown["rival_instance"]) == (FIRST, SECOND)
    for passed_s, rival in ((600, SECOND), (61, None)):  # the second has gone: it is shown for a while
        for _ in range(passed_s // 30 + 1):
            api.clock.now_s += passed_s / (passed_s // 30 + 1)
            tell(api)
        assert api.ok("GET", f"/hosts/{HOST}")["rival_instance"] == rival
    api.clock.now_s += 31
    tell(api, SECOND, "boot-9", 409, "other")  # it may be the managers that were away
    notice_silence(api)
    tell(api, SECOND, "boot-9", vm="other")
    assert (vms(api), said(api)) == (["other"], ["second-agent", "second-agent", "agent-replaced"])
    tell(api, code=409)


def test_the_same_agent_goes_on_at_once_after_a_restart_and_a_boot(api: Api) -> None:
    for boot in ("boot-1", "boot-1", "boot-2", "boot-3"):
        tell(api, boot=boot)
    assert said(api) == []


def test_copies_of_one_disk_are_noticed_and_the_earlier_goes_on(api: Api) -> None:
    tell(api, boot="boot-1")
    tell(api, boot="boot-2")  # may be a boot
    tell(api, boot="boot-1")  # but this one is over
    for _ in range(3):
        api.clock.now_s += 1
        tell(api, boot="boot-2", code=409)
        tell(api, boot="boot-1")
    assert said(api)[0] == "agent-cloned"
    assert len(said(api)) <= 2, "once, and not at each turn"


def test_an_operator_may_choose_the_other(api: Api) -> None:
    api.refused(404, "POST", f"/hosts/{HOST}/replace-agent")
    tell(api)
    assert "no other agent" in api.refused(409, "POST", f"/hosts/{HOST}/replace-agent")["detail"]
    tell(api, SECOND, code=409)
    api.refused(403, "POST", f"/hosts/{HOST}/replace-agent", role="host")
    assert api.ok("POST", f"/hosts/{HOST}/replace-agent", role="operator")["agent_instance"] == SECOND
    tell(api, SECOND)
    tell(api, code=409)
    assert api.ok("GET", "/audit")["items"][0]["action"] == "host.replace"


def test_who_joined_again_serves_at_once(api: Api) -> None:
    tell(api)
    secret = api.ok("POST", "/join-tokens", {"name": "again", "host": HOST, "replace": True})["token"]
    api.secrets["host"] = api.ok("POST", f"/hosts/{HOST}/join", {"token": secret}, role="")["token"]
    tell(api, SECOND)


def test_a_clock_of_the_managers_that_is_set_lets_nobody_in_for_good(api: Api) -> None:
    tell(api)
    api.clock.now_s -= 7200
    tell(api)
    tell(api, SECOND, code=409)
    api.clock.now_s += 2 * 365 * 86_400
    tell(api)
    tell(api, SECOND, code=409)


def test_agents_of_earlier_versions_are_taken_as_before(api: Api) -> None:
    tell(api)
    api.ok("POST", f"/hosts/{HOST}/report", report(), role="host")
    api.ok("POST", f"/hosts/{HOST}/report", report(), role="host", Equipoise_Instance="no id!", Equipoise_Boot="x")
    tell(api)


def test_the_id_of_an_agent_lasts(tmp_path: Path) -> None:
    made = instance_id(tmp_path)
    assert instance_id(tmp_path) == made
    (tmp_path / "instance").write_text("garbage")
    assert instance_id(tmp_path) != made
    assert (tmp_path / "instance").stat().st_mode & 0o077 == 0


def test_the_refused_agent_says_so_and_goes_on(sqlite_api: Api, tmp_path: Path) -> None:
    tell(sqlite_api)

    def handle(request: httpx.Request) -> httpx.Response:
        path, headers = str(request.url.raw_path, "ascii"), dict(request.headers)
        options = {"method": request.method, "data": request.content, "headers": headers, "buffered": True}
        answer = sqlite_api.app.test_client().open(path, **options)
        return httpx.Response(answer.status_code, headers=dict(answer.headers), content=answer.data)

    outbox = Outbox(tmp_path / "outbox.db", 100)
    client = ManagerClient("http://m", sqlite_api.secrets["host"], Wire(handle))
    link = ManagerLink(client, HOST, "1", tmp_path / "assignment.json", outbox, Who(SECOND, "boot-9"))
    metrics = AgentMetrics()
    outgoing = Outgoing(HOST, outbox, metrics)
    for _ in range(3):
        with pytest.raises(ManagerRefused, match=f"409 host kvm1 is served by agent {FIRST}") as refused:
            link.send(Report(None, None, None))
        outgoing.unanswered(refused.value)
    events = outbox.peek(9, 10**6).fields[ItemKind.EVENT]
    assert [(one["severity"], one["kind"]) for one in events] == [(Severity.ERROR, "second-agent")], "once"
    assert metrics.registry.get_sample_value("equipoise_agent_second") == 1
    outgoing.answered()
    assert metrics.registry.get_sample_value("equipoise_agent_second") == 0
    outbox.close()


WHO = st.builds(Who, st.sampled_from("ab"), st.sampled_from("123"))


@given(st.lists(st.tuples(WHO, st.booleans()), max_size=12))
def test_never_do_two_instances_serve_a_live_host(reports: list[tuple[Who, bool]]) -> None:
    tenure = Tenure()
    for who, live in reports:
        before = tenure
        verdict, tenure = judge(before, who, live=live)
        if live and before.holder is not None and who.instance != before.holder.instance:
            assert (verdict, tenure.holder) == (ReportOrigin.RIVAL, before.holder)
        else:
            assert verdict is ReportOrigin.RIVAL or tenure.holder == who
        assert judge(tenure, tenure.holder or who, live=True)[0] is not ReportOrigin.RIVAL, "who serves is not refused"
