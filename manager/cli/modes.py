"""How far Equipoise may go on a host, for one VM, and with settings that somebody else changed."""

from __future__ import annotations

import time
from typing import Any

import click

from manager.api.schemas import HostIn, VmIn
from manager.cli.offline import release_offline
from manager.cli.options import CLIENT_SETTINGS, Failure, OnePage, connect, with_settings
from manager.client import ManagerClient
from manager.errors import ManagerUnavailable, SettingsError
from manager.settings import Settings

_WAIT_S = 60

_RELEASE_EPILOG = """
WHAT IT DOES
  Sets the host's mode, or with --vm that VM's, to `released` and waits until the agent has put every setting back to
  the value it had before Equipoise changed it. Settings that somebody else changed since are left as they are. It
  stays released, also across restarts, until `equipoise enforce`. When no agent runs on this machine, the journal is
  used directly; that needs root but neither the manager nor libvirtd. Doing it twice does no harm.

EXAMPLES
  equipoise release
  equipoise release --vm shop-cache
  equipoise release --host kvm7
"""


@click.command(cls=OnePage, epilog=_RELEASE_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name", "root_dir")
@click.option("--host", default="", metavar="NAME", help="Release this host. [default: this machine]")
@click.option("--vm", default="", metavar="NAME", help="Release only this VM, wherever it runs.")
def release(settings: Settings, host: str, vm: str) -> None:
    """Put every changed setting of a host, or of one VM, back."""
    name = host or settings.text("host_name")
    outcome = release_offline(settings, vm) if name == settings.text("host_name") else None
    try:
        client = connect(settings)
        seen = None if vm else _set_mode(client, name, "released")
        if vm:
            _set_vm_mode(client, vm, "released")
    except (
        ManagerUnavailable,
        SettingsError,
    ) as error:  # also without a token: the host itself may be released already
        if outcome is None:
            hint = "; stopping the agent puts everything back, too: `systemctl stop equipoise-agent`, or SIGTERM"
            raise Failure(f"{error}{hint}") from error
        click.echo(f"{outcome} (the mode that the manager keeps is unchanged: {error})")
        return
    if outcome is None:
        outcome = f"{vm or name}: released, every setting is back to its original"
        if seen is None:
            _wait_for_vm(client, vm)
        else:
            _wait_for_mode(client, name, "released", seen)
    click.echo(outcome)


_MODE_EPILOG = """
MODES
  enforce    settings are changed
  observe    the whole loop runs and records what it would do, nothing is written; what was changed is put back first
  released   nothing is done; what was changed is put back first (`equipoise release`)

  The most cautious of a host's, an application's and a VM's mode holds.
"""


@click.command(cls=OnePage, epilog=_MODE_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name")
@click.option("--host", default="", metavar="NAME", help="The host. [default: this machine]")
@click.option("--vm", default="", metavar="NAME", help="Only this VM, which then follows its application and host.")
def enforce(settings: Settings, host: str, vm: str) -> None:
    """Let Equipoise change settings on a host, or of one VM again."""
    _switch(settings, host, vm, "enforce")


@click.command(cls=OnePage, epilog=_MODE_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name")
@click.option("--host", default="", metavar="NAME", help="The host. [default: this machine]")
@click.option("--vm", default="", metavar="NAME", help="Only this VM.")
def observe(settings: Settings, host: str, vm: str) -> None:
    """Run the whole loop on a host, or for one VM, without writing anything."""
    _switch(settings, host, vm, "observe")


_ADOPT_EPILOG = """
WHAT IT DOES
  When somebody else changes a setting that Equipoise drives (virsh, another tool), the agent gives that setting up
  within a tick, says so, and never writes it again. This command takes such settings back: the value found there
  counts as the original from now on, and is what `equipoise release` puts back. Settings that were never given up are
  not concerned.

EXAMPLES
  equipoise status                what is marked `foreign` was given up
  equipoise adopt --vm shop-cache
  equipoise adopt                 all VMs of this host, and its interrupts
"""


@click.command(cls=OnePage, epilog=_ADOPT_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name")
@click.option("--host", default="", metavar="NAME", help="The host. [default: this machine]")
@click.option("--vm", default="", metavar="NAME", help="Only this VM. [default: the host and all its VMs]")
def adopt(settings: Settings, host: str, vm: str) -> None:
    """Take settings back that somebody else changed."""
    client = connect(settings)
    name = host or settings.text("host_name")
    names = [vm] if vm else [one["name"] for one in client.items("/vms", host=name) if _foreign(one)]
    if not vm:
        client.request("POST", f"/hosts/{name}/adopt")
    for one in names:
        client.request("POST", f"/vms/{one}/adopt")
    click.echo(f"taken back at the agent's next intervals: {', '.join(names) or 'no VM had settings given up'}")


def _foreign(vm: dict[str, Any]) -> bool:
    return vm["status"] is not None and any(knob["foreign"] for knob in vm["status"]["knobs"])


def _switch(settings: Settings, host: str, vm: str, mode: str) -> None:
    client = connect(settings)
    if vm:
        _set_vm_mode(client, vm, None if mode == "enforce" else mode)
        if mode != "enforce":
            _wait_for_vm(client, vm)
        click.echo(f"{vm}: {mode}")
        return
    name = host or settings.text("host_name")
    _wait_for_mode(client, name, mode, _set_mode(client, name, mode))
    click.echo(f"{name}: {mode}")


def _set_mode(client: ManagerClient, name: str, mode: str) -> int:
    """Set a host's mode; returns the number of the last tick before."""
    host = client.get(f"/hosts/{name}")
    body = {field: host[field] for field in HostIn.model_fields} | {"mode": mode}
    client.request("PUT", f"/hosts/{name}", body=body)
    return int(host["tick"]["number"]) if host["tick"] else 0


def _set_vm_mode(client: ManagerClient, name: str, mode: str | None) -> None:
    vm = client.get(f"/vms/{name}")
    names = [field.alias or key for key, field in VmIn.model_fields.items()]
    client.request("PUT", f"/vms/{name}", body={field: vm[field] for field in names} | {"mode": mode})


def _wait_for_mode(client: ManagerClient, name: str, mode: str, tick_before: int) -> None:
    """Wait until the agent reports a tick in that mode, and nothing changed by us where the mode says so."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        tick = client.get(f"/hosts/{name}")["tick"]
        done = tick and tick["number"] != tick_before and tick["mode"] == mode
        if done and (mode == "enforce" or tick["owned_knobs"] == 0):
            return
        time.sleep(0.2)
    raise _not_carried_out(name)


def _wait_for_vm(client: ManagerClient, name: str) -> None:
    """Wait until no setting of a VM is reported as changed by us."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        status = client.get(f"/vms/{name}")["status"]
        if status is None or not any(knob["owned"] for knob in status["knobs"]):
            return
        time.sleep(0.2)
    raise _not_carried_out(name)


def _not_carried_out(name: str) -> Failure:
    return Failure(
        f"{name}: the mode is set, but within {_WAIT_S} s the agent did not report having carried it out; see"
        " `equipoise status` and the agent's log"
    )
