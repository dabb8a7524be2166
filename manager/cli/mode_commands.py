"""How far Equipoise may go on a host or for one VM, and which agent serves a host: release, enforce, observe, adopt."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from manager.cli.costs_command import costs
from manager.cli.machine import loop_settings
from manager.cli.options import (
    CLIENT_SETTINGS,
    JOURNAL_FILE,
    SIMULATED_FILE,
    Failure,
    ManPage,
    ManPageGroup,
    ObjectName,
    connect,
    lock_path,
    with_settings,
)
from manager.errors import AlreadyRunning, EquipoiseError, ManagerUnavailable, SettingsError
from manager.host.kernel_host import KernelHost
from manager.host.own_group import beside_vms
from manager.host.registry import HostPaths
from manager.loop.journal import Journal
from manager.loop.lock import HostLock
from manager.loop.replicated import RESERVE_FILE, Reserve, replica_of
from manager.loop.tick import ControlLoop
from manager.model.records import OutcomeKind
from manager.protocol.client import ManagerClient
from manager.protocol.headers import REVISION_HEADER
from manager.settings import Settings
from manager.terminal import say

_WAIT_S = 60

_RELEASE_EPILOG = """
WHAT IT DOES
  Sets the mode of the host, or with --vm of that VM, to `released` and waits until the agent has restored every setting
  to its original. Externally modified settings are left alone. The mode lasts across restarts, until `equipoise
  enforce`. Without an agent on this machine the settings are restored from the journal; that needs root, but neither
  the manager nor libvirtd. It can be repeated. With --local it does only the latter, and an agent that starts later
  resumes control; the agent's systemd unit uses this to clean up.

EXAMPLES
  equipoise release
  equipoise release --vm shop-cache
  equipoise release --host kvm7
"""

_MODE_EPILOG = """
MODES
  enforce    settings are changed
  observe    decisions are made and recorded but not written; changed settings are restored first
  released   nothing is controlled; changed settings are restored first (`equipoise release`)

  Of the modes of a host, an application and a VM, the most cautious applies.
"""

_ADOPT_EPILOG = """
WHAT IT DOES
  When another tool, such as virsh, changes a setting that Equipoise controls, the agent reports it within a tick and
  leaves the setting alone. This command adopts such settings: their present value becomes the original, which
  `equipoise release` restores. Other settings are not affected.

EXAMPLES
  equipoise status                lists what is `externally modified`
  equipoise adopt --vm shop-cache
  equipoise adopt                 all VMs of this host, and its interrupts
"""

_REPLACE_EPILOG = """
WHAT IT DOES
  When a second agent reports under the name of a host, the manager refuses it and records an event `second-agent`. This
  command lets the agent that was refused last serve the host, and refuses the other. It is not needed where the first
  agent is down: the second takes over after `silent_intervals`.

EXAMPLES
  equipoise host replace kvm7
"""


def _for_host(epilog: str, host_help: str, vm_help: str, *settings: str) -> Callable[[Any], click.Command]:
    """A command with the options --host and --vm."""

    def decorate(function: Any) -> click.Command:
        function = click.option("--vm", type=ObjectName(), default="", metavar="NAME", help=vm_help)(function)
        host_option = click.option(
            "--host", type=ObjectName(), default="", metavar="NAME", help=f"{host_help} [default: this machine]"
        )
        function = with_settings(*CLIENT_SETTINGS, "host_name", *settings)(host_option(function))
        return click.command(cls=ManPage, epilog=epilog)(function)

    return decorate


@_for_host(_RELEASE_EPILOG, "Release this host.", "Release only this VM, wherever it runs.", "root_dir")
@click.option("--local", is_flag=True, help="Only restore what this machine's journal holds; the mode stays.")
def release(settings: Settings, host: str, vm: str, local: bool) -> None:
    """Restore every changed setting of a host, or of one VM."""
    own = settings.text("host_name")
    name = host or own
    if local and name != own:
        raise click.UsageError(f"--local is about this machine, {own}: it does not go with --host {name}")
    restored = release_offline(settings, vm) if name == own else None
    if local:
        if restored is None:
            raise Failure("an agent runs here, or simulates a host: stop it, which restores everything, too")
        say(restored)
        return
    try:
        client = connect(settings)
        _set_mode(client, name, vm, "released")
    except (ManagerUnavailable, SettingsError) as error:  # a missing token, too, does not undo what was restored
        if restored is None:
            hint = "; stopping the agent restores everything, too: `systemctl stop equipoise-agent`, or SIGTERM"
            raise Failure(f"{error}{hint}") from error
        say(f"{restored} (the mode in the manager is unchanged: {error})")
        return
    if restored is None:
        _wait(client, name, vm, restored=True)
    say(restored or f"{vm or name}: released, every setting is restored")


@_for_host(_MODE_EPILOG, "The host.", "Only this VM, which then follows its application and host.")
def enforce(settings: Settings, host: str, vm: str) -> None:
    """Let Equipoise change settings on a host, or of one VM again."""
    _switch(settings, host, vm, "enforce")


@_for_host(_MODE_EPILOG, "The host.", "Only this VM.")
def observe(settings: Settings, host: str, vm: str) -> None:
    """Decide on a host, or for one VM, without writing anything."""
    _switch(settings, host, vm, "observe")


@_for_host(_ADOPT_EPILOG, "The host.", "Only this VM. [default: the host and all its VMs]")
def adopt(settings: Settings, host: str, vm: str) -> None:
    """Control externally modified settings again."""
    client = connect(settings)
    name = host or settings.text("host_name")
    names = [vm] if vm else [row["name"] for row in client.items("/vms", host=name) if _any_knob(row, "external")]
    if not vm:
        client.request("POST", f"/hosts/{name}/adopt")
    for modified in names:
        client.request("POST", f"/vms/{modified}/adopt")
    say(f"adopted at the agent's next ticks: {', '.join(names) or 'no VM has externally modified settings'}")


@click.group(cls=ManPageGroup)
def host() -> None:
    """Manage hosts: which agent serves one, and what it costs."""


host.add_command(costs)


@host.command(epilog=_REPLACE_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("name", type=ObjectName())
def replace(settings: Settings, name: str) -> None:
    """Let the agent that was refused serve the host NAME."""
    answer = connect(settings).change("POST", f"/hosts/{name}/replace-agent")
    say(f"{name} is served by agent {answer['agent_instance']}")


def _any_knob(vm: dict[str, Any], state: str) -> bool:
    return vm["status"] is not None and any(knob[state] for knob in vm["status"]["knobs"])


def _switch(settings: Settings, host: str, vm: str, mode: str) -> None:
    client = connect(settings)
    name = host or settings.text("host_name")
    _set_mode(client, name, vm, None if vm and mode == "enforce" else mode)
    _wait(client, name, vm, restored=mode != "enforce")
    say(f"{vm or name}: {mode}")


def _set_mode(client: ManagerClient, host: str, vm: str, mode: str | None) -> None:
    client.request("PATCH", f"/vms/{vm}" if vm else f"/hosts/{host}", body={"mode": mode})


def _wait(client: ManagerClient, host: str, vm: str, *, restored: bool) -> None:
    """Wait until the agent of the host, or of the VM's host, has acted on the present registrations.

    ``restored``: and until no setting is changed by Equipoise. Returns at once for a VM that no agent sees running.
    Raises Failure when it takes too long.
    """
    if vm:
        host = client.get(f"/vms/{vm}")["status_host"]
        if host is None:
            return
    number = int(client.request("GET", f"/hosts/{host}/assignment").headers[REVISION_HEADER])
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        tick = client.get(f"/hosts/{host}")["tick"]
        # The revision is null while an agent that was just started acts on its stored assignment.
        if tick and (tick["assignment_revision"] or 0) >= number and not (restored and _changed(client, tick, vm)):
            return
        time.sleep(0.2)
    raise Failure(
        f"{vm or host}: the mode is set, but the agent did not report within {_WAIT_S} s that it is in force; see"
        " `equipoise status` and the agent's log"
    )


def _changed(client: ManagerClient, tick: dict[str, Any], vm: str) -> bool:
    """Whether a setting of the VM, or without one of the host, is changed by Equipoise."""
    return _any_knob(client.get(f"/vms/{vm}"), "owned") if vm else bool(tick["owned_knobs"])


def release_offline(settings: Settings, vm: str = "") -> str | None:
    """Restore everything, or one VM's settings, from journal and kernel alone; returns what was done.

    None when an agent runs here or simulates a host: it must do it. Raises EquipoiseError when something cannot be
    restored, or the journal or the host cannot be read.
    """
    if (settings.state_dir / SIMULATED_FILE).exists():
        return None
    try:
        lock = HostLock(lock_path(settings))
    except AlreadyRunning:
        return None
    path, paths = settings.state_dir / JOURNAL_FILE, HostPaths(Path(settings.text("root_dir")))
    with closing(lock), beside_vms(paths):
        if not (path.exists() or replica_of(path).exists()):
            return f"nothing to restore: there is no journal {path}"
        host = KernelHost(paths, None)
        reserve = path.with_name(RESERVE_FILE)
        journal = Journal(path, host.boot_id, Reserve(reserve) if reserve.exists() else None)
        loop = ControlLoop(host, journal, {}, loop_settings(settings))
        result = loop.release("VM released" if vm else "host released", vm or None)
        outcomes = [*result.outcomes, *result.cache.outcomes]
        reasons = [outcome.detail for outcome in outcomes if outcome.kind is OutcomeKind.FAILED]
        reasons += [problem.text for problem in result.problems]
        if reasons:
            raise EquipoiseError(f"not everything could be restored: {'; '.join(reasons)}")
        damage = "".join(f"; {damaged.text}" for damaged in journal.take_damages())
        kinds = [outcome.kind for outcome in outcomes]
        external = kinds.count(OutcomeKind.EXTERNAL)
        note = f", {external} externally modified and left alone" if external else ""
        journal.close()
        return f"{kinds.count(OutcomeKind.RESTORED)} settings restored{note}{damage}"
