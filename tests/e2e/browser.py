"""A real Chromium, and pages in it that tell everything that went wrong in them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    WebError,
    expect,
    sync_playwright,
)

from tests.e2e.service import PASSWORD, USERS, Service

PATIENCE_MS = 60_000
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run")
OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync")
PEOPLES = ("chromium", "google-chrome")
"""Browsers as people have them."""
PROGRAMS = ("chromium-headless-shell", *PEOPLES)
"""The first renders the same, and takes about half the CPU time."""
COMPLAINTS = ("error", "warning")
GIVEN_UP = re.compile("htmx:(afterRequest|sendAbort),")  # after a failure it says more than afterRequest

Scheme = Literal["light", "dark"]


@contextmanager
def chromium(program: str | Path | None = None) -> Iterator[Browser]:
    """One browser; ``program`` None: the one that is installed. Raises FileNotFoundError where none is."""
    program = program or installed()
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*QUIET, *OFFLINE])
        yield browser
        browser.close()


def installed(programs: Iterable[str] = PROGRAMS) -> str:
    """The first of the programs that there is. Raises FileNotFoundError."""
    for program in programs:
        if path := shutil.which(program):
            return path
    raise FileNotFoundError(f"none of {', '.join(programs)} is installed: apt install chromium fonts-liberation")


class Visits:
    """Opens pages of a service as somebody who is signed in, and watches them.

    ``wrong`` is what no page may do: errors and warnings on the console, those of the Content-Security-Policy among
    them, exceptions, and requests to anybody else than the service. ``tolerated`` are patterns of messages that a test
    provokes. What htmx says of a request that the page gave up itself, because a newer one took its place or the page
    was left, is nothing wrong.
    """

    def __init__(self, browser: Browser, folder: Path) -> None:
        """``folder`` keeps who is signed in, so that each person signs in once a service."""
        self._browser, self._folder, self._open = browser, folder, list[BrowserContext]()
        self.wrong: list[str] = []
        self.tolerated: list[str] = []

    def page(
        self,
        service: Service,
        role: str | None = "admin",
        *,
        width: int = 1280,
        height: int = 900,
        scheme: Scheme = "light",
        java_script: bool = True,
    ) -> Page:
        """A page of a new context, signed in as the user of a role; None: nobody."""
        state = None if role is None else self._signed_in(service, role)
        context = self._browser.new_context(
            base_url=service.url,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            java_script_enabled=java_script,
            storage_state=state,
            reduced_motion="reduce",
            locale="en-GB",
            timezone_id="UTC",
        )
        context.set_default_timeout(PATIENCE_MS)
        self._watch(context, service.url)
        self._open.append(context)
        return context.new_page()

    def close(self) -> list[str]:
        """Close all pages; what went wrong in them that was not provoked."""
        for context in self._open:
            context.close()
        self._open.clear()
        return [one for one in self.wrong if not any(re.search(pattern, one) for pattern in self.tolerated)]

    def _signed_in(self, service: Service, role: str) -> Path:
        """A file with the cookie of a user's session."""
        file = self._folder / f"{service.port}-{role}.json"
        if not file.exists():
            context = self._browser.new_context(base_url=service.url)
            page = context.new_page()
            page.goto("/sign-in")
            sign_in(page, USERS[role], PASSWORD)
            expect(page.get_by_role("navigation", name="Main")).to_be_visible()
            context.storage_state(path=file)
            context.close()
        return file

    def _watch(self, context: BrowserContext, origin: str) -> None:
        def said(message: ConsoleMessage) -> None:
            if message.type in COMPLAINTS and not GIVEN_UP.match(message.text):
                self.wrong.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

        def failed(error: WebError) -> None:
            self.wrong.append(f"exception: {error.error.message}")

        def asked(request: Request) -> None:
            if not request.url.startswith((f"{origin}/", "data:", "blob:")):
                self.wrong.append(f"request to {request.url}")

        context.on("console", said)
        context.on("weberror", failed)
        context.on("request", asked)


def sign_in(page: Page, name: str, password: str) -> None:
    """Fill in the form and send it."""
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
