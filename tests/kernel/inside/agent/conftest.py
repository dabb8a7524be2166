"""`equipoise agent` in a guest with our scheduler, without a manager and without a libvirtd.

What it is to control is in its cache; of VMs it hears as from libvirt's hook, and finds their processes by libvirt's
pid files.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from manager.host.sched_ext import SchedExt
from tests.host.conftest import QemuLike, until
from tests.kernel.inside.cgroup_v2.conftest import SLICE, VCPUS, Vm, lay_out_slices, scope_name
from tests.kernel.inside.warp import lab

HOST = "guest"
WARP_US = 12_000
INTERVAL_S = 1.0
STALE_S = 5
METRICS_PORT = 8751
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
"""netdevice(7)."""
PID_FILES = Path("/run/libvirt/qemu")
LOADED = Path("/sys/kernel/sched_ext/enable_seq")
"""How often a scheduler was loaded since the boot (Documentation/scheduler/sched-ext.rst)."""


def loads() -> int:
    return int(LOADED.read_text())


@dataclass
class Agent:
    """The command, its state directory, and its VMs, of which the first has a warp."""

    folder: Path
    vms: tuple[Vm, ...]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def socket(self) -> Path:
        return self.folder / "hook.sock"

    @property
    def scheduler(self) -> SchedExt:
        return lab.scheduler()

    def start(self) -> None:
        """Start it and tell it of the VMs."""
        self.socket.unlink(missing_ok=True)  # of one that was killed
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
        environment = clean | {
            "PATH": f"{Path(lab.BPFTOOL).parent}:{os.environ['PATH']}",
            "EQUIPOISE_STATE_DIR": str(self.folder),
            "EQUIPOISE_HOST_NAME": HOST,
            "EQUIPOISE_INTERVAL_S": str(INTERVAL_S),
            "EQUIPOISE_STALE_S": str(STALE_S),
            "EQUIPOISE_MIN_SAMPLES": "5",
            "EQUIPOISE_AGENT_LISTEN_PORT": str(METRICS_PORT),
            "EQUIPOISE_ALLOW": "scheduler",
            "EQUIPOISE_MANAGER_URL": "http://127.0.0.1:1",
        }
        command = [sys.executable, "-m", "manager.cli", "agent"]
        with (self.folder / "log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
        until(lambda: self.socket.exists() or self.processes[-1].poll() is not None, "the agent listens")
        assert self.socket.exists(), self.log
        for vm in self.vms:
            with socket.socket(socket.AF_UNIX) as hook:
                hook.connect(str(self.socket))
                hook.sendall(f"started {vm.process.uuid} {vm.name}\n".encode())
                hook.recv(1)

    def end(self, number: signal.Signals) -> int:
        """Send a signal to it and wait for its end; its exit status."""
        self.processes[-1].send_signal(number)
        return self.processes[-1].wait()

    def warp_us(self) -> int:
        """The warp of the first VM, as the scheduler has it."""
        return self.scheduler.warp(self.vms[0].scope.stat().st_ino).warp_us

    def controls(self) -> bool:
        """Whether all is as it was asked to be."""
        weights = [vm.weight.read_text() for vm in self.vms]
        return self.scheduler.active and self.warp_us() == WARP_US and weights == ["10000\n", "1\n"]

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()


@pytest.fixture(scope="session", autouse=True)
def _loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


@pytest.fixture(scope="session")
def vms() -> tuple[Vm, ...]:
    lay_out_slices()
    PID_FILES.mkdir(parents=True)
    names = ("web", "hog")
    made = [Vm(name, SLICE / scope_name(number, name), QemuLike(VCPUS)) for number, name in enumerate(names, start=1)]
    for vm in made:
        (PID_FILES / f"{vm.name}.pid").write_text(str(vm.process.pid))
    return tuple(made)


@pytest.fixture
def agent(vms: tuple[Vm, ...], tmp_path: Path) -> Iterator[Agent]:
    """Not started yet."""
    host = {"name": HOST, "mode": "enforce", "policy": "priority", "pinning": False, "warp": "sched_ext"}
    web = {"name": "web", "class": "critical", "warp_us": WARP_US}
    vms_assigned = [web, {"name": "hog", "class": "batch"}]
    shop = {
        "name": "shop",
        "tiers": [{"name": "web", "vms": ["web"]}],
        "sla": {"response_time_ms": 100},
        "sources": [{"name": "load", "type": "push"}],
    }
    assignment = {"host": host, "vms": vms_assigned, "applications": [shop], "slot_s": INTERVAL_S}
    (tmp_path / "assignment.json").write_text(json.dumps(assignment))
    (tmp_path / "agent.token").write_text("of-no-manager")
    made = Agent(tmp_path, vms)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
    made.scheduler.unload()
    for vm in vms:
        vm.reset()
