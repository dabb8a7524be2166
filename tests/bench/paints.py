"""How soon a browser shows something of a page, and has all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Page, expect

from tests.e2e.browser import chromium, installed, sign_in
from tests.e2e.service import PASSWORD, USERS

_NICENESS = -10
_PAINTED = """() => new Promise((seen) => new PerformanceObserver((list) =>
    list.getEntriesByName("first-contentful-paint").length && seen()).observe({ type: "paint", buffered: true }))"""
_TIMES = """() => {
    const [page] = performance.getEntriesByType("navigation");
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const all = [page, ...performance.getEntriesByType("resource")];
    return {paint: paint.startTime, answer: page.responseEnd, ready: page.domContentLoadedEventEnd,
            bytes: all.reduce((sum, one) => sum + one.transferSize, 0),
            elements: document.querySelectorAll("*").length};
}"""


def times_of(page: Page, path: str) -> dict[str, float]:
    """Load a page: ``paint``, ``answer`` and ``ready`` in ms since the navigation began, ``bytes``, ``elements``."""
    page.goto(path, wait_until="load")
    page.evaluate(_PAINTED)
    times: dict[str, float] = page.evaluate(_TIMES)
    return times


@contextmanager
def first_paint(url: str, client: httpx.Client, folder: Path) -> Iterator[Callable[[], float]]:
    """What loads the fleet page of a manager in a new context of a browser, and tells its first paint in ms.

    ``client`` is an admin's; ``folder`` keeps who is signed in. The browser goes before all else that runs here (as
    root): the reader's is on a machine of its own.
    """
    client.post("/users", json={"name": USERS["viewer"], "role": "viewer", "password": PASSWORD}).raise_for_status()
    state = folder / "signed-in.json"
    program = folder / "chromium"
    program.write_text(f'#!/bin/sh\nexec nice -n {_NICENESS} {installed()} "$@"\n')
    program.chmod(0o700)
    with chromium(program) as browser:
        context = browser.new_context(base_url=url)
        page = context.new_page()
        page.goto("/sign-in")
        sign_in(page, USERS["viewer"], PASSWORD)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        context.storage_state(path=state)
        context.close()

        def load() -> float:
            context = browser.new_context(base_url=url, storage_state=state)
            try:
                return times_of(context.new_page(), "/")["paint"]
            finally:
                context.close()

        yield load
