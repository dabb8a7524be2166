"""The page of a what-if: the last minutes of a host, replayed under another policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, request

from manager.api.auth import VIEWER, allow
from webui.host_view import Contact, heard
from webui.inside import Json, RequestRefused
from webui.site import FRAGMENT, Site, page

MINUTES = (5, 15, 30, 60)


def add_what_if(web: Blueprint, site: Site) -> None:
    """The form, and the estimate."""

    @web.get("/what-if")
    @allow(VIEWER)
    def what_if() -> Response:
        """The choice of host, policy and minutes; with all three, the estimate.

        Without a host one is proposed whose agent is heard of; if it can be, one on which ``application`` runs.
        """
        host, policy = request.args.get("host", ""), request.args.get("policy", "")
        minutes = request.args.get("minutes", str(MINUTES[-1]))
        estimate, refused = _estimate(site, host, policy, minutes) if host and policy else (None, None)
        whole = FRAGMENT not in request.headers
        hosts = list(site.api.every("/hosts")) if whole else []
        return page(
            "what_if.html",
            host=host or _proposed(site, hosts, request.args.get("application")),
            policy=policy,
            minutes=minutes,
            choices=MINUTES,
            estimate=estimate,
            refused=refused,
            hosts=[(one["name"], one["policy"]) for one in hosts],
            policies=list(site.api.every("/policies")) if whole else [],
        )


def _proposed(site: Site, hosts: Sequence[Json], application: str | None) -> str:
    """The host to begin with; empty where there is none."""
    vms = site.api.every("/vms", application=application) if hosts and application else ()
    runs = {vm["status_host"] for vm in vms}

    def last(one: Json) -> tuple[bool, bool]:
        return heard(one, site.now_s()).contact is not Contact.LIVE, one["name"] not in runs

    return min(hosts, key=last)["name"] if hosts else ""


def _estimate(site: Site, host: str, policy: str, minutes: str) -> tuple[Any, RequestRefused | None]:
    """The replay, or why there is none: shown in place of it, with the form to choose anew."""
    try:
        return site.api.get(f"/hosts/{quote(host, safe='')}/what-if", policy=policy, minutes=minutes), None
    except RequestRefused as refused:
        return None, refused
