"""The pages of hosts: a list of them, and of each its pCPUs, VMs, health, and what its kernel offers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response

from manager.api.auth import VIEWER, allow
from manager.model.cpus import parse_cpus
from webui.cache_view import memory_words, traffic_lines
from webui.cpu_map import USES, draw_map
from webui.fleet_pages import cpu_split
from webui.host_view import Contact, cache_lines, controls, grouped, heard, host_health, vm_lines
from webui.inside import RequestRefused
from webui.site import Site, csv_file, page

CSV_STEPS = 2000
_COLUMNS = ("start", "ticks", "host_cpu_share", "critical_share", "batch_share", "other_share")


def add_hosts(web: Blueprint, site: Site) -> None:
    """The list of hosts, and the page of one."""

    @web.get("/hosts")
    @allow(VIEWER)
    def hosts() -> Response:
        """All hosts, those that are not heard of first."""
        rows = [
            (
                host,
                heard(host, site.now_s()),
                host_health(host, site.now_s(), site.interval_s),
                host["tick"] and cpu_split(host["tick"]),
            )
            for host in site.api.every("/hosts")
        ]
        rows.sort(key=lambda row: (row[1].contact is not Contact.SILENT, row[0]["name"]))
        return page("hosts.html", rows=rows)

    @web.get("/hosts/<name>")
    @allow(VIEWER)
    def host(name: str) -> Response:
        """One host: 404 where there is none."""
        path = f"/hosts/{quote(name, safe='')}"
        told = site.api.get(path)
        vms = list(site.api.every("/vms", host=name))
        capabilities, findings = told["capabilities"], _findings(site, path)
        online = parse_cpus(capabilities["online_cpus"]) if capabilities else frozenset[int]()
        lines = vm_lines(vms, name, online)
        tick = told["tick"] or {}
        return page(
            "host.html",
            host=told,
            heard=heard(told, site.now_s()),
            health=host_health(told, site.now_s(), site.interval_s),
            split=told["tick"] and cpu_split(told["tick"]),
            lines=lines,
            unregistered=[one["libvirt_name"] for one in site.api.every(f"{path}/domains", registered=False)],
            map=capabilities
            and draw_map(
                capabilities,
                told["placement"]["reserved_cpus"],
                [line.vm for line in lines if line.running],
                {one["vm"]: one["used"] for one in tick.get("busy_vcpus", ())},
            ),
            uses=USES,
            fences=told["placement"]["batch"],
            controls=controls(lines, findings and findings["findings"], tick.get("warp"), tick.get("cache")),
            cache=tick.get("cache"),
            cache_lines=cache_lines(tick.get("cache")),
            traffic=traffic_lines(tick.get("cache")),
            memories=memory_words(tick.get("cache")),
            findings=findings,
            groups=grouped(findings["findings"]) if findings else [],
        )

    @web.get("/hosts/<name>/history.csv")
    @allow(VIEWER)
    def host_csv(name: str) -> Response:
        """The last hour of a host as a file."""
        history = site.api.get(f"/hosts/{quote(name, safe='')}/history", points=CSV_STEPS)
        return csv_file(history["host"], _COLUMNS, ([step[column] for column in _COLUMNS] for step in history["steps"]))


def _findings(site: Site, path: str) -> Any:
    """What the host's doctor found; None where the agent has not told."""
    try:
        return site.api.get(f"{path}/findings")
    except RequestRefused as refused:
        if refused.status == 404:
            return None
        raise
