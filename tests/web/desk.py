"""The dashboard without a network: pages as a browser gets them, forms as a browser sends them."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from flask.testing import FlaskClient
from werkzeug.datastructures import MultiDict
from werkzeug.test import TestResponse

from manager.api.app import create_app
from manager.api.auth import COOKIE
from manager.api.context import ManagerContext
from manager.store.access_models import SessionRow
from manager.store.change_feed import Changes
from manager.store.database import Database
from manager.store.sessions import SessionLimits, SignedIn
from manager.store.tokens import Principal, Role, create_token, hash_secret
from policies.equal import POLICY as EQUAL
from policies.fair import POLICY as FAIR
from policies.installed import InstalledPolicy
from policies.priority import POLICY as PRIORITY
from tests.api.conftest import START, Api, Clock
from webui.dashboard import install_dashboard

VOID = frozenset({"input", "meta", "link", "br"})


@dataclass
class Element:
    """An element of a page: its text is that of all it holds."""

    tag: str
    attributes: dict[str, str]
    text: str = ""

    def __getitem__(self, name: str) -> str:
        return self.attributes[name]


class Page(HTMLParser):
    """A page that was answered."""

    def __init__(self, response: TestResponse) -> None:
        super().__init__()
        self.response = response
        self.status = response.status_code
        self.source = response.get_data(as_text=True)
        self.elements: list[Element] = []
        self._open: list[Element] = []
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    @property
    def text(self) -> str:
        """All text of the page's main part, spaces as one."""
        [main] = self.all("main")
        return " ".join(main.text.split())

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements with these attributes; ``class_`` is one of the classes."""
        wanted = {name.rstrip("_").replace("_", "-"): value for name, value in attributes.items()}
        return [
            one
            for one in self.elements
            if one.tag == tag
            and all(
                value in one.attributes.get(name, "").split() if name == "class" else one.attributes.get(name) == value
                for name, value in wanted.items()
            )
        ]

    def by_id(self, id_: str) -> Element:
        """The one element of that id."""
        [found] = [one for one in self.elements if one.attributes.get("id") == id_]
        return found

    def fields(self) -> MultiDict[str, str]:
        """What a browser would send if the reader pressed the button that saves: the fields of all forms."""
        given: MultiDict[str, str] = MultiDict()
        select = ""
        for one in self.elements:
            if one.tag == "select":
                select = one.attributes.get("name", "")
            elif one.tag == "option" and "selected" in one.attributes and select:
                given.add(select, one.attributes.get("value", one.text))
            elif one.tag == "textarea":
                given.add(one["name"], one.text.removeprefix("\n"))
            elif one.tag == "input" and "name" in one.attributes:
                boxed = one.attributes.get("type") == "checkbox"
                if not boxed or "checked" in one.attributes:
                    given.add(one["name"], one.attributes.get("value", "on" if boxed else ""))
        return given

    def filled(self, changes: dict[str, str]) -> MultiDict[str, str]:
        """``fields`` with others in their place."""
        given = self.fields()
        for name, value in changes.items():
            given[name] = value
        return given

    def message_at(self, path: str) -> str:
        """What stands at a field as wrong, where the field says that it is."""
        id_ = "f-" + path.replace("[", "-").replace("]", "").replace(".", "-")
        control = self.by_id(id_)
        message = self.by_id(f"e-{id_}").text
        assert f"e-{id_}" in control["aria-describedby"].split()
        assert ("aria-invalid" in control.attributes) == bool(message) or control.tag == "fieldset"
        return message


@dataclass
class Browser:
    """A browser, signed in with a role."""

    client: FlaskClient
    csrf_token: str = ""

    def get(self, path: str, **headers: str) -> Page:
        """A page, whatever its status; redirections are not followed."""
        return Page(self.client.get(path, headers=_spelled(headers)))

    def post(self, path: str, data: Any = (), csrf_token: str | None = None, **headers: str) -> Page:
        """Send a form with the session's CSRF token, unless another one is given."""
        given: MultiDict[str, str] = MultiDict(data)
        given.setlist("csrf_token", [self.csrf_token if csrf_token is None else csrf_token])
        return Page(self.client.post(path, data=given, headers=_spelled(headers)))


@dataclass
class Desk:
    """A manager with its dashboard over a database that is as if new."""

    database: Database
    api: Api
    limits: SessionLimits = field(default_factory=SessionLimits)

    def browser(self, role: Role | None = Role.ADMIN) -> Browser:
        """A browser in which somebody with that role is signed in, by a token of that name; None: nobody."""
        client = self.api.app.test_client()
        if role is None:
            return Browser(client)
        secret = f"secret of {role}"
        with self.database.registering() as session:
            row, _ = create_token(session, f"{role}-who-looks", role, None, START)
            session.flush()
            session.add(
                SessionRow(
                    secret_hash=hash_secret(secret),
                    token_id=row.id,
                    created_at=START,
                    last_seen_at=START,
                    expires_at=START + self.limits.length,
                    address="127.0.0.1",
                )
            )
            principal = Principal(row.name, role)
        client.set_cookie(COOKIE, secret)
        return Browser(client, SignedIn(secret, principal).csrf_token)


def make_desk(database: Database) -> Desk:
    """The manager and its dashboard for a migrated database, with a clock that stands, and the interface beside it."""
    clock = Clock()
    policies = {policy.name: InstalledPolicy(policy, "equipoise") for policy in (EQUAL, FAIR, PRIORITY)}
    context = ManagerContext(database, policies, stale_s=30, min_samples=20, clock=clock)
    app = create_app(context)
    install_dashboard(app, context, Changes(database, 4, clock=context.clock))
    api = Api(app, database, clock)
    api.make_tokens()
    return Desk(database, api)


def _spelled(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}
