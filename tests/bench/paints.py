"""How soon a browser shows something of a page, and has all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.e2e.browser import PEOPLES, chromium, installed, sign_in
from tests.e2e.service import PASSWORD, USERS

_SETTLED_MS = 100
_PAINTED = f"""() => new Promise((seen) => {{
    let timer;
    new PerformanceObserver((list) => {{
        window.largestPaint = list.getEntries().at(-1).startTime;
        clearTimeout(timer);
        timer = setTimeout(seen, {_SETTLED_MS});
    }}).observe({{ type: "largest-contentful-paint", buffered: true }});
}})"""
_TIMES = """() => {
    const [page] = performance.getEntriesByType("navigation");
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const all = [page, ...performance.getEntriesByType("resource")];
    return {paint: paint.startTime, content: window.largestPaint, begun: page.responseStart, answer: page.responseEnd,
            ready: page.domContentLoadedEventEnd,
            bytes: all.reduce((sum, one) => sum + one.transferSize, 0),
            elements: document.querySelectorAll("*").length};
}"""


def times_of(page: Page, path: str) -> dict[str, float]:
    """Load a page: when it was painted and came, in ms since the navigation began, ``bytes``, and ``elements``.

    ``paint``: something of it (first contentful paint); ``content``: the largest of its texts (largest contentful
    paint); ``begun``, ``answer``: its first and last byte; ``ready``: its scripts have run.
    """
    page.goto(path, wait_until="load")
    page.evaluate(_PAINTED)
    times: dict[str, float] = page.evaluate(_TIMES)
    return times


@contextmanager
def page_loads(url: str, client: httpx.Client, folder: Path) -> Iterator[Callable[[], dict[str, float]]]:
    """What loads the fleet page of a manager in a new context of a browser, and tells its times, see ``times_of``.

    ``client`` is an admin's; ``folder`` keeps who is signed in.
    """
    client.post("/users", json={"name": USERS["viewer"], "role": "viewer", "password": PASSWORD}).raise_for_status()
    state = folder / "signed-in.json"
    with chromium(installed(PEOPLES)) as browser:
        context = browser.new_context(base_url=url)
        page = context.new_page()
        page.goto("/sign-in")
        sign_in(page, USERS["viewer"], PASSWORD)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        context.storage_state(path=state)
        context.close()

        def load() -> dict[str, float]:
            context = browser.new_context(base_url=url, storage_state=state)
            try:
                return times_of(context.new_page(), "/")
            finally:
                context.close()

        yield load
