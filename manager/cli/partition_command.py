"""`equipoise partition`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from manager.cli.options import CLIENT_SETTINGS, Failure, ManPage, connect, with_settings
from manager.host.batch_group import PARTITION
from manager.host.cgroup import cpu_controller, read_mounts
from manager.host.partition import Definition, Definitions, Partitioned
from manager.host.registry import CGROUP_V2, HostPaths
from manager.model.registration import VmClass
from manager.settings import Settings
from manager.terminal import say, say_json

_EPILOG = """
WHAT IT DOES
  Under systemd a running VM cannot be moved into the batch group (docs/concepts/placement.md): it has to start there.
  This command says where the batch VMs of this host start, and with --apply changes their definitions in libvirt, so
  that they start in the group: `<resource><partition>/machine/batch</partition></resource>`. Running VMs are not
  touched: the change counts when they are shut down and started again. --undo takes it back. VMs in another
  partition are left alone, and so are those without a lasting definition.

  On cgroup v1 it is not needed: the agent moves VMs while they run. It needs root, or access to libvirt.

EXAMPLES
  equipoise partition                    the batch VMs of this host, and what would change
  equipoise partition --apply
  equipoise partition --undo render-1    one of them, by the name of its domain
"""

_NOW = {
    Partitioned.DEFAULT: "starts outside the batch group",
    Partitioned.BATCH: "starts in the batch group",
    Partitioned.OTHER: "starts in {partition}, a partition of your own: left alone",
    Partitioned.TRANSIENT: "has no lasting definition: whoever starts it can put it into /machine/batch",
    Partitioned.ABSENT: "is no domain of this host",
}
_NOT_NEEDED = "this host has no cgroup v2: the agent moves VMs into the batch group while they run"


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS, "host_name", "libvirt_uri", "root_dir")
@click.argument("domains", nargs=-1, metavar="[DOMAIN]...")
@click.option("--apply", "apply_", is_flag=True, help="Let them start in the batch group from their next start on.")
@click.option("--undo", is_flag=True, help="Let them start where libvirt puts them by default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def partition(settings: Settings, domains: tuple[str, ...], apply_: bool, undo: bool, as_json: bool) -> None:
    """Let batch VMs start in the batch group, on hosts with systemd."""
    if apply_ and undo:
        raise click.UsageError("--apply and --undo exclude each other")
    paths = HostPaths(Path(settings.text("root_dir")))
    if apply_ and not _counts(paths):
        raise Failure(_NOT_NEEDED)
    names = domains or _batch_domains(settings)
    with closing(Definitions(settings.text("libvirt_uri"))) as definitions:
        before = [definitions.look(name) for name in names]
        wanted = Partitioned.DEFAULT if apply_ else Partitioned.BATCH if undo else None
        changed = [definition.name for definition in before if definition.state is wanted]
        for name in changed:
            definitions.define(name, batch=apply_)
        now = [definitions.look(name) for name in names]
    if as_json:
        rows = [{"domain": row.name, "state": row.state, "changed": row.name in changed} for row in now]
        say_json({"partition": PARTITION, "domains": rows})
        return
    for row in now:
        say(f"{row.name}: {_in_words(row, row.name in changed)}")
    if not names:
        say("no batch VM is registered on this host")
    elif wanted is None and any(row.state is Partitioned.DEFAULT for row in now):
        say("`equipoise partition --apply` lets them start in the batch group" if _counts(paths) else _NOT_NEEDED)


def _counts(paths: HostPaths) -> bool:
    """Whether it matters here where a VM starts."""
    return cpu_controller(read_mounts(paths)) is CGROUP_V2


def _in_words(row: Definition, changed: bool) -> str:
    return _NOW[row.state].format(partition=row.partition) + (", from its next start on" if changed else "")


def _batch_domains(settings: Settings) -> tuple[str, ...]:
    """Names of the domains of the batch VMs that run on this host."""
    rows = connect(settings).items("/vms", host=settings.text("host_name"))
    statuses = [row["status"] for row in rows if row["class"] == VmClass.BATCH and row["status"]]
    return tuple(sorted(status["libvirt_name"] for status in statuses))
