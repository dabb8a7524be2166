"""`equipoise watch`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from typing import Any

import click

from manager.cli.options import CLIENT_SETTINGS, Failure, ManPage, NumberRange, connect, json_option, with_settings
from manager.control.watching import application_body, application_names, baseline_ms, suggested_target_ms
from manager.errors import ManagerRefused, ManagerUnavailable
from manager.model.fields import NAME_PATTERN
from manager.model.numbers import milliseconds
from manager.model.registration import VmClass
from manager.model.traffic import MOST_SERVICES
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import output

_EPILOG = """
WHAT IT DOES
  Registers an application that watches the service at PORT of a VM: named after the VM, with one tier, an SLA of its
  p95, and a tap source, which measures from the packets at the VM's tap; nothing is needed in the guest. It is in mode
  observe: nothing is written for it. VM is a registered one, or the name of a running domain, which is registered as
  critical.

  Without --p95-ms the target is three times the lowest p95 of half a minute that the agent measured since it started,
  or before it had 100 response times in one, three times that of the last minute, rounded up to 1, 2, 5, 10, 20, 25,
  50, 100 ms and so on; set what your users need. It prints what was registered and how to undo it.

  A port at which the agent has seen no service needs --p95-ms; a line says that there is no data yet.

EXAMPLES
  equipoise watch shop-web:80
  equipoise watch shop-web --tap 80                       the same
  equipoise watch shop-cache:11211 --p95-ms 2
  equipoise watch shop-web:80 --dry-run --json
"""
_PORTS = 65_535


def _vm_port(service: str, tap_port: int | None) -> tuple[str, int]:
    """A VM and a port of it, which either of the two names. Raises BadParameter and UsageError."""
    if tap_port is not None and ":" in service:
        raise click.UsageError("name the port once: VM:PORT, or VM --tap PORT")
    vm, _, port = (service if tap_port is None else f"{service}:{tap_port}").rpartition(":")
    if re.fullmatch(NAME_PATTERN, vm) and re.fullmatch("[0-9]{1,5}", port) and 1 <= int(port) <= _PORTS:
        return vm, int(port)
    text = f"{service!r} is refused; use the name of a VM and a port, 1 to {_PORTS}: shop-web:80, or shop-web --tap 80"
    raise click.BadParameter(text, param_hint="VM[:PORT]")


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("service", metavar="VM[:PORT]")
@click.option(
    "--tap",
    "tap_port",
    type=click.IntRange(1, _PORTS),
    metavar="PORT",
    help=f"The port to measure at the VM's tap, 1 to {_PORTS}; the same as VM:PORT.",
)
@click.option(
    "--p95-ms",
    type=NumberRange(0, 100_000, min_open=True),
    metavar="MS",
    help="Target of the SLA: the p95 of response times, above 0 to 100000. [default: three times the measured p95]",
)
@click.option("--dry-run", is_flag=True, help="Show what would be registered.")
@json_option
def watch(
    settings: Settings, service: str, tap_port: int | None, p95_ms: float | None, dry_run: bool, as_json: bool
) -> None:
    """Watch a service that was seen in a VM: register an application with an SLA and a tap source."""
    vm, port = _vm_port(service, tap_port)
    with closing(connect(settings)) as client:
        registered = _registered(client, vm)
        seen, unseen = _seen(client, _domain(client, vm, registered), port, needed=p95_ms is None)
        target_ms = p95_ms if p95_ms is not None else suggested_target_ms(baseline_ms(seen) or 0.0)
        taken = [application["name"] for application in client.items("/applications")]
        name, tier = application_names(vm, seen.get("protocol", ""), taken)
        body = application_body(vm, port, tier, target_ms)
        if not dry_run:
            _register(client, None if registered else vm, name, body)
    url = settings.text("manager_url").rstrip("/")
    undo = f"DELETE {url}/api/v1/applications/{name}, or {url}/registered/applications/{name}/delete in a browser"
    is_registered = "would be" if dry_run else "is"
    lines = [] if registered else [f"VM {vm} {is_registered} registered: critical; /vms/{vm} likewise undoes that"]
    lines += [
        f"application {name} {is_registered} registered: tier {tier} with VM {vm},"
        f" p95 <= {milliseconds(target_ms)}, measured at the tap, port {port}; mode observe"
    ]
    if p95_ms is None:
        lines.append(f"target: three times {_baseline(seen)}, rounded up; set what your users need")
    lines += [f"no data yet: {unseen}"] if unseen else []
    if registered and registered["class"] == VmClass.BATCH:
        lines.append(f"VM {vm} is registered as batch: it is measured, but not protected")
    shown = {"application": name, "dry_run": dry_run, "registration": body, "measured": seen or None, "undo": undo}
    output(as_json, shown | {"not_seen": unseen}, *lines, *([] if dry_run else [f"undo: {undo}"]))


def _baseline(seen: Mapping[str, Any]) -> str:
    """Where a target came from."""
    if seen.get("quiet_p95_ms") is not None:
        return f"the lowest p95 of half a minute so far, {milliseconds(seen['quiet_p95_ms'])}"
    return (
        f"the measured p95, {milliseconds(seen['p95_ms'])} over the last {seen['window_s']:.0f} s"
        f" at {seen['rate_rps']:g} req/s"
    )


def _registered(client: ManagerClient, vm: str) -> dict[str, Any]:
    """A VM that serves no application yet; empty: there is none of that name. Raises Failure."""
    try:
        registered: dict[str, Any] = client.get(f"/vms/{vm}")
    except ManagerRefused as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return {}
    if registered["application"] is not None:
        raise Failure(f"VM {vm} serves application {registered['application']} already: add a tap source to that")
    return registered


def _domain(client: ManagerClient, vm: str, registered: Mapping[str, Any]) -> dict[str, Any]:
    """The running domain that is meant, as reported by its agent. Raises Failure.

    Where several are, those of silent hosts do not count: what they reported last may run elsewhere since.
    """
    uuid, name = registered.get("libvirt_uuid"), registered.get("libvirt_name") or vm
    host = registered.get("status_host") or registered.get("host")
    domains: list[dict[str, Any]] = [
        domain
        for domain in client.items("/domains")
        if (domain["libvirt_uuid"] == uuid if uuid else domain["libvirt_name"] == name)
        and host in {None, domain["host"]}
        and domain["registered_as"] in {None, vm}
    ]
    if len(domains) > 1:
        reporting = {each["name"] for each in client.items("/hosts", reporting="true")}
        domains = [domain for domain in domains if domain["host"] in reporting] or domains
    if len(domains) == 1:
        return domains[0]
    if domains:
        hosts = ", ".join(sorted(domain["host"] for domain in domains))
        raise Failure(f"domains named {name} run on hosts {hosts}: register the one that is meant as VM {vm} first")
    unknown = "" if registered else f"there is no VM named {vm!r}, and "
    raise Failure(f"{unknown}no agent reports that {'VM' if registered else 'domain'} {vm} runs")


def _register(client: ManagerClient, vm: str | None, application: str, body: Mapping[str, Any]) -> None:
    """The application, and before that the VM, if one is given: both or none."""
    new = {"If-None-Match": "*"}
    if vm is not None:
        client.request("PUT", f"/vms/{vm}", body={"class": VmClass.CRITICAL.value}, headers=new)
    try:
        client.request("PUT", f"/applications/{application}", body=body, headers=new)
    except ManagerUnavailable:
        if vm is not None:
            client.request("DELETE", f"/vms/{vm}", headers={"If-Match": "*"})
        raise


def _seen(
    client: ManagerClient, domain: Mapping[str, Any], port: int, *, needed: bool
) -> tuple[dict[str, Any], str | None]:
    """What the agent reported of the service, and why that is without response times. Raises Failure.

    ``needed``: its p95 is needed.
    """
    answer = client.get(f"/hosts/{domain['host']}/services", limit=str(MOST_SERVICES))
    of_vm = [each for each in answer["items"] if each["libvirt_uuid"] == domain["libvirt_uuid"]]
    seen: dict[str, Any] = next((each for each in of_vm if each["port"] == port), {})
    if baseline_ms(seen) is not None:
        return seen, None
    problem = f": {answer['problem']}" if answer["problem"] else ""
    why = _why(domain["host"], domain["libvirt_name"], port, seen, of_vm) + problem
    if needed:
        raise Failure(f"{why}; --p95-ms sets a target without it")
    return seen, why


def _why(host: str, vm: str, port: int, seen: Mapping[str, Any], of_vm: Sequence[Mapping[str, Any]]) -> str:
    """Why no p95 of a service is known."""
    if seen:
        return f"no response time of port {port} of VM {vm} was measured in the last {seen['window_s']:.0f} s"
    ports = [str(each["port"]) for each in of_vm]
    others = f"; seen are {', '.join(ports)}" if ports else ""
    return f"the agent of host {host} has seen no service at port {port} of VM {vm}{others}"
