"""What is told of the discovery of domains: when one hangs, when the list grows old, and when that is over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.loop.chronicle import discovery_news
from manager.model.host import Discovery
from manager.model.records import Severity
from tests.loop.site import Site
from tests.loop.test_agent import site

__all__ = ["site"]

FRESH = Discovery(1.0, 60.0)
LATE = replace(FRESH, age_s=61.0)
HUNG = replace(FRESH, hanging=("web",))


@pytest.mark.parametrize(
    ("before", "now", "kinds"),
    [
        (None, FRESH, []),
        (FRESH, FRESH, []),
        (None, LATE, [(Severity.ERROR, "discovery-late")]),
        (FRESH, LATE, [(Severity.ERROR, "discovery-late")]),
        (LATE, replace(LATE, age_s=99.0), []),
        (LATE, FRESH, [(Severity.INFO, "discovery-resumed")]),
        (FRESH, HUNG, [(Severity.WARNING, "domain-hangs")]),
        (HUNG, replace(HUNG, hanging=("db", "web")), [(Severity.WARNING, "domain-hangs")]),
        (HUNG, FRESH, [(Severity.INFO, "domain-answers")]),
        (HUNG, LATE, [(Severity.INFO, "domain-answers"), (Severity.ERROR, "discovery-late")]),
    ],
)
def test_each_change_is_told_once(before: Discovery | None, now: Discovery, kinds: list[tuple[Severity, str]]) -> None:
    assert [news[:2] for news in discovery_news(before, now)] == kinds


def test_the_domain_and_the_age_are_named() -> None:
    [hangs] = [news.text for news in discovery_news(FRESH, HUNG)]
    [late] = [news.text for news in discovery_news(FRESH, LATE)]
    assert "domain web" in hangs
    assert "for 61 s" in late


def test_the_manager_hears_of_it(site: Site) -> None:
    machine = site.machines[0]

    def told() -> list[str]:
        return [
            one["kind"] for one in site.client.items("/events") if one["kind"] in {"domain-hangs", "discovery-late"}
        ]

    def metric(name: str) -> float | None:
        return machine.metrics.registry.get_sample_value(f"equipoise_agent_{name}")

    site.pass_slot()
    assert site.client.get("/hosts/a")["tick"]["discovery_age_s"] == 0
    machine.host.discovery = replace(LATE, hanging=("web",))
    site.pass_slot()
    site.pass_slot()
    assert sorted(told()) == ["discovery-late", "domain-hangs"]
    assert site.client.get("/hosts/a")["tick"]["discovery_age_s"] == LATE.age_s
    values = [metric(name) for name in ("discovery_age_seconds", "discovery_late", "hanging_domains")]
    assert values == [LATE.age_s, 1, 1]
