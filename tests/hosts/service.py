"""Manager and agent of one machine, as its services; VMs under its libvirt, and all settings that those have."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.hosts.emulated import Host

API = "http://127.0.0.1:8750/api/v1"
MANAGER_SETTINGS = 'state_dir = "/var/lib/equipoise-manager"\ninterval_s = 5\n'
AGENT_SETTINGS = """
manager_url = "http://127.0.0.1:8750"
token_file = "/etc/equipoise/token"
interval_s = 5
allow = "interrupts, mount, real-time, scheduler"
"""
PATIENCE_S = 300.0
START_S = 900.0
"""A VM takes long to start in an emulated machine that shares its CPUs: AppArmor's parser runs four times."""

T = TypeVar("T")
AS_MANAGER = "runuser -u equipoise -- equipoise"
START = f"""
set -e
# Emulated beside other tests, both may take minutes to start, and seem to hang.
for service in manager agent; do
    folder=/etc/systemd/system/equipoise-$service.service.d; mkdir -p $folder
    printf '[Service]\\nWatchdogSec=0\\nTimeoutStartSec=600\\n' >$folder/loaded.conf
done
systemctl daemon-reload
systemctl start equipoise-manager
{AS_MANAGER} token create --config /etc/equipoise/manager.toml --role host --host $(hostname) --name agent \
    >/etc/equipoise/token
{AS_MANAGER} token create --config /etc/equipoise/manager.toml --role operator --name tests >/root/token
chmod 600 /etc/equipoise/token /root/token
systemctl start equipoise-agent
"""

SETTINGS = r"""
import json, os, stat
from pathlib import Path

found = {}
slices = Path("/sys/fs/cgroup/machine.slice")
for folder, _, names in os.walk(slices):
    if "equipoise-" in folder:  # the services themselves
        continue
    for file in (Path(folder, name) for name in names if name.startswith(("cpu", "io.", "memory.", "pids."))):
        mode = stat.S_IMODE(file.stat().st_mode)
        # Since Linux 6.12 a peak can be written, which begins it anew: it is no setting either.
        if mode & 0o600 == 0o600 and not file.name.endswith((".pressure", ".peak")):
            found[str(file.relative_to(slices))] = file.read_text().strip()
for pid_file in Path("/run/libvirt/qemu").glob("*.pid"):
    pid, alike = int(pid_file.read_text()), {}
    for task in Path(f"/proc/{pid}/task").iterdir() if pid_file.stem != "driver" else ():
        try:
            thread, name = int(task.name), (task / "comm").read_text().strip()
            cpus = ",".join(map(str, sorted(os.sched_getaffinity(thread))))
            state = f"cpus {cpus} policy {os.sched_getscheduler(thread)} nice {os.getpriority(os.PRIO_PROCESS, thread)}"
        except (FileNotFoundError, ProcessLookupError):
            continue
        alike.setdefault("main" if thread == pid else name, set()).add(state)
    found |= {f"{pid_file.stem} {name}": "; ".join(sorted(states)) for name, states in alike.items()}
for file in Path("/proc/irq").glob("*/smp_affinity_list"):
    found[f"interrupt {file.parent.name}"] = file.read_text().strip()
print(json.dumps({name: value for name, value in found.items() if not name.endswith(" worker")}))  # they come and go
"""


@dataclass(frozen=True, slots=True)
class Vm:
    """A VM without disks, to be started paused: its threads and control groups are real, and nothing runs in it."""

    name: str
    vcpus: int = 1
    partition: str = ""
    iothreads: int = 0
    tuning: str = ""

    @property
    def xml(self) -> str:
        """As libvirt takes it."""
        resource = f"<resource><partition>{self.partition}</partition></resource>" if self.partition else ""
        return f"""<domain type='qemu'><name>{self.name}</name><memory unit='MiB'>64</memory>
<vcpu>{self.vcpus}</vcpu><iothreads>{self.iothreads}</iothreads>{resource}{self.tuning}
<os><type arch='x86_64' machine='q35'>hvm</type></os>
<devices><memballoon model='none'/></devices></domain>"""


class Service:
    """Manager and agent on one machine, both started by systemd, with an operator's token."""

    def __init__(self, host: Host) -> None:
        """``host`` has the package installed and nothing started."""
        self.host = host

    def start(self) -> Service:
        """Write the settings, make the tokens, and start both."""
        self.host.write("/etc/equipoise/manager.toml", MANAGER_SETTINGS)
        self.host.write("/etc/equipoise/equipoise.toml", AGENT_SETTINGS)
        self.host.run(START, timeout_s=START_S)
        return self

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """A request of the REST API; its answer."""
        sent = json.dumps(body or {})
        data = "" if method == "GET" else "-H 'Content-Type: application/json' --data @-"
        command = f'curl -sS --fail-with-body -m 60 -X {method} -H "Authorization: Bearer $(cat /root/token)" {data}'
        text = self.host.run(f"{command} '{API}{path}'", stdin=sent)
        return json.loads(text) if text.strip() else None

    def set_host(self, **fields: Any) -> None:
        """Change some settings of the host."""
        self.call("PATCH", f"/hosts/{self.host.name}", fields)

    def register(self, name: str, vm_class: str, **fields: Any) -> None:
        """Register a VM."""
        self.call("PUT", f"/vms/{name}", {"class": vm_class, **fields})

    def ticks(self, number: int = 1) -> None:
        """Wait until the agent has ticked and reported it so often."""

        def reported() -> str:
            return str(self.call("GET", f"/hosts/{self.host.name}")["last_seen_at"])

        for _ in range(number):
            before = reported()
            until(reported, lambda now, before=before: now != before, "the agent reports")

    def events(self) -> list[str]:
        """The texts of all events, oldest first."""
        items = self.call("GET", "/events?limit=1000")["items"]
        return [f"{event['kind']}: {event['message']}" for event in reversed(items)]


def define(host: Host, *vms: Vm) -> None:
    """Define VMs and start them paused."""
    for vm in vms:
        host.write(f"/root/{vm.name}.xml", vm.xml)
        host.run(f"virsh -q define /root/{vm.name}.xml && virsh -q start --paused {vm.name}", timeout_s=START_S)


def settings(host: Host) -> dict[str, str]:
    """All that control groups of VMs can be set to, affinity, policy and nice value of each thread, and interrupts."""
    return dict(json.loads(host.run("python3 -", stdin=SETTINGS)))


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """What differs between two readings of all settings."""
    names = sorted(before.keys() | after.keys())
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def until(look: Callable[[], T], holds: Callable[[T], bool], what: str, patience_s: float = PATIENCE_S) -> T:
    """Look again and again until it holds; what was seen then. Raises AssertionError with what was seen last."""
    deadline_s = time.monotonic() + patience_s
    while True:
        seen = look()
        if holds(seen):
            return seen
        assert time.monotonic() < deadline_s, f"{what}: {seen}"
        time.sleep(0.5)
