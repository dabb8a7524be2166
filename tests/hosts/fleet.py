"""A manager with agents on emulated hosts, and tiny VMs under their libvirt."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hosts.emulated import Host

GUEST = Path(__file__).parent / "guest/tiny.S"
KERNEL = "/var/lib/libvirt/images/tiny.elf"
PORT = 8750
INTERVAL_S = 5
START_S = 600.0


@dataclass(frozen=True, slots=True)
class Manager:
    """The REST interface of the manager on a host, asked there."""

    host: Host
    token: str

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The answer's content. Raises ShellError for an error."""
        words = ["curl", "-sS", "--fail-with-body", "-X", method, "-H", f"Authorization: Bearer {self.token}"]
        words += ["-H", "Content-Type: application/json", "--data", "@-"] if body is not None else []
        words.append(f"http://{self.host.name}:{PORT}/api/v1{path}")
        text = self.host.run(shlex.join(words), stdin=json.dumps(body))
        return json.loads(text) if text else None

    def events(self, kind: str = "") -> list[dict[str, Any]]:
        """The latest events, newest first, of one kind."""
        items: list[dict[str, Any]] = self.request("GET", "/events?limit=200")["items"]
        return [event for event in items if kind in {"", event["kind"]}]


def start_manager(host: Host) -> Manager:
    """Start the manager as the package has it; hosts reach it at this one's address."""
    settings = f'\nlisten_host = "0.0.0.0"\ninterval_s = {INTERVAL_S}\n'
    host.run(
        "sed -i '/^listen_host\\|^interval_s/d' /etc/equipoise/manager.toml && cat >>/etc/equipoise/manager.toml"
        " && systemctl start equipoise-manager",
        stdin=settings,
        timeout_s=START_S,
    )
    token = host.run(
        f"{ADMIN} token create --config /etc/equipoise/manager.toml --role admin --name tests", timeout_s=START_S
    ).split()[-1]
    return Manager(host, token)


ADMIN = "runuser -u equipoise -- equipoise"


def start_agent(host: Host, manager: Manager) -> None:
    """Have a host join, and start its agent."""
    create = f"{ADMIN} token create --config /etc/equipoise/manager.toml --join --host {host.name}"
    token = manager.host.run(create, timeout_s=START_S).split()[-1]
    url = f"http://{manager.host.name}:{PORT}"
    host.write("/etc/equipoise/equipoise.toml", f'manager_url = "{url}"\ninterval_s = {INTERVAL_S}\n')
    host.run(f"equipoise agent join {url} {token} && systemctl start equipoise-agent", timeout_s=START_S)


def start_agents(hosts: Sequence[Host], manager: Manager) -> None:
    """Those of several hosts at once."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: start_agent(host, manager), hosts))


@dataclass(frozen=True, slots=True)
class TinyVm:
    """A VM without disk, network or operating system, see ``guest/tiny.S``."""

    name: str
    uuid: str
    vcpus: int = 1
    most_vcpus: int = 1
    disk: str = ""

    @property
    def xml(self) -> str:
        """Its domain."""
        source = f"<driver name='qemu' type='qcow2'/><source file='{self.disk}'/>"
        disk = f"<disk type='file'>{source}<target dev='vda'/></disk>"
        return f"""
            <domain type='qemu'>
              <name>{self.name}</name><uuid>{self.uuid}</uuid><memory unit='MiB'>64</memory>
              <vcpu current='{self.vcpus}'>{self.most_vcpus}</vcpu>
              <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{KERNEL}</kernel></os>
              <features><acpi/></features>
              <devices>
                {disk if self.disk else ""}
                <controller type='usb' model='none'/><memballoon model='none'/>
              </devices>
            </domain>"""


def make_guest(host: Host) -> None:
    """Assemble what tiny VMs boot."""
    host.write("/root/tiny.S", GUEST.read_text())
    sections = "-Wl,-Ttext=0x100020 -Wl,--section-start=.header=0x100000 -Wl,--build-id=none"
    host.run(f"gcc -m32 -nostdlib -static {sections} -o {KERNEL} /root/tiny.S && chmod 644 {KERNEL}")


def define(host: Host, vm: TinyVm) -> None:
    """Define a VM."""
    host.run("virsh -q define /dev/stdin", stdin=vm.xml)


SETTINGS = r"""
pid=$(cat /run/libvirt/qemu/{name}.pid 2>/dev/null) && [ -d /proc/$pid ] || exit 0
scope=/sys/fs/cgroup$(sed -n 's/^0:://; s,/libvirt/.*,,p' /proc/$pid/cgroup)
[ -f $scope/cpu.weight ] || exit 0
for file in cpu.weight cpu.idle cpu.max; do echo "$file=$(cat $scope/$file)"; done
for task in /proc/$pid/task/*; do
    echo "$(cat $task/comm)=$(taskset -cp ${task##*/} | sed 's/.*: //')"
done
"""


def settings_of(host: Host, vm: str) -> Mapping[str, str]:
    """The settings of a VM in force on a host: files of its scope, and the affinity of its threads by their names.

    Threads of the same name as one: with their values where they differ. Empty where the VM has no scope.
    """
    values: dict[str, set[str]] = {}
    for line in host.run(SETTINGS.replace("{name}", vm)).splitlines():
        name, _, value = line.rpartition("=")
        # QEMU's threads besides vCPUs come and go; all have the emulator's affinity
        name = name if name.startswith(("cpu.", "CPU ")) else "emulator"
        if value:  # else the thread has just ended
            values.setdefault(name, set()).add(value)
    return {name: " or ".join(sorted(of_name)) for name, of_name in values.items()}


def journalled(host: Host, vm: str) -> set[str]:
    """The settings of a VM in an agent's journal: a knob and its index each."""
    script = f"""python3 - <<'PYTHON'
import sqlite3
journal = sqlite3.connect("file:/var/lib/equipoise/journal.db?mode=ro", uri=True)
for knob, index in journal.execute("SELECT knob, idx FROM owned WHERE vm = ?", ["{vm}"]):
    print(knob, index)
PYTHON"""
    return set(host.run(script).splitlines())
