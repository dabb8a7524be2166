"""What the policies of hosts say they do for an application, as its route answers it."""

from __future__ import annotations

from typing import Any

from tests.api.conftest import HOST, Api, report, status, tick


def explained(*texts: tuple[str, str], policy: str = "auto", at: str = "2026-03-01T11:59:59Z") -> dict[str, Any]:
    """A tick with these texts by application."""
    explanations = [{"application": application, "text": text} for application, text in texts]
    return tick(policy=policy, at=at, explanations=explanations)


def told(api: Api, name: str = "shop") -> list[tuple[str, str, str]]:
    explanations = api.ok("GET", f"/applications/{name}", role="viewer")["explanations"]
    return [(each["host"], each["policy"], each["text"]) for each in explanations]


def test_it_is_that_of_each_host_that_runs_its_vms(shop: Api) -> None:
    assert told(shop) == []
    shop.ok("PUT", "/applications/blog", {"sla": {"response_time_ms": 10}})
    first = explained(("shop", "Nothing is needed."), ("blog", "Not served here."), ("gone", "No such one."))
    shop.ok("POST", f"/hosts/{HOST}/report", report(tick=first, vms=[status("web-1")]))
    second = explained(("shop", "web-2 floats."), policy="doubling", at="2026-03-01T11:59:54+00:00")
    shop.ok("POST", "/hosts/kvm2/report", report(tick=second, vms=[status("web-2")]))
    shop.ok("POST", "/hosts/kvm3/report", report(tick=explained(("shop", "It runs none of its VMs.")), vms=[]))
    assert told(shop) == [(HOST, "auto", "Nothing is needed."), ("kvm2", "doubling", "web-2 floats.")]
    assert [each["at"] for each in shop.ok("GET", "/applications/shop")["explanations"]] == [
        "2026-03-01T11:59:59Z",
        "2026-03-01T11:59:54Z",
    ]
    assert told(shop, "blog") == []
    listed = shop.ok("GET", "/applications", role="viewer")["items"]
    assert {each["name"]: len(each["explanations"]) for each in listed} == {"blog": 0, "shop": 2}


def test_it_ends_with_the_tick_that_gives_none_as_that_of_an_older_agent(shop: Api) -> None:
    shop.ok("POST", f"/hosts/{HOST}/report", report(tick=explained(("shop", "It floats.")), vms=[status("web-1")]))
    assert told(shop)
    shop.ok("POST", f"/hosts/{HOST}/report", report())
    assert told(shop), "no tick is none that says otherwise"
    older = tick()
    del older["explanations"]
    shop.ok("POST", f"/hosts/{HOST}/report", report(tick=older))
    assert told(shop) == []


def test_it_goes_with_the_vm(shop: Api) -> None:
    shop.ok("POST", f"/hosts/{HOST}/report", report(tick=explained(("shop", "It floats.")), vms=[status("web-1")]))
    shop.ok("POST", f"/hosts/{HOST}/report", report(vms=[]))
    assert told(shop) == []
