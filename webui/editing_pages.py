"""Forms that register a VM, an application or a host, and those that change or forget it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import quote

from flask import Blueprint, abort, redirect, request, url_for
from markupsafe import escape
from pydantic import BaseModel
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.api.queries import NamePath
from manager.api.schemas.access_shapes import UserIn
from manager.api.schemas.service_shapes import TokenIn
from manager.protocol.registration_in import ApplicationIn, HostIn, VmIn
from webui.filled import Given, check, covers, differences, press, read_form
from webui.forms import Choices, Look, parts_of, summary_of
from webui.inside import Inside, Json, RequestRefused
from webui.labels import label_of
from webui.site import Site, page

NOT_FOR_A_FORM = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
"""Refusals that no other values would change."""


@dataclass(frozen=True, slots=True)
class EditedKind:
    """What can be registered: where the interface has it, what it is called, and its shape."""

    path: str
    word: str
    model: type[BaseModel]
    folded: frozenset[str]

    def at(self, name: str) -> str:
        """Path of the object of a name."""
        return f"/{self.path}/{quote(name, safe='')}"

    def registered(self, body: Json) -> Json:
        """What was registered of an object, without what is known of it besides."""
        return {name: body[name] for name in self.model.model_json_schema()["properties"]}


_SELDOM_OF_VMS = frozenset(
    {"libvirt_name", "libvirt_uuid", "weight", "pin", "cpus", "max_pcpus", "warp_us", "scheduling"}
)
KINDS: Mapping[str, EditedKind] = {
    kind.path: kind
    for kind in (
        EditedKind("vms", "VM", VmIn, _SELDOM_OF_VMS),
        EditedKind("applications", "application", ApplicationIn, frozenset({"cache"})),
        EditedKind("hosts", "host", HostIn, frozenset({"law", "placement"})),
    )
}
ANY_KIND = f"<any({', '.join(KINDS)}):kind>"
_SHAPES: Mapping[str, type[BaseModel]] = {
    **{path: kind.model for path, kind in KINDS.items()},
    "tokens": TokenIn,
    "users": UserIn,
}


@dataclass(slots=True)
class Sheet:
    """A form while it is worked on: its values, and what is wrong with them.

    ``theirs`` are the fields that another user has registered otherwise since: (field, here, there).
    """

    name: str
    body: Json
    etag: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    detail: str = ""
    theirs: list[tuple[str, str, str]] = field(default_factory=list)
    focus: str = ""
    status: int = HTTPStatus.OK


def add_editing(web: Blueprint, site: Site) -> None:
    """The forms below ``/registered``, and the checking of a field while it is filled in."""

    @web.route(f"/registered/new/{ANY_KIND}", methods=["GET", "POST"], endpoint="register")
    @web.route(f"/registered/{ANY_KIND}/<name>", methods=["GET", "POST"], endpoint="change")
    @allow(OPERATOR)
    def change(kind: str, name: str | None = None) -> AnyResponse:
        """Register something, or change it."""
        of = KINDS[kind]
        if request.method == "GET":
            sheet = _begun(of, name, site.api)
        else:
            sheet = filled(of, name, request.form)
            if not sheet.detail and not sheet.focus and "do" not in request.form and save(of, sheet, site.api):
                return redirect(url_for("web.registered", saved=kind, name=sheet.name), HTTPStatus.SEE_OTHER)
        parts = parts_of(of.model, sheet.body, sheet.errors, _look(of, name, sheet.focus, site.api))
        if name is None:
            parts = (*parts_of(NamePath, {"name": sheet.name}, sheet.errors), *parts)
        summary = summary_of(parts, sheet.errors)
        return page("edit.html", sheet.status, kind=of, new=name is None, sheet=sheet, parts=parts, summary=summary)

    @web.route(f"/registered/{ANY_KIND}/<name>/delete", methods=["GET", "POST"])
    @allow(OPERATOR)
    def forget(kind: str, name: str) -> AnyResponse:
        """Forget something, after a question."""
        of, detail = KINDS[kind], ""
        found = site.api.call("GET", of.at(name))
        if request.method == "POST":
            try:
                site.api.call("DELETE", of.at(name), etag=etag_of(request.form))
                return redirect(url_for("web.registered", deleted=kind, name=name), HTTPStatus.SEE_OTHER)
            except RequestRefused as refused:
                if refused.status in NOT_FOR_A_FORM:
                    raise
                detail = refused.detail
        status = HTTPStatus.CONFLICT if detail else HTTPStatus.OK
        return page("forget.html", status, kind=of, it=found.body, etag=found.etag, detail=detail)

    @web.post("/forms/check/<shape>")
    @allow(OPERATOR)
    def check_field(shape: str) -> str:
        """What is wrong with one field, in words; nothing where it is right."""
        if shape not in _SHAPES:
            abort(HTTPStatus.NOT_FOUND)
        path = request.args.get("field", "")
        model = NamePath if path == "name" else _SHAPES[shape]
        errors = check(model, read_form(model, request.form))
        return escape("; ".join(message for at, message in errors.items() if covers(path, at)))


def etag_of(given: Given) -> str:
    """The version that a form was made from, empty for a new object. Aborts with 400 where it cannot be one."""
    etag = given.get("etag", "")
    if not re.fullmatch(r"[\w.-]{0,100}", etag, re.ASCII):
        abort(HTTPStatus.BAD_REQUEST)
    return etag


def filled(kind: EditedKind, name: str | None, given: Given) -> Sheet:
    """What was filled in, with a button's action done, and judged by the shapes alone unless a button was pressed."""
    sheet = Sheet(given.get("name", "").strip() if name is None else name, read_form(kind.model, given))
    sheet.etag = etag_of(given)
    if "do" in given:
        sheet.body, sheet.focus = press(sheet.body, given["do"])
        return sheet
    sheet.errors = (check(NamePath, {"name": sheet.name}) if name is None else {}) | check(kind.model, sheet.body)
    if sheet.errors:
        sheet.status, sheet.detail = HTTPStatus.UNPROCESSABLE_ENTITY, "some fields are invalid"
    return sheet


def save(kind: EditedKind, sheet: Sheet, api: Inside) -> bool:
    """Register what was filled in; False: it was refused, and the sheet says why. Raises Refused where rights lack."""
    try:
        api.call("PUT", kind.at(sheet.name), body=sheet.body, etag=sheet.etag or None, new=not sheet.etag)
    except RequestRefused as refused:
        if refused.status in NOT_FOR_A_FORM:
            raise
        sheet.status, sheet.detail, sheet.errors = refused.status, refused.detail, refused.errors
        if refused.status == HTTPStatus.PRECONDITION_FAILED:
            _compare(kind, sheet, api)
        return False
    return True


def _compare(kind: EditedKind, sheet: Sheet, api: Inside) -> None:
    """Another user was quicker: show what is registered now, so that saving again is a choice."""
    if not sheet.etag:
        sheet.errors = {"name": f"there is a {kind.word} named {sheet.name!r} already"}
        return
    try:
        now = api.call("GET", kind.at(sheet.name))
    except RequestRefused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        sheet.etag = ""
        sheet.detail = f"This {kind.word} was deleted meanwhile. Saving registers it again."
        return
    sheet.etag = now.etag or ""
    here, there = (
        kind.model.model_validate(one).model_dump(mode="json", by_alias=True)
        for one in (sheet.body, kind.registered(now.body))
    )
    sheet.theirs = [(label_of(path), mine, other) for path, mine, other in differences(here, there)]
    sheet.detail = f"This {kind.word} was changed meanwhile. Saving replaces the current values."


def _begun(kind: EditedKind, name: str | None, api: Inside) -> Sheet:
    if name is not None:
        found = api.call("GET", kind.at(name))
        return Sheet(name, kind.registered(found.body), found.etag or "")
    return Sheet(request.args.get("name", ""), {"tiers": [{}]} if kind.path == "applications" else {})


def _look(kind: EditedKind, name: str | None, focus: str, api: Inside) -> Look:
    """What can be picked: read anew for each page."""
    if kind.path == "hosts":
        return Look(choices={"policy": policies(api)}, folded=kind.folded)
    hosts = [one["name"] for one in api.every("/hosts")]
    if kind.path == "vms":
        return Look(suggested={"host": hosts}, folded=kind.folded)
    free = free_vms(api.every("/vms"), name)
    return Look(choices={"tiers[].vms": free}, suggested={"sources[].host": hosts}, focus=focus)


def policies(api: Inside) -> Choices:
    """Names of the installed policies."""
    return tuple((one["name"], one["name"]) for one in api.every("/policies"))


def free_vms(vms: Iterable[Json], application: str | None) -> Choices:
    """VMs that may serve the application, with words: those that serve no other one."""
    return tuple(
        (vm["name"], f"{vm['name']} ({vm['class']}{', on ' + vm['status_host'] if vm['status_host'] else ''})")
        for vm in vms
        if vm["application"] in {None, application}
    )
