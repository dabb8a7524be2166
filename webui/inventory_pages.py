"""What is registered: VMs, applications and hosts, and the VMs that run without being registered."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus

from flask import Blueprint, redirect, request, url_for
from werkzeug.wrappers import Response as AnyResponse

from manager.api.auth import OPERATOR, allow
from manager.api.queries import NamePath
from manager.protocol.registration_in import VmIn
from webui.editing_pages import KINDS, NOT_FOR_A_FORM
from webui.filled import check
from webui.inside import Json, RequestRefused
from webui.labels import label_of
from webui.site import Site, page

_MOST_ROWS = 200


@dataclass(frozen=True, slots=True)
class ListedRows:
    """Rows of a list, and how many more there are than a page shows."""

    rows: Sequence[Json]
    left_out: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A domain that runs unregistered, as it would be registered. ``key`` names it in the form."""

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


def add_registered(web: Blueprint, site: Site) -> None:
    """The page ``/registered``, and picking VMs from what the hosts report."""

    @web.get("/registered")
    @allow(OPERATOR)
    def registered() -> AnyResponse:
        """All that is registered; ``search`` is a part of a name."""
        search = request.args.get("search", "").strip()
        lists = {path: _search(site.api.every(f"/{path}"), search) for path in KINDS}
        done = _done(request.args, lists)
        return page("registered.html", lists=lists, search=search, done=done, picked="picked" in request.args)

    @web.route("/registered/pick", methods=["GET", "POST"])
    @allow(OPERATOR)
    def pick() -> AnyResponse:
        """Register some of the VMs that run, several at once."""
        names = {vm["name"] for vm in site.api.every("/vms")}
        found = candidates(list(site.api.every("/domains", registered=False)), names)
        status, saved = HTTPStatus.OK, 0
        if request.method == "POST":
            found, saved = register(site, found, request.form)
            if saved and not any(one.error for one in found):
                target = "register_first" if "first" in request.form else "registered"
                return redirect(url_for(f"web.{target}", picked=saved), HTTPStatus.SEE_OTHER)
            status = HTTPStatus.UNPROCESSABLE_ENTITY
        hosts = list(site.api.every("/hosts"))
        nothing = request.method == "POST" and not saved and not any(one.error for one in found)
        return page("pick.html", status, found=found, saved=saved, nothing=nothing, hosts=hosts)


def candidates(domains: Sequence[Json], taken: set[str]) -> list[Candidate]:
    """Domains with names that registrations may have and none has: a domain's own, if that may be."""
    taken = set(taken)
    names = [one["libvirt_name"] for one in domains]
    found: list[Candidate] = []
    for one in sorted(domains, key=lambda one: (one["libvirt_name"], one["host"])):
        same = names.count(one["libvirt_name"]) > 1  # on several hosts: only the UUID tells them apart
        base = re.sub(r"[^A-Za-z0-9._-]", "-", one["libvirt_name"]).lstrip("._-")[:50] or "vm"
        name, number = (f"{base}-{one['host']}"[:60] if same else base), 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name)
        key = f"{one['host']}/{one['libvirt_uuid']}"
        found.append(
            Candidate(len(found), key, one["host"], one["libvirt_name"], one["libvirt_uuid"], name, by_uuid=same)
        )
    return found


def register(site: Site, found: Sequence[Candidate], given: Mapping[str, str]) -> tuple[list[Candidate], int]:
    """Register those that were chosen: answers those that are left, with why, and how many are not."""
    left: list[Candidate] = []
    for one in found:
        asked = replace(
            one,
            name=given.get(f"name {one.key}", one.name).strip(),
            chosen=f"pick {one.key}" in given,
            vm_class=given.get(f"class {one.key}", ""),
        )
        error = _refusal(site, asked) if asked.chosen else ""
        if error or not asked.chosen:
            left.append(replace(asked, error=error))
    return left, len(found) - len(left)


def _refusal(site: Site, one: Candidate) -> str:
    """Register it; says why not, or nothing."""
    errors = check(NamePath, {"name": one.name}) | check(VmIn, one.body())
    if errors:
        return "; ".join(f"{label_of(path)}: {message}" for path, message in errors.items())
    try:
        site.api.call("PUT", KINDS["vms"].at(one.name), body=one.body(), new=True)
    except RequestRefused as refused:
        if refused.status in NOT_FOR_A_FORM:
            raise
        taken = refused.status == HTTPStatus.PRECONDITION_FAILED
        return f"there is a VM named {one.name!r} already" if taken else refused.detail
    return ""


def _search(all_: Iterable[Json], text: str) -> ListedRows:
    rows = [one for one in all_ if text.lower() in one["name"].lower()]
    return ListedRows(rows[:_MOST_ROWS], max(0, len(rows) - _MOST_ROWS))


def _done(given: Mapping[str, str], lists: Mapping[str, ListedRows]) -> Json | None:
    """What the page before did, told only as far as it is seen to be so: anybody can make a link to this page."""
    for how in ("saved", "deleted"):
        kind, name = KINDS.get(given.get(how, "")), given.get("name", "")
        if kind is not None:
            there = any(one["name"] == name for one in lists[kind.path].rows)
            if there == (how == "saved"):
                return {"what": kind.word, "name": name, "how": f"is {how}", "control": there}
    return None
