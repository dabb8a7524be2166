"""Real VMs and a real service for live tests."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.accelerator import decide
from deploy.lab.demo.originals import settings_of_all
from deploy.lab.guest import build
from deploy.lab.lab_vms import PREFIX, URI, GuestRole, LabHost, LabVm, connect
from manager.errors import ManagerUnavailable
from manager.protocol.client import ManagerClient
from tests.lab_turn import lab_turn

HOST = "live"
WAIT_S = 90.0
START_S = 90.0
"""Beside busy emulated VMs a process may take half a minute to start."""
LIVE_PREFIX = f"{PREFIX}live-"
CACHE = LabVm(f"{LIVE_PREFIX}cache", GuestRole.MEMCACHED, "192.168.122.241")
BATCH = LabVm(f"{LIVE_PREFIX}batch", GuestRole.BATCH, "192.168.122.242", vcpus=2, options={"on_ms": 5, "off_ms": 95})
HOT = LabVm(
    f"{LIVE_PREFIX}hot",
    GuestRole.BATCH,
    "192.168.122.246",
    max_vcpus=2,
    persistent=True,
    options={"on_ms": 5, "off_ms": 95},
)
STRANGER = LabVm(f"{LIVE_PREFIX}stranger", GuestRole.BATCH, "192.168.122.243", options={"on_ms": 5, "off_ms": 95})
MOST_SHARES, MOST_WEIGHT = 262_144, 10_000
# What the kernel gives a new group.
GROUP_DEFAULTS = {
    "cpu.shares": "1024",
    "cpu.weight": "100",
    "cpu.idle": "0",
    "cpu.cfs_quota_us": "-1",
    "cpu.max": "max 100000",
    "cpu.rt_runtime_us": "0",
}


def until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_S) -> Any:
    """Wait for a condition and return what it gives; the manager may not be there yet."""
    deadline = time.monotonic() + timeout_s
    last = ""
    while time.monotonic() < deadline:
        try:
            found = condition()
        except ManagerUnavailable as error:
            last, found = str(error), None
        if found:
            return found
        time.sleep(0.05)
    pytest.fail(f"waited {timeout_s:g} s for {what} {last}")


def weight_file(vm: LabVm) -> Path:
    """The file with the weight of a VM, found by its name alone.

    A libvirtd that started while a VM was in the batch group leaves the VM's first group behind: empty, with its name.
    """
    escaped = vm.name.replace("-", r"\x2d")
    for pattern in (
        f"cpu/machine/qemu-*-{vm.name}.libvirt-qemu/cpu.shares",
        f"cpu/machine.slice/machine-qemu*{escaped}.scope/cpu.shares",
        f"machine.slice/machine-qemu*{escaped}.scope/cpu.weight",
        f"machine/qemu-*-{vm.name}.libvirt-qemu/cpu.weight",
    ):
        found = list(Path("/sys/fs/cgroup").glob(pattern))
        if found:
            return found[0] if len(found) == 1 else max(found, key=_is_used)
    raise AssertionError(f"no weight file of {vm.name}")


def _is_used(file: Path) -> bool:
    """Whether any thread is in a control group or in those inside it."""
    members = "tasks" if (file.parent / "tasks").exists() else "cgroup.procs"
    return any(group.read_text() for group in file.parent.rglob(members))


def weight(vm: LabVm) -> int:
    """What the kernel says the weight of a VM is."""
    return int(weight_file(vm).read_text())


def group_file(vm: LabVm, name: str) -> Path:
    """A file of a VM's group."""
    return weight_file(vm).with_name(name)


def quota_file(vm: LabVm) -> Path:
    """The file with the quota of a VM's group: microseconds; on v2 with the period behind them."""
    return group_file(vm, "cpu.cfs_quota_us" if is_v1(vm) else "cpu.max")


def held(*vms: LabVm) -> dict[str, str]:
    """All that the kernel holds of these VMs and that Equipoise may set."""
    return settings_of_all([vm.name for vm in vms])


def virsh(*words: str) -> str:
    """Run virsh as an operator does, and return what it prints."""
    done = subprocess.run(["virsh", "-q", "-c", URI, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def is_v1(vm: LabVm) -> bool:
    """Whether weights are shares of cgroup v1."""
    return weight_file(vm).name == "cpu.shares"


@contextmanager
def before_all_else(vm: LabVm) -> Iterator[None]:
    """VMs have more weight than all that runs beside them: where one waited for its pCPU, that would be the cause."""
    of_machine = weight_file(vm).parents[1] / weight_file(vm).name
    original = of_machine.read_text()
    of_machine.write_text(str(MOST_SHARES if is_v1(vm) else MOST_WEIGHT))
    try:
        yield
    finally:
        of_machine.write_text(original)


@dataclass
class Service:
    """`equipoise run` and the commands of an operator, with a state directory of their own.

    ``tree`` is where the program is, None: this one.
    """

    folder: Path
    port: int
    tree: Path | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("EQUIPOISE_")}
        return clean | {
            "EQUIPOISE_STATE_DIR": str(self.folder),
            "EQUIPOISE_LISTEN_PORT": str(self.port),
            "EQUIPOISE_MANAGER_URL": f"http://127.0.0.1:{self.port}",
            "EQUIPOISE_AGENT_LISTEN_PORT": "0",
            "EQUIPOISE_HOST_NAME": HOST,
            "EQUIPOISE_INTERVAL_S": "0.2",
            "EQUIPOISE_SYNC_S": "0.2",
            "EQUIPOISE_SYSLOG_LISTEN_PORT": "0",
            **self.extra,
        }

    def spawn(self, *command: str, before: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start a program of Python's; ``before`` is the beginning of its command line."""
        with (self.folder / f"{len(self.processes)}-{command[-1]}.log").open("wb") as log:
            process = subprocess.Popen(
                [*before, sys.executable, *command], cwd=self.tree, env=self.environment, stdout=log, stderr=log
            )
        self.processes.append(process)
        return process

    def run(self) -> subprocess.Popen[bytes]:
        """Start manager and agent and wait until the agent reports."""
        process = self.spawn("-m", "manager.cli", "run")
        until(self.reports, "the agent to report", START_S)
        return process

    def reports(self) -> Any:
        return (self.folder / "admin.token").exists() and self.client.get(f"/hosts/{HOST}")["tick"]

    def manager(self) -> subprocess.Popen[bytes]:
        """Start the manager alone."""
        process = self.spawn("-m", "manager.cli", "manager")
        until(lambda: self.client.get("/health"), "the manager")
        return process

    def cli(self, *arguments: str) -> str:
        """Run a command to its end."""
        done = subprocess.run(
            [sys.executable, "-m", "manager.cli", *arguments],
            cwd=self.tree,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @cached_property
    def client(self) -> ManagerClient:
        token = (self.folder / "admin.token").read_text().strip()
        return ManagerClient(f"http://127.0.0.1:{self.port}", token)

    def register(self, *, mode: str = "enforce", policy: str = "priority") -> None:
        """The host, the cache as critical with an SLA, the batch VM; not the stranger."""
        client = self.client
        # On a kernel that needs the batch group, several batch VMs would have their weights there.
        host = {"mode": mode, "policy": policy, "placement": {"batch_group": "off"}}
        client.request("PUT", f"/hosts/{HOST}", body=host)
        client.request("PUT", f"/vms/{CACHE.name}", body={"class": "critical"})
        client.request("PUT", f"/vms/{BATCH.name}", body={"class": "batch"})
        body = {"tiers": [{"name": "cache", "vms": [CACHE.name]}], "sla": {"response_time_ms": 2}}
        client.request("PUT", "/applications/shop", body=body)

    def tick_number(self) -> int:
        return int(self.client.get(f"/hosts/{HOST}")["tick"]["number"])

    def ticks(self, count: int = 3) -> None:
        """Wait for a few more ticks."""
        goal = self.tick_number() + count
        until(lambda: self.tick_number() >= goal, f"tick {goal}")

    def logs(self) -> str:
        return "\n".join(file.read_text() for file in sorted(self.folder.glob("*.log")))

    def end(self) -> None:
        if "client" in self.__dict__:
            self.client.close()
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(30)


def terminate(process: subprocess.Popen[bytes]) -> int:
    """SIGTERM, and the exit status."""
    process.send_signal(signal.SIGTERM)
    return process.wait(30)


def kill_all(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of `equipoise run` with its manager and agent, which would end in order if it alone went."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.send_signal(signal.SIGSTOP)  # or it would see the first of them go
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL


@pytest.fixture(scope="session", autouse=True)
def _lab_for_itself(pytestconfig: pytest.Config) -> Iterator[None]:
    """Nobody else measures on these CPUs, or has libvirtd or VMs of the lab ended under it."""
    with lab_turn("tests/run live", pytestconfig) if os.geteuid() == 0 else nullcontext():
        yield


@pytest.fixture(scope="session")
def open_lab() -> Iterator[Callable[[], LabHost]]:
    """Opens the lab through a new connection, as a test may have restarted libvirtd."""
    guest = build()
    accelerator = decide(guest).accelerator

    def opened() -> LabHost:
        return LabHost(connect(), guest, accelerator)

    opened().destroy_all(LIVE_PREFIX)
    yield opened
    opened().destroy_all(LIVE_PREFIX)


@pytest.fixture
def lab(open_lab: Callable[[], LabHost]) -> LabHost:
    return open_lab()


@pytest.fixture
def vms(lab: LabHost) -> dict[str, str]:
    """The three VMs, running as libvirt starts them; gives their settings before anything happened.

    They are kept from test to test, because booting takes longest, but for those that a test left changed.
    """
    renew(lab, CACHE, BATCH, STRANGER)
    return settings_of_all([CACHE.name, BATCH.name, STRANGER.name])


@pytest.fixture
def hot(lab: LabHost) -> dict[str, str]:
    """The VM whose definition libvirt keeps, as ``vms`` has the others; gives what the kernel holds of it."""
    renew(lab, HOT)
    return held(HOT)


@pytest.fixture
def quiet(lab: LabHost) -> None:
    """No VMs of other tests beside those of this one."""
    lab.destroy_all(LIVE_PREFIX)


def renew(lab: LabHost, *vms: LabVm) -> None:
    """Start those anew that are not as libvirt starts them, and wait until they are ready."""
    changed = [vm for vm in vms if not is_untouched(vm)]
    with ThreadPoolExecutor() as pool:  # of a VM's end the kernel makes seconds, most of them waiting
        list(pool.map(lab.destroy, changed))
    for vm in changed:
        lab.start(vm)
    for vm in changed:
        lab.wait_ready(vm)


def is_untouched(vm: LabVm) -> bool:
    """Whether a VM runs with the kernel's defaults and on all pCPUs."""
    try:
        settings = held(vm)
    except OSError:
        return False
    everywhere = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    if not any(key.endswith(tuple(GROUP_DEFAULTS)) for key in settings):  # a zombie: its group is gone
        return False
    return all(
        value == ("0, 0" if ": policy and nice" in key else GROUP_DEFAULTS.get(key.rpartition("/")[2], everywhere))
        for key, value in settings.items()
        if ": slice of " not in key  # the kernel's own differs by its number of CPUs
    )


@contextmanager
def serving(folder: Path) -> Iterator[Service]:
    """A service that keeps its state in a folder; what it logged is printed at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = Service(folder, port)
    try:
        yield made
    finally:
        made.end()
        print(made.logs())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path) as made:
        yield made
