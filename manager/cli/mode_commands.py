"""How far Equipoise may go on a host, for one VM, and with externally modified settings."""

from __future__ import annotations

import time
from typing import Any

import click

from manager.cli.offline import release_offline
from manager.cli.options import CLIENT_SETTINGS, Failure, OnePage, connect, with_settings
from manager.errors import ManagerUnavailable, SettingsError
from manager.protocol.client import ManagerClient
from manager.protocol.headers import REVISION_HEADER
from manager.settings import Settings
from manager.terminal import say

_WAIT_S = 60

_RELEASE_EPILOG = """
WHAT IT DOES
  Sets the host's mode, or with --vm that VM's, to `released` and waits until the agent has put every setting back to
  the value it had before Equipoise changed it. Externally modified settings are left as they are. It
  stays released, also across restarts, until `equipoise enforce`. When no agent runs on this machine, the journal is
  used directly; that needs root but neither the manager nor libvirtd. Doing it twice does no harm. With --local only
  that is done, and an agent that starts later goes on: this is how its unit of systemd cleans up after it.

EXAMPLES
  equipoise release
  equipoise release --vm shop-cache
  equipoise release --host kvm7
"""


@click.command(cls=OnePage, epilog=_RELEASE_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name", "root_dir")
@click.option("--host", default="", metavar="NAME", help="Release this host. [default: this machine]")
@click.option("--vm", default="", metavar="NAME", help="Release only this VM, wherever it runs.")
@click.option("--local", is_flag=True, help="Only restore what this machine's journal holds; the mode stays.")
def release(settings: Settings, host: str, vm: str, local: bool) -> None:
    """Restore every changed setting of a host, or of one VM."""
    if local:
        restored = release_offline(settings, vm)
        if restored is None:
            raise Failure("an agent runs here, or simulates a host: stop it, which restores everything, too")
        say(restored)
        return
    name = host or settings.text("host_name")
    outcome = release_offline(settings, vm) if name == settings.text("host_name") else None
    try:
        client = connect(settings)
        _set_mode(client, name, vm, "released")
    except (
        ManagerUnavailable,
        SettingsError,
    ) as error:  # also without a token: the host itself may be released already
        if outcome is None:
            hint = "; stopping the agent restores everything, too: `systemctl stop equipoise-agent`, or SIGTERM"
            raise Failure(f"{error}{hint}") from error
        say(f"{outcome} (the mode that the manager keeps is unchanged: {error})")
        return
    if outcome is None:
        outcome = f"{vm or name}: released, every setting is back to its original"
        _wait(client, name, vm, restored=True)
    say(outcome)


_MODE_EPILOG = """
MODES
  enforce    settings are changed
  observe    the whole loop runs and records what it would do, nothing is written; changed settings are restored first
  released   nothing is done; changed settings are restored first (`equipoise release`)

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
  When another tool, such as virsh, changes a setting that Equipoise controls, the agent reports it within a tick and
  leaves the setting alone. This command adopts such settings: the value they hold now becomes the original, which
  `equipoise release` restores. Settings that no other tool changed are not affected.

EXAMPLES
  equipoise status                what is marked `externally modified` is left alone
  equipoise adopt --vm shop-cache
  equipoise adopt                 all VMs of this host, and its interrupts
"""


@click.command(cls=OnePage, epilog=_ADOPT_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name")
@click.option("--host", default="", metavar="NAME", help="The host. [default: this machine]")
@click.option("--vm", default="", metavar="NAME", help="Only this VM. [default: the host and all its VMs]")
def adopt(settings: Settings, host: str, vm: str) -> None:
    """Control externally modified settings again."""
    client = connect(settings)
    name = host or settings.text("host_name")
    names = [vm] if vm else [one["name"] for one in client.items("/vms", host=name) if _external(one)]
    if not vm:
        client.request("POST", f"/hosts/{name}/adopt")
    for one in names:
        client.request("POST", f"/vms/{one}/adopt")
    say(f"taken back at the agent's next intervals: {', '.join(names) or 'no VM has externally modified settings'}")


def _external(vm: dict[str, Any]) -> bool:
    return vm["status"] is not None and any(knob["external"] for knob in vm["status"]["knobs"])


def _switch(settings: Settings, host: str, vm: str, mode: str) -> None:
    client = connect(settings)
    name = host or settings.text("host_name")
    _set_mode(client, name, vm, None if vm and mode == "enforce" else mode)
    _wait(client, name, vm, restored=mode != "enforce")
    say(f"{vm or name}: {mode}")


def _set_mode(client: ManagerClient, host: str, vm: str, mode: str | None) -> None:
    """Set the mode of a VM, or without one of a host. Raises ManagerUnavailable."""
    client.request("PATCH", f"/vms/{vm}" if vm else f"/hosts/{host}", body={"mode": mode})


def _wait(client: ManagerClient, host: str, vm: str, *, restored: bool) -> None:
    """Wait until the agent of the host, or of the VM's, has acted on what is registered now.

    ``restored``: and until nothing is changed by us any more. A VM that no agent sees run is not waited for. Raises
    Failure when that takes too long.
    """
    if vm:
        host = client.get(f"/vms/{vm}")["status_host"]
        if host is None:
            return
    number = int(client.request("GET", f"/hosts/{host}/assignment").headers[REVISION_HEADER])
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        tick = client.get(f"/hosts/{host}")["tick"]
        # Null: an agent that was just started acts on what it remembers.
        if tick and (tick["assignment_revision"] or 0) >= number and not (restored and _changed(client, tick, vm)):
            return
        time.sleep(0.2)
    raise Failure(
        f"{vm or host}: the mode is set, but within {_WAIT_S} s the agent did not report having carried it out; see"
        " `equipoise status` and the agent's log"
    )


def _changed(client: ManagerClient, tick: dict[str, Any], vm: str) -> bool:
    """Whether any setting of the VM, or without one of the host that did this tick, is changed by us."""
    if not vm:
        return bool(tick["owned_knobs"])
    status = client.get(f"/vms/{vm}")["status"]
    return status is not None and any(knob["owned"] for knob in status["knobs"])
