"""Another host on this machine: a second libvirtd, with a mount namespace of its own, and what runs beside it there.

libvirt's folders, and the agent's, are empty in that namespace; the daemon has a host UUID of its own. The kernel, and
so the cgroup hierarchy, is the same. Below one folder each host finds the other's socket by the other's name.
"""

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import libvirt

from deploy.lab.guest import DEFAULT_BASE
from deploy.lab.lab_vms import LabVm
from tests.live.conftest import HOST, WAIT_S, until, virsh

AWAY = "away"

_ADDRESS = "192.168.122.1"
"""Of the bridge: libvirt sends no VM to a host that calls itself localhost."""
_NUMBERS = 2
"""So many VMs come to it at most."""
_SOCKETS = "/run/libvirt"
_HIDDEN = (_SOCKETS, "/var/lib/libvirt", "/etc/libvirt/qemu", "/run/equipoise-agent", str(DEFAULT_BASE / "log"))
# The bridge is the other host's: this network only names it.
_NETWORK = "<network><name>default</name><forward mode='bridge'/><bridge name='virbr0'/></network>"


@dataclass(frozen=True, slots=True)
class SecondHost:
    """The other host, reached by ``uri`` from both."""

    uri: str
    daemon: subprocess.Popen[bytes]
    connection: libvirt.virConnect

    @property
    def inside(self) -> tuple[str, ...]:
        """The beginning of a command that is to run there."""
        return ("nsenter", "--mount", f"--target={self.daemon.pid}", f"--wd={Path.cwd()}")

    @property
    def vms(self) -> list[str]:
        """The names of the VMs that it knows, running or not."""
        return sorted(domain.name() for domain in self.connection.listAllDomains())


def uri_of(folder: Path, host: str = "{host}") -> str:
    """How libvirt of a host is reached."""
    return f"qemu+unix:///system?socket={folder / host}/libvirt-sock"


@contextmanager
def second_host(folder: Path) -> Iterator[SecondHost]:
    """Start it with its socket below the folder, and end it with its VMs."""
    own, first = folder / AWAY, folder / HOST
    own.mkdir()
    first.mkdir()
    settings, qemu = own / "libvirtd.conf", own / "qemu.conf"
    settings.write_text(
        f'host_uuid = "{uuid.uuid4()}"\nunix_sock_dir = "{own}"\nauth_unix_rw = "none"\n'
        f'log_outputs = "3:file:{own}/log"\n'
    )
    qemu.write_text(f'stdio_handler = "file"\nmigration_host = "{_ADDRESS}"\n')  # it has no virtlogd
    mounts = [f"mount --bind {_SOCKETS} {first}"]
    mounts += [f"mkdir -p {hidden} && mount -t tmpfs -o mode=755 tmpfs {hidden}" for hidden in _HIDDEN]
    mounts.append(f"mount --bind {qemu} /etc/libvirt/qemu.conf")
    script = " && ".join([*mounts, f"exec libvirtd -f {settings} -p {own / 'pid'}"])
    with (own / "out").open("wb") as output:
        daemon = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stdout=output, stderr=output
        )
    try:
        until(lambda: (own / "libvirt-sock").exists() or daemon.poll() is not None, "the other libvirtd")
        connection = libvirt.open(uri_of(folder, AWAY))
        connection.networkCreateXML(_NETWORK)
        try:
            yield SecondHost(uri_of(folder, AWAY), daemon, connection)
        finally:
            for domain in connection.listAllDomains():
                for end in (domain.destroy,) * domain.isActive() + (domain.undefine,) * domain.isPersistent():
                    end()
            connection.close()
    finally:
        daemon.terminate()
        daemon.wait(WAIT_S)


def keep_apart(vm: LabVm) -> None:
    """Let a VM that is defined on the first host run with a number that the second one does not give: the kernel has
    one group of a name.
    """
    while int(virsh("domid", vm.name)) <= _NUMBERS:
        virsh("destroy", vm.name)
        virsh("start", vm.name)
