"""What holds on every page: quiet console, own server only, accessible in both colours, room at 360 px, keyboard."""

from __future__ import annotations

import html
import re
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.e2e.browser import Visits
from tests.e2e.service import HOST, Service

AXE = Axe()
PAGES = {
    "fleet": "/",
    "fleet-groups": "/?group=host",
    "application": "/applications/spiking",
    "report": "/applications/spiking/report",
    "hosts": "/hosts",
    "host-groups": "/hosts?group=policy",
    "host": f"/hosts/{HOST}",
    "admission": f"/hosts/{HOST}/admission",
    "decisions": "/decisions",
    "events": "/events",
    "migrations": "/proposals",
    "what-if": f"/what-if?host={HOST}&policy=priority&minutes=1",
    "registered": "/registered",
    "people": "/people",
    "account": "/account",
    "first": "/first",
    "not-found": "/applications/nonesuch",
    "sign-in": "/sign-in",
}
OF_VIEWERS = (
    "fleet",
    "fleet-groups",
    "application",
    "report",
    "hosts",
    "host-groups",
    "host",
    "admission",
    "decisions",
    "events",
    "migrations",
    "what-if",
    "account",
    "not-found",
)
REACHABLE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
WALK_BEGINS = """(reachable) => {
    if (window.Idiomorph) Idiomorph.morph = () => [];  // who walks through what changes may pass by what moves
    const visible = (one) => one.checkVisibility({ visibilityProperty: true }) && one.tabIndex >= 0 && !one.disabled;
    const others = (one) => one.type !== "radio" || one.checked;  // a group of them is one stop
    const all = [...document.querySelectorAll(reachable)].filter(visible).filter(others);
    window.walk = { all, met: new Set([all[0]]), last: all[0], unseen: [] };
    all[0].focus();
    return all.length;
}"""
WALK_STEP = """() => {
    const at = document.activeElement;
    if (at === window.walk.last) return false;  // a date is several stops
    if (at === document.body && !window.walk.last.isConnected) return false;  // it went: go on from there
    if (at === document.body || window.walk.met.has(at)) return true;
    window.walk.met.add(at);
    window.walk.last = at;
    if (getComputedStyle(at).outlineStyle === "none") window.walk.unseen.push(at.outerHTML.slice(0, 160));
    return false;
}"""
WALK_LEFT = """() => {
    const left = window.walk.all.filter((one) => one.isConnected && !window.walk.met.has(one));
    return { unreached: left.map((one) => one.outerHTML.slice(0, 160)), unseen: window.walk.unseen };
}"""


def opened(visits: Visits, service: Service, name: str, role: str = "admin") -> Page:
    """A page, when all of it is there."""
    if name == "not-found":
        visits.tolerated.append("status of 404")
    page = visits.page(service, None if name == "sign-in" else role)
    page.goto(PAGES[name], wait_until="load")
    if name not in {"account", "not-found", "sign-in", "report"}:
        expect(page.get_by_role("main")).not_to_be_empty()
    return page


def check(page: Page) -> None:
    """axe-core finds nothing, in light and in dark."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found = AXE.run(page)
        assert found.violations_count == 0, f"{scheme}: {found.generate_report()}"


def too_wide(page: Page) -> list[str]:
    """What reaches beyond the screen, unless in a part that scrolls, once charts have taken their new size."""
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    found: list[str] = page.evaluate(
        """() => document.documentElement.scrollWidth <= innerWidth ? [] :
            [...document.querySelectorAll("body *")]
                .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && !one.closest(".scroll"))
                .map((one) => one.outerHTML.slice(0, 160))"""
    )
    return found


@pytest.mark.parametrize("name", PAGES)
def test_is_accessible_in_both_colours_and_fits_from_360_px_to_4k(visits: Visits, spike: Service, name: str) -> None:
    page = opened(visits, spike, name)
    expect(page.get_by_role("heading", level=1)).to_have_count(1)
    expect(page).to_have_title(re.compile(r"^\S.* · Equipoise$"))
    check(page)
    for width in (360, 768, 3840):
        page.set_viewport_size({"width": width, "height": 800})
        assert too_wide(page) == [], width
    page.emulate_media(media="print")
    assert not page.get_by_role("banner").is_visible()


def test_a_phone_shows_all_of_the_navigation(visits: Visits, spike: Service) -> None:
    page = visits.page(spike, width=360)
    page.goto("/")
    links = page.get_by_role("navigation", name="Main").get_by_role("link")
    expect(links).to_have_count(8)
    rights = links.evaluate_all("(all) => all.map((one) => one.getBoundingClientRect().right)")
    assert max(rights) <= 360


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(visits: Visits, spike: Service, name: str) -> None:
    page = opened(visits, spike, name)
    count = page.evaluate(WALK_BEGINS, REACHABLE)
    for _ in range(4 * count):
        page.keyboard.press("Tab")
        if page.evaluate(WALK_STEP):
            break
    assert page.evaluate(WALK_LEFT) == {"unreached": [], "unseen": []}


@pytest.mark.parametrize("name", OF_VIEWERS)
def test_a_viewer_finds_no_form_that_changes_anything(visits: Visits, spike: Service, name: str) -> None:
    page = opened(visits, spike, name, "viewer")
    own = {"account": ("/sign-out", "/account")}.get(name, ("/sign-out",))
    forms = page.locator("form[method=post]").evaluate_all("(all) => all.map((one) => new URL(one.action).pathname)")
    assert [one for one in forms if not one.startswith(own)] == []
    assert page.get_by_role("link", name=re.compile("Inventory|Register|Edit|Delete|Release|People")).count() == 0


@pytest.mark.parametrize("role", ["admin", "viewer"])
def test_every_link_leads_somewhere_for_who_sees_it(visits: Visits, spike: Service, role: str) -> None:
    request = visits.page(spike, role).context.request
    waiting, seen = ["/"], set[str]()
    broken = []
    while waiting:
        path = waiting.pop()
        shape = re.sub(r"(?<==)[^&]+", "*", path)  # of pages that differ in a filter's value alone, one is enough
        if shape in seen:
            continue
        seen.add(shape)
        response = request.get(path)
        if not response.ok:
            broken.append(f"{path}: {response.status}")
        if "text/html" not in response.headers["content-type"] or path.startswith("/api/"):
            continue
        for link in re.findall(r'<(?:a|link|script)[^>]* (?:href|src)="([^"]+)"', response.text()):
            target = urlsplit(urldefrag(urljoin(spike.url + path, html.unescape(link))).url)
            assert target.netloc == urlsplit(spike.url).netloc, f"{path} links to {link}"
            waiting.append(target.path + (f"?{target.query}" if target.query else ""))
    assert broken == []
    unlinked = {"not-found", "sign-in", "what-if", "first", "fleet-groups", "host-groups"}
    expected = set(OF_VIEWERS if role == "viewer" else PAGES) - unlinked
    assert {PAGES[name] for name in expected} <= {re.sub(r"\?.*", "", one) for one in seen}
