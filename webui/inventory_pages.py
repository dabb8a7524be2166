"""What is registered: VMs, applications and hosts, and the VMs that run without being registered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from flask import redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.api.queries import NamePath
from manager.model.registration import VmIn
from webui import rest
from webui.editing_pages import KINDS
from webui.filled import Sheet, check
from webui.rest import Json, RequestRefused
from webui.site import page, web
from webui.words import label_of

_ROWS = 100
"""Of each kind on a page."""
_MOVED = 1000
"""So many are looked through for those that were picked: others may have started meanwhile."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A domain that runs unregistered, as it would be registered. ``key`` names it in the form.

    ``by_uuid``: another domain or VM has its name.
    """

    index: int
    key: str
    host: str
    libvirt_name: str
    libvirt_uuid: str
    name: str
    by_uuid: bool = False
    chosen: bool = False
    vm_class: str = ""
    error: str = ""

    def body(self) -> Json:
        """The body of its registration; the domain's name suffices where it is no other one's."""
        named = None if self.name == self.libvirt_name or self.by_uuid else self.libvirt_name
        body: Json = {"libvirt_name": named, "libvirt_uuid": self.libvirt_uuid if self.by_uuid else None}
        return body | ({"class": self.vm_class} if self.vm_class else {})


@dataclass(frozen=True, slots=True)
class Listed:
    """A part of the list of a kind: ``next`` is the ``after`` of the next part, None after the last one."""

    rows: Sequence[Json]
    after: str
    next: str | None


@web.get("/registered")
@allow(OPERATOR)
def registered() -> AnyResponse:
    """What is registered, in parts.

    ``search`` is a part of names; arguments named as kinds say where the parts of these begin.
    """
    search = request.args.get("search", "").strip()
    lists = {kind: _part(kind, search, request.args.get(kind, "")) for kind in KINDS}
    return page(
        "registered.html",
        lists=lists,
        search=search,
        done=_done(request.args),
        picked="picked" in request.args,
    )


def _part(kind: str, search: str, after: str) -> Listed:
    answer = rest.get(f"/{kind}", search=search or None, cursor=after or None, limit=_ROWS)
    return Listed(answer["items"], after, answer["next"])


@web.route("/registered/pick", methods=["GET", "POST"])
@allow(OPERATOR)
def pick() -> AnyResponse:
    """Register some of the VMs that run, several at once: those of a part of their list.

    ``search`` is a part of their libvirt names; ``after`` says where the part begins.
    """
    search, after = request.args.get("search", "").strip(), request.args.get("after", "")
    posted = request.method == "POST"
    asked = {"search": search or None, "cursor": after or None, "limit": _MOVED if posted else _ROWS}
    answer = rest.get("/domains", registered=False, **asked)
    rows = candidates(answer["items"])
    status, saved, nothing = HTTPStatus.OK, 0, False
    if posted:
        rows, saved = register(rows, request.form)
        rows = [row for row in rows if row.index < _ROWS or row.chosen]
        wrong = any(row.error for row in rows)
        if saved and not wrong:
            target = "register_first" if "first" in request.form else "registered"
            return redirect(url_for(f"web.{target}", picked=saved), HTTPStatus.SEE_OTHER)
        status, nothing = HTTPStatus.UNPROCESSABLE_ENTITY, not saved and not wrong
    shown = {"search": search, "after": after, "next": answer["next"], "reporting": bool(rows or _reports())}
    return page("pick.html", status, found=rows, saved=saved, nothing=nothing, **shown)


def _reports() -> bool:
    """Whether there is any host."""
    return bool(rest.get("/hosts", limit=1)["items"])


def candidates(domains: Sequence[Json]) -> list[Candidate]:
    """Domains, in the same order, with names that registrations may have: a domain's own, if that may be."""
    taken: set[str] = set()
    rows: list[Candidate] = []
    for domain in domains:
        host, libvirt_name, uuid = domain["host"], domain["libvirt_name"], domain["libvirt_uuid"]
        same = domain["name_shared"]
        base = re.sub(r"[^A-Za-z0-9._-]", "-", libvirt_name).lstrip("._-")[:50] or "vm"
        name, number = (f"{base}-{host}"[:60] if same else base), 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name)
        rows.append(Candidate(len(rows), f"{host}/{uuid}", host, libvirt_name, uuid, name, by_uuid=same))
    return rows


def register(rows: Sequence[Candidate], given: Mapping[str, str]) -> tuple[list[Candidate], int]:
    """Register those that were chosen: answers those that are left, with why, and how many are not."""
    left: list[Candidate] = []
    for row in rows:
        asked = replace(
            row,
            name=given.get(f"name {row.key}", row.name).strip(),
            chosen=f"pick {row.key}" in given,
            vm_class=given.get(f"class {row.key}", ""),
        )
        error = _refusal(asked) if asked.chosen else ""
        if error or not asked.chosen:
            left.append(replace(asked, error=error))
    return left, len(rows) - len(left)


def _refusal(row: Candidate) -> str:
    """Register it; says why not, or nothing."""
    sheet = Sheet(row.name, row.body())
    if sheet.invalid(check(NamePath, {"name": row.name}) | check(VmIn, sheet.body)):
        return "; ".join(f"{label_of(path)}: {message}" for path, message in sheet.errors.items())
    sheet.send("PUT", KINDS["vms"].at(row.name), body=sheet.body, new=True)
    taken = sheet.status == HTTPStatus.PRECONDITION_FAILED
    return f"there is a VM named {row.name!r} already" if taken else sheet.detail


def _done(given: Mapping[str, str]) -> Json | None:
    """What the page before did, told only as far as it is seen to be so: anybody can make a link to this page."""
    for how in ("saved", "deleted"):
        kind, name = KINDS.get(given.get(how, "")), given.get("name", "")
        if kind is not None:
            there = _is_registered(kind.at(name))
            if there == (how == "saved"):
                return {"what": kind.word, "name": name, "how": f"is {how}", "control": there}
    return None


def _is_registered(path: str) -> bool:
    try:
        rest.get(path)
    except RequestRefused as refused:
        if refused.status in {HTTPStatus.NOT_FOUND, HTTPStatus.UNPROCESSABLE_ENTITY}:
            return False
        raise
    return True
