"""What protection of memory is for a service: memcached's response times beside a VM that takes memory.

Real memcached in a group like a VM's, on a kernel with cgroup v2, and a process in another that takes more than there
is and uses it again and again. What is taken goes to a disk that answers each request 0.2 ms later.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from manager.host.files import LIBC, succeeded
from manager.host.process import start_ticks
from manager.model.host import VmInstance
from manager.model.rules import MemoryRules
from tests.host.conftest import REAL, until
from tests.kernel.inside.cgroup_v2.conftest import CGROUPS, Vm, scope_name, start_process
from tests.kernel.inside.cgroup_v2.measuring import MeasuringAgent
from tests.kernel.inside.cgroup_v2.modules import end_swap, make_swap

MIB = 1 << 20
ITEMS, ITEM_BYTES = 24_000, 1000
WANTED_MIB, SPARE_MIB = 24, 8
REQUESTS = 1500
LIMITED = CGROUPS / "served.slice"
CONFIG = Path("/sys/kernel/config")
SWAP, SWAP_MIB = CONFIG / "nullb/slow", 96
DISK = Path("/dev") / SWAP.name
BAR = 1.5


@pytest.fixture(scope="module")
def slow_swap(null_blk: None) -> Iterator[None]:
    """A disk of Documentation/block/null_blk.rst that keeps what it is given."""
    succeeded(LIBC.mount(b"configfs", str(CONFIG).encode(), b"configfs", 0, None))
    SWAP.mkdir()
    for name, value in (("memory_backed", 1), ("size", SWAP_MIB), ("irqmode", 2), ("completion_nsec", 200_000)):
        (SWAP / name).write_text(str(value))
    (SWAP / "power").write_text("1")
    until(DISK.exists, "the disk is there")
    make_swap(DISK, SWAP_MIB * MIB)
    yield
    end_swap(DISK)
    SWAP.rmdir()


@dataclass
class Memcached:
    """The service, as the process of a VM without vCPUs."""

    path: Path
    uuid: str = field(default_factory=lambda: str(uuid4()))

    def __post_init__(self) -> None:
        command = ["memcached", "-u", "root", "-s", str(self.path), "-m", "64", "-t", "1"]
        self._process = subprocess.Popen(command)
        self.pid = self._process.pid
        until(self.path.exists, "memcached listens")

    @property
    def instance(self) -> VmInstance:
        ticks = start_ticks(REAL, self.pid)
        assert ticks is not None
        return VmInstance(self.uuid, "shop", self.pid, ticks)

    def fill(self) -> None:
        with self._connected() as client:
            for number in range(ITEMS):
                client.sendall(f"set {number} 0 0 {ITEM_BYTES} noreply\r\n".encode() + b"x" * ITEM_BYTES + b"\r\n")
            client.sendall(b"version\r\n")
            assert client.recv(100).startswith(b"VERSION")

    def response_times_us(self) -> list[float]:
        """Sorted, of one request after the other, each for another value."""
        chance = random.Random(1)
        times = []
        with self._connected() as client:
            for _ in range(REQUESTS):
                began_ns = time.monotonic_ns()
                client.sendall(f"get {chance.randrange(ITEMS)}\r\n".encode())
                answer = client.recv(4096)
                while not answer.endswith(b"END\r\n"):
                    answer += client.recv(4096)
                times.append((time.monotonic_ns() - began_ns) / 1000)
                assert len(answer) > ITEM_BYTES
        return sorted(times)

    @contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(self.path))
            yield client

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class ServiceVm(Vm):
    """A VM whose process is the service: it has no vCPUs to be weighted."""

    def __post_init__(self) -> None:
        inside = self.scope / "libvirt"
        inside.mkdir(parents=True)
        (inside / "cgroup.procs").write_text(str(self.process.pid))


@pytest.fixture
def shop(systemd: None, slow_swap: None, tmp_path: Path) -> Iterator[ServiceVm]:
    """memcached with 24 MB of values, below a group that can be limited."""
    LIMITED.mkdir()
    for group in (CGROUPS, LIMITED):
        (group / "cgroup.subtree_control").write_text("+memory")
    process = Memcached(tmp_path / "memcached")
    vm = ServiceVm("shop", LIMITED / scope_name(11, "shop"), process)  # type: ignore[arg-type]
    (vm.scope / "cgroup.subtree_control").write_text("+memory")
    process.fill()
    yield vm
    process.kill()
    vm.leave()
    (LIMITED / "memory.max").write_text("max")
    LIMITED.rmdir()
    (CGROUPS / "cgroup.subtree_control").write_text("-memory")


@pytest.fixture
def hog(shop: ServiceVm) -> Iterator[Vm]:
    vm = Vm("hog", LIMITED / scope_name(12, "hog"), start_process())
    (vm.scope / "cgroup.subtree_control").write_text("+memory")
    yield vm
    vm.process.kill()
    vm.leave()


def faults(vm: Vm) -> int:
    """Those that read from the disk."""
    lines = dict(line.split() for line in (vm.scope / "memory.stat").read_text().splitlines())
    return int(lines["pgmajfault"])


@pytest.fixture
def on_one_cpu(shop: ServiceVm, hog: Vm) -> Iterator[None]:
    """The second CPU of this guest would take time from the first. Only memory is to matter: whoever asks runs before
    all others, and the VM that takes memory after them.
    """
    for vm, policy in ((shop, os.SCHED_OTHER), (hog, os.SCHED_IDLE)):
        for task in Path(f"/proc/{vm.process.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {0})
            os.sched_setscheduler(int(task.name), policy, os.sched_param(0))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    yield
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.sched_setaffinity(0, before)


@contextmanager
def taking_memory(hog: Vm) -> Iterator[None]:
    """It uses more than is left, again and again, and rests between for others to have the CPU."""
    took, ended = threading.Event(), threading.Event()

    def take() -> None:
        hog.process.tell(f"hold {WANTED_MIB}")
        took.set()
        while not ended.wait(0.02):
            hog.process.tell("touch")

    taker = threading.Thread(target=take)
    taker.start()
    took.wait()
    try:
        yield
    finally:
        ended.set()
        taker.join()


@pytest.mark.parametrize("protect", [False, True])
def test_memcached_answers_as_alone_beside_a_vm_that_takes_memory(
    shop: ServiceVm, hog: Vm, tmp_path: Path, on_one_cpu: None, protect: bool
) -> None:
    service: Memcached = shop.process  # type: ignore[assignment]
    rules = MemoryRules(protect=protect, most_protected=0.9)
    agent = MeasuringAgent(tmp_path / "journal.db", shop, hog, memory=rules)
    agent.tick(3)
    alone = service.response_times_us()
    (LIMITED / "memory.max").write_text(str(int((LIMITED / "memory.current").read_text()) + SPARE_MIB * MIB))
    with taking_memory(hog):
        known = faults(shop)
        beside = service.response_times_us()
        read_again = faults(shop) - known
    (LIMITED / "memory.max").write_text("max")
    p50, p95, p99 = (beside[int(REQUESTS * part)] / alone[int(REQUESTS * part)] for part in (0.5, 0.95, 0.99))
    times = f"p50 {p50:.2f}, p95 {p95:.2f}, p99 {p99:.2f}"
    print(
        f"protected: {protect}: {times} times as alone, {alone[int(REQUESTS * 0.95)]:.0f} us; {read_again} read again"
    )
    agent.loop.release("test")
    assert not agent.journal.entries
    agent.end()
    if protect:
        assert p95 < BAR
        assert not read_again
    else:
        assert p95 > BAR and p99 > 2 * BAR, "without it there is something to be protected from"
