"""The page that says whether a VM may come to a host: its form, what is wrong at its field, and the answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from manager.api import admission_routes
from manager.sim.twin import Effort
from manager.store.tokens import Role
from tests.api.conftest import HOST, report, status, tick_of
from tests.sim.test_twin import recording, truth
from tests.web.desk import Browser, Desk, Page
from webui import rest
from webui.admission_pages import services_like
from webui.rest import ApiAnswer, RequestRefused

PATH = f"/hosts/{HOST}/admission"


@pytest.fixture
def browser(shop: Desk) -> Browser:
    """``web-1`` and ``hog`` on a host of four pCPUs for a minute, and ``render`` on another one; seen by a viewer."""
    api = shop.api
    api.ok("PUT", "/hosts/kvm2", {})
    for name in ("hog", "render"):
        api.ok("PUT", f"/vms/{name}", {"class": "batch"})
    used = {"run_delay_share": 0.0, "weight": 100, "mode": "enforce"}
    vms = [{"vm": "web-1", "cpu_share": 0.2, **used}, {"vm": "hog", "cpu_share": 0.5, **used}]
    ticks = [tick_of(end, vms=vms) for end in range(-60, 0, 5)]
    running = [status("web-1"), status("hog", vcpus=2)]
    api.ok("POST", f"/hosts/{HOST}/report", report(vms=running, ticks=ticks), role="host")
    seen = status("render", vcpus=2, cpu_share=0.1, run_delay_share=0.2)
    api.ok("POST", "/hosts/kvm2/report", report(vms=[seen]), role="other host")
    return shop.browser(Role.VIEWER)


def asked(browser: Browser, **changes: str) -> Page:
    """The page when its form was filled in and sent, as a browser does it without scripts."""
    form = browser.get(PATH)
    given = {name: value for name, value in form.filled(changes).items() if name != "csrf_token"}
    return browser.get(f"{PATH}?{urlencode(given)}")


def test_the_form_offers_what_is_known_and_nothing_is_computed_unasked(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_routes, "recorded", None)
    page = browser.get(PATH)
    assert page.status == 200
    assert {name for name in page.fields() if name != "csrf_token"} == {
        "vm", "class", "vcpus", "demand_pcpus", "like", "rate_rps", "policy", "max_batch_loss", "minutes",
    }  # fmt: skip
    assert {one["value"] for one in page.all("option")} == {
        "render", "shop", "", "critical", "batch", "equal", "fair", "priority",
    }  # fmt: skip
    assert not [one for one in page.elements if one.attributes.get("id") == "verdict"]
    assert "Nothing is changed" in page.text
    assert [form["action"] for form in page.all("form", method="post")] == ["/sign-out"]
    assert PATH in browser.get(f"/hosts/{HOST}").source


def test_without_a_twin_the_answer_counts_and_says_what_is_missing(browser: Browser) -> None:
    page = asked(browser, **{"class": "batch", "vcpus": "2"})
    assert page.status == 200
    assert page.by_id("verdict").text == f"This VM on {HOST}: ○ unsure"
    assert "By arithmetic alone" in page.text
    assert "not known: the recording has 55 s under policy priority" in page.by_id("reasons").text
    assert [cell.text for cell in page.all("td")][-4:] == ["0.20", "0.20", "0.70", "1.20"]
    assert "there is no interference table for hosts of its type" in page.by_id("tables").text
    assert page.fields()["vcpus"] == "2"
    assert not [one for one in page.elements if one.attributes.get("id") == "applications"]


def test_a_registered_vm_is_known(browser: Browser) -> None:
    page = asked(browser, vm="render")
    assert page.by_id("verdict").text == f"render on {HOST}: ○ unsure"
    assert "batch, 2 vCPUs" in page.text
    assert "Demand0.60 pCPUs" in page.text


def test_a_host_without_history_has_no_factors(shop: Desk, browser: Browser) -> None:
    shop.api.clock.now_s += 3700
    page = asked(browser, **{"class": "critical", "vcpus": "1", "like": "shop"})
    assert "Not known: no history of this host." in page.text
    assert "not known without a simulation" in page.text
    assert "no ticks of the last 60 minutes" in page.by_id("reasons").text


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "class", "is required"),
        ({"class": "batch"}, "vcpus", "is required, 1 to 256"),
        ({"vm": "nobody"}, "vm", "no VM named"),
        ({"vm": "hog"}, "vm", "runs on kvm1 already"),
        ({"class": "batch", "vcpus": "2", "like": "shop"}, "like", "serves no requests"),
        ({"class": "batch", "vcpus": "2", "demand_pcpus": "3"}, "demand_pcpus", "at most its vCPUs, 2"),
        ({"class": "batch", "vcpus": "2", "rate_rps": "5"}, "rate_rps", "without `like`"),
        ({"class": "batch", "vcpus": "257"}, "vcpus", "at most 256"),
        ({"class": "batch", "vcpus": "two"}, "vcpus", "is refused"),
        ({"class": "batch", "vcpus": "2", "minutes": "61"}, "minutes", "at most 60"),
    ],
)
def test_what_cannot_be_asked_stands_at_its_field(
    browser: Browser, given: dict[str, str], field: str, words: str
) -> None:
    page = asked(browser, **given)
    assert page.status == 422
    assert words in page.message_at(field)
    assert page.by_id("problems-title").text == "No answer"
    for name, value in given.items():
        assert page.fields()[name] == value


def test_while_another_answer_is_computed_it_says_to_try_again(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = rest.call

    def busy(method: str, path: str, **options: Any) -> ApiAnswer:
        if method == "POST":
            raise RequestRefused(503, "another admission is being computed: try again")
        return call(method, path, **options)

    monkeypatch.setattr(rest, "call", busy)
    page = asked(browser, vm="render")
    assert page.status == 503
    assert "another admission is being computed: try again" in page.by_id("problems").text
    assert page.fields()["vm"] == "render"


def test_the_twin_predicts_everybody(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_routes, "recorded", lambda *_: recording(truth()))
    monkeypatch.setattr(admission_routes, "MAX_ADMISSION_S", 3600.0)
    monkeypatch.setattr(admission_routes, "TWIN_EFFORT", Effort(requests=3000, seeds=2))
    page = asked(browser, **{"class": "critical", "vcpus": "1", "like": "shop", "rate_rps": "5"})
    assert page.by_id("verdict").text == f"This VM on {HOST}: ✓ yes", page.text
    assert "SIMULATED." in page.text
    assert "every SLA that is predicted is met with it" in page.by_id("reasons").text
    assert [row.text for row in page.all("th", scope="row")] == [
        "shop", "This VM, as shop", "Critical VMs", "All VMs",
    ]  # fmt: skip
    assert "It would get" in page.text


def test_a_host_that_there_is_not_is_not_found(browser: Browser) -> None:
    assert browser.get("/hosts/nowhere/admission").status == 404
    assert browser.get("/hosts/nowhere/admission?vm=render").status == 404


def test_a_vm_may_serve_as_applications_do_that_run_there() -> None:
    def application(name: str, **tiers: list[str]) -> dict[str, Any]:
        return {"name": name, "tiers": [{"name": tier, "vms": vms} for tier, vms in tiers.items()]}

    vms = [{"name": name, "status_host": name.partition("-")[0]} for name in ("a-1", "a-2", "b-1")]
    applications = [
        application("one", web=["a-1", "b-1"]),
        application("two", web=["b-1"], db=["a-2"]),
        application("elsewhere", web=["b-1"]),
        application("empty"),
    ]
    assert list(services_like(applications, vms, "a")) == ["one", "two/db"]
