"""People: users and tokens, for administrators."""

from __future__ import annotations

from http import HTTPStatus

from flask import g, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import ADMIN, allow
from manager.api.schemas.access_shapes import PasswordIn, TokenIn, UserIn, UserRoleIn
from webui import rest
from webui.editing_pages import suggestions
from webui.filled import PASSWORD, Sheet
from webui.forms import Look, form_page, parts_of
from webui.rest import RequestRefused
from webui.site import page, web


@web.get("/people")
@allow(ADMIN)
def people() -> AnyResponse:
    """Users and tokens."""
    users, tokens = list(rest.every("/users")), list(rest.every("/tokens"))
    return page("people.html", users=users, tokens=tokens, done=request.args.get("done"))


@web.route("/people/new-user", methods=["GET", "POST"], endpoint="new_user", defaults={"kind": "user"})
@web.route("/people/new-token", methods=["GET", "POST"], endpoint="new_token", defaults={"kind": "token"})
@allow(ADMIN)
def new(kind: str) -> AnyResponse:
    """Make a user or a token; a token's secret is in this answer only."""
    model: type = UserIn if kind == "user" else TokenIn
    sheet = Sheet()
    if request.method == "POST" and sheet.submit(model, request.form, "POST", f"/{kind}s") and sheet.answer:
        if kind == "user":
            return _done(kind)
        return page("secret.html", HTTPStatus.CREATED, token=sheet.answer.body)
    look = Look(suggested={"host": rest.suggested("hosts")}, listed={"host": suggestions("hosts")})
    return form_page("make.html", sheet, parts_of(model, sheet.body, sheet.errors, look), word=kind)


@web.route("/people/users/<name>", methods=["GET", "POST"])
@allow(ADMIN)
def person(name: str) -> AnyResponse:
    """A user's role and password, and the question whether to remove the user."""
    path, form, sheet = rest.at("users", name), request.form.get("form", ""), Sheet()
    if (
        (form == "role" and sheet.submit(UserRoleIn, request.form, "PUT", path))
        or (form == "password" and sheet.submit(PasswordIn, request.form, "PUT", f"{path}/password"))
        or (form == "delete" and sheet.send("DELETE", path))
    ):
        return _done(form)
    user = rest.get(path)
    role = parts_of(UserRoleIn, sheet.body if form == "role" else user, sheet.errors)
    fields = {PASSWORD, "current_password"} if user["name"] == g.principal.name else {PASSWORD}
    password = parts_of(PasswordIn, {}, sheet.errors, Look(only=frozenset(fields)))
    return form_page("person.html", sheet, (*role, *password), user=user, role=role, password=password)


@web.route("/people/tokens/<name>/revoke", methods=["GET", "POST"])
@allow(ADMIN)
def revoke(name: str) -> AnyResponse:
    """Revoke a token, after a question."""
    if request.method == "POST":
        rest.call("DELETE", rest.at("tokens", name))
        return _done("revoked")
    for token in rest.every("/tokens"):
        if token["name"] == name:
            return page("revoke.html", token=token)
    raise RequestRefused(HTTPStatus.NOT_FOUND, f"there is no token named {name!r}")


def _done(what: str) -> AnyResponse:
    return redirect(url_for("web.people", done=what), HTTPStatus.SEE_OTHER)
