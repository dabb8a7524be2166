"""Forms that register a VM, an application or a host, and those that change or forget it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from http import HTTPStatus

from flask import Response, abort, redirect, request, url_for
from markupsafe import escape
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, VIEWER, allow
from manager.api.queries import NamePath
from manager.api.schemas.access_shapes import TokenIn, UserIn
from manager.model.fields import adapter_of, json_fields
from manager.model.registration import ApplicationIn, HostIn, VmIn
from webui import rest
from webui.filled import Given, Sheet, check, covers, differences, etag_of, press, read_form
from webui.forms import Choices, Input, Look, form_page, parts_of
from webui.rest import Json, RequestRefused
from webui.site import page, web
from webui.words import label_of

_PICKED = "tiers[].vms"
PICKED_VMS = 100
"""Most VMs that serve nothing yet in a list to pick from."""


@dataclass(frozen=True, slots=True)
class EditedKind:
    """What can be registered: where the interface has it, what it is called, its shape, and what few need of it."""

    path: str
    word: str
    model: type
    folded: frozenset[str]

    def at(self, name: str) -> str:
        """Path of the object of a name."""
        return rest.at(self.path, name)

    def registered(self, name: str) -> Sheet:
        """A form with what is registered under a name, without what is known of it besides."""
        now = rest.call("GET", self.at(name))
        body = {field: now.body[field] for field in adapter_of(self.model).json_schema()["properties"]}
        return Sheet(name, body, now.etag)


_SELDOM_OF_VMS = frozenset(
    {"libvirt_name", "libvirt_uuid", "weight", "pin", "cpus", "max_pcpus", "warp_us", "scheduling", "job"}
)
KINDS: Mapping[str, EditedKind] = {
    kind.path: kind
    for kind in (
        EditedKind("vms", "VM", VmIn, _SELDOM_OF_VMS),
        EditedKind("applications", "application", ApplicationIn, frozenset({"cache"})),
        EditedKind("hosts", "host", HostIn, frozenset({"law", "placement", "memory", "disk", "network", "costs"})),
    )
}
ANY_KIND = f"<any({', '.join(KINDS)}):kind>"
_SHAPES: Mapping[str, type] = {
    **{path: kind.model for path, kind in KINDS.items()},
    "tokens": TokenIn,
    "users": UserIn,
}


@web.route(f"/registered/new/{ANY_KIND}", methods=["GET", "POST"], endpoint="register")
@web.route(f"/registered/{ANY_KIND}/<name>", methods=["GET", "POST"], endpoint="change")
@allow(OPERATOR)
def change(kind: str, name: str | None = None) -> AnyResponse:
    """Register something, or change it."""
    of = KINDS[kind]
    if request.method == "POST":
        sheet = filled(of, name, request.form)
        if not sheet.detail and not sheet.focus and "do" not in request.form and save(of, sheet):
            return redirect(url_for("web.registered", saved=kind, name=sheet.name), HTTPStatus.SEE_OTHER)
    elif name is not None:
        sheet = of.registered(name)
    else:
        sheet = Sheet(request.args.get("name", ""), {"tiers": [{}]} if kind == "applications" else {})
    parts = parts_of(of.model, sheet.body, sheet.errors, _look(of, name, sheet))
    if name is None:
        parts = (*parts_of(NamePath, {"name": sheet.name}, sheet.errors), *parts)
    return form_page("edit.html", sheet, parts, kind=of, new=name is None)


@web.route(f"/registered/{ANY_KIND}/<name>/delete", methods=["GET", "POST"])
@allow(OPERATOR)
def forget(kind: str, name: str) -> AnyResponse:
    """Forget something, after a question."""
    of, asked = KINDS[kind], Sheet(name, etag=etag_of(request.form))
    now = rest.call("GET", of.at(name))
    if request.method == "POST" and asked.send("DELETE", of.at(name)):
        return redirect(url_for("web.registered", deleted=kind, name=name), HTTPStatus.SEE_OTHER)
    return page("forget.html", asked.status, kind=of, it=now.body, etag=now.etag, detail=asked.detail)


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


def filled(kind: EditedKind, name: str | None, given: Given) -> Sheet:
    """What was filled in, with a button's action done, and judged by the shapes alone unless a button was pressed."""
    sheet = Sheet(given.get("name", "").strip() if name is None else name, read_form(kind.model, given), etag_of(given))
    if kind.path == "vms" and name is not None:
        _keep_spaces(sheet)
    if "do" in given:
        sheet.body, sheet.focus = press(sheet.body, given["do"])
    else:
        sheet.invalid((check(NamePath, {"name": sheet.name}) if name is None else {}) | check(kind.model, sheet.body))
    return sheet


def _keep_spaces(sheet: Sheet) -> None:
    """libvirt allows spaces at the ends of a name, and forms strip them: one that was picked stays as it is."""
    registered = (registered_vm(sheet.name) or {}).get("libvirt_name") or ""
    if registered.strip() == sheet.body["libvirt_name"]:
        sheet.body["libvirt_name"] = registered


def save(kind: EditedKind, sheet: Sheet) -> bool:
    """Register what was filled in; False: it was refused, and the sheet says why. Raises RequestRefused."""
    saved = sheet.send("PUT", kind.at(sheet.name), body=sheet.body, new=not sheet.etag)
    if sheet.status == HTTPStatus.PRECONDITION_FAILED:
        _compare(kind, sheet)
    return saved


def _compare(kind: EditedKind, sheet: Sheet) -> None:
    """Another user was quicker: show what is registered now, so that saving again is a choice."""
    if not sheet.etag:
        sheet.errors = {"name": f"there is a {kind.word} named {sheet.name!r} already"}
        return
    try:
        now = kind.registered(sheet.name)
    except RequestRefused as refused:
        if refused.status != HTTPStatus.NOT_FOUND:
            raise
        sheet.etag = ""
        sheet.detail = f"This {kind.word} was deleted meanwhile. Saving registers it again."
        return
    sheet.etag = now.etag
    here, there = (json_fields(adapter_of(kind.model).validate_python(body)) for body in (sheet.body, now.body))
    sheet.theirs = [(label_of(path), mine, other) for path, mine, other in differences(here, there)]
    sheet.detail = f"This {kind.word} was changed meanwhile. Saving replaces the current values."


def _look(kind: EditedKind, name: str | None, sheet: Sheet) -> Look:
    """What can be picked: read anew for each page."""
    if kind.path == "hosts":
        return Look(choices={"policy": policies()}, folded=kind.folded, focus=sheet.focus)
    hosts, listed = rest.suggested("hosts"), suggestions("hosts")
    if kind.path == "vms":
        return Look(suggested={"host": hosts}, listed={"host": listed}, folded=kind.folded)
    picked = vms_to_pick(sheet, name)
    also = {**picked.listed, "sources[].host": listed}
    return replace(picked, suggested={"sources[].host": hosts}, listed=also, focus=sheet.focus)


def policies() -> Choices:
    """Names of the installed policies."""
    return tuple((policy["name"], policy["name"]) for policy in rest.every("/policies"))


def suggestions(kind: str, elsewhere: str | None = None) -> str:
    """The address of names that have what a field holds, for fields that suggest some; see ``rest.suggested``."""
    return url_for("web.suggest", kind=kind, elsewhere=elsewhere)


@web.get("/forms/suggest/<any(vms, hosts):kind>")
@allow(VIEWER)
def suggest(kind: str) -> Response:
    """Names of VMs, without those on a host where there is ``elsewhere``, or of hosts, as options of a field."""
    text = request.args.get(request.args.get("field", ""), "")
    return page("options.html", names=rest.suggested(kind, text, request.args.get("elsewhere", "")))


def vms_to_pick(sheet: Sheet, application: str | None) -> Look:
    """The VMs that the tiers of an application may have: those that have been picked, and some that serve no other one.

    Each tier has a search of its own; without scripts it is sent with the form.
    """
    tiers = sheet.body.get("tiers") or ()
    chosen = frozenset(vm for tier in tiers for vm in tier.get("vms") or ())
    choices, all_of_them = free_vms(application, chosen)
    if all_of_them:
        return Look(choices={_PICKED: choices})
    paths = (f"tiers[{place}].vms" for place in range(len(tiers)))
    searched = {path: text for path in paths if (text := _search_of(path))}
    found = {path: free_vms(application, chosen, text)[0] for path, text in searched.items()}
    listed = url_for("web.pick_free_vms", application=application)
    return Look(choices={_PICKED: choices, **found}, listed={_PICKED: listed}, searched=searched)


def _search_of(path: str) -> str:
    """What was entered in the search beside a list of boxes."""
    return request.form.get(f"find {path}", "").strip()[: rest.LONGEST_SEARCH]


@web.post("/forms/pick")
@allow(OPERATOR)
def pick_free_vms() -> Response:
    """The boxes of VMs that may serve an application: those ticked in a ``field``, and those that its search finds."""
    path = request.args.get("field", "")
    chosen, text = request.form.getlist(path), _search_of(path)
    choices, _ = free_vms(request.args.get("application"), frozenset(chosen), text)
    boxes = Input(path, "", "", "many", tuple(chosen), choices=choices, listed=request.path, search=text)
    return page("picks.html", input=boxes)


def free_vms(application: str | None, chosen: Collection[str], search: str = "") -> tuple[Choices, bool]:
    """VMs that may serve the application, with words, and whether these are all.

    First those that are ``chosen``, then those of the application, then as many as a page has of those that serve no
    other one, both with ``search`` in their names.
    """
    own = list(rest.every("/vms", application=application)) if application else []
    free = rest.get("/vms", serving=False, search=search or None, limit=PICKED_VMS)
    found = {vm["name"]: vm for vm in free["items"]}
    rows = {vm["name"]: vm for vm in own if vm["name"] in chosen or search.lower() in vm["name"].lower()} | found
    unseen = [name for name in sorted(chosen) if name not in rows]
    if len(unseen) > PICKED_VMS:  # rather than to ask for each
        rows |= {vm["name"]: vm for vm in rest.every("/vms", serving=False) if vm["name"] in chosen}
    else:
        rows |= {name: vm for name in unseen if (vm := registered_vm(name)) is not None}
    rows = {name: vm for name, vm in rows.items() if vm["application"] in {None, application}}
    first, then = [name for name in rows if name in chosen], [name for name in rows if name not in chosen]
    choices = tuple((name, _in_words(rows[name])) for name in (*sorted(first), *sorted(then)))
    return choices, free["next"] is None and not search


def registered_vm(name: str) -> Json | None:
    """A VM as registered; None: there is none."""
    try:
        vm: Json = rest.get(rest.at("vms", name))
    except RequestRefused as refused:
        if refused.status in {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}:
            return None
        raise
    return vm


def _in_words(vm: Json) -> str:
    return f"{vm['name']} ({vm['class']}{', on ' + vm['status_host'] if vm['status_host'] else ''})"
