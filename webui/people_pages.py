"""People: users and tokens, for administrators."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import quote

from flask import Blueprint, g, redirect, request, url_for
from pydantic import BaseModel
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import ADMIN, allow
from manager.api.schemas.access_shapes import PasswordIn, UserIn, UserRoleIn
from manager.api.schemas.service_shapes import TokenIn
from webui.filled import PASSWORD, check, discreet, read_form
from webui.forms import Look, Part, parts_of, summary_of
from webui.inside import ApiAnswer, Json, RequestRefused
from webui.site import Site, page


@dataclass(frozen=True, slots=True)
class Sent:
    """A form that was sent: its values, what was refused of it by field and as a whole, or the answer."""

    body: Json = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    detail: str = ""
    answer: ApiAnswer | None = None


def add_people(web: Blueprint, site: Site) -> None:
    """The pages below ``/people``."""

    @web.get("/people")
    @allow(ADMIN)
    def people() -> AnyResponse:
        """Users and tokens."""
        users, tokens = list(site.api.every("/users")), list(site.api.every("/tokens"))
        return page("people.html", users=users, tokens=tokens, done=request.args.get("done"))

    @web.route("/people/new-user", methods=["GET", "POST"])
    @allow(ADMIN)
    def new_user() -> AnyResponse:
        """Make a user."""
        sent = _sent(site, UserIn, "POST", "/users")
        if sent.answer:
            return redirect(url_for("web.people", done="user"), HTTPStatus.SEE_OTHER)
        return _form("user", parts_of(UserIn, sent.body, sent.errors), sent)

    @web.route("/people/new-token", methods=["GET", "POST"])
    @allow(ADMIN)
    def new_token() -> AnyResponse:
        """Make a token; its secret is in this answer only."""
        sent = _sent(site, TokenIn, "POST", "/tokens")
        if sent.answer:
            return page("secret.html", HTTPStatus.CREATED, token=sent.answer.body)
        look = Look(suggested={"host": [one["name"] for one in site.api.every("/hosts")]})
        return _form("token", parts_of(TokenIn, sent.body, sent.errors, look), sent)

    @web.route("/people/users/<name>", methods=["GET", "POST"])
    @allow(ADMIN)
    def person(name: str) -> AnyResponse:
        """A user's role and password, and the question whether to remove the user."""
        at, form = f"/users/{quote(name, safe='')}", request.form.get("form", "")
        roles = _sent(site, UserRoleIn, "PUT", at) if form == "role" else Sent()
        secrets = _sent(site, PasswordIn, "PUT", f"{at}/password") if form == "password" else Sent()
        gone = _asked(site, "DELETE", at) if form == "delete" else Sent()
        if roles.answer or secrets.answer or gone.answer:
            return redirect(url_for("web.people", done=form), HTTPStatus.SEE_OTHER)
        user = site.api.get(at)
        detail = roles.detail or secrets.detail or gone.detail
        parts = parts_of(UserRoleIn, roles.body or user, roles.errors)
        fields = {PASSWORD, "current_password"} if user["name"] == g.principal.name else {PASSWORD}
        new = parts_of(PasswordIn, {}, secrets.errors, Look(only=frozenset(fields)))
        status = HTTPStatus.UNPROCESSABLE_ENTITY if detail else HTTPStatus.OK
        summary = summary_of((*parts, *new), roles.errors | secrets.errors)
        return page("person.html", status, user=user, role=parts, password=new, detail=detail, summary=summary)

    @web.route("/people/tokens/<name>/revoke", methods=["GET", "POST"])
    @allow(ADMIN)
    def revoke(name: str) -> AnyResponse:
        """Revoke a token, after a question."""
        if request.method == "POST":
            site.api.call("DELETE", f"/tokens/{quote(name, safe='')}")
            return redirect(url_for("web.people", done="revoked"), HTTPStatus.SEE_OTHER)
        found = next((one for one in site.api.every("/tokens") if one["name"] == name), None)
        if found is None:
            raise RequestRefused(HTTPStatus.NOT_FOUND, f"there is no token named {name!r}")
        return page("revoke.html", token=found)


def _sent(site: Site, model: type[BaseModel], method: str, path: str) -> Sent:
    """What was filled in, and what came of it."""
    if request.method == "GET":
        return Sent()
    body = read_form(model, request.form)
    errors = check(model, body)
    return Sent(body, errors, "some fields are invalid") if errors else _asked(site, method, path, body)


def _asked(site: Site, method: str, path: str, body: Json | None = None) -> Sent:
    try:
        return Sent(body or {}, answer=site.api.call(method, path, body=body))
    except RequestRefused as refused:
        if refused.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            raise
        return Sent(body or {}, discreet(refused.errors), refused.detail)


def _form(word: str, parts: tuple[Part, ...], sent: Sent) -> AnyResponse:
    status = HTTPStatus.UNPROCESSABLE_ENTITY if sent.detail else HTTPStatus.OK
    summary = summary_of(parts, sent.errors)
    return page("make.html", status, word=word, parts=parts, detail=sent.detail, summary=summary)
