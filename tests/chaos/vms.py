"""Real VMs as the agent's host: what the kernel holds of them beside what the journal says, and load on them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deploy.lab.accelerator import decide
from deploy.lab.commands import LabError
from deploy.lab.demo.originals import qemu_pid, settings_of
from deploy.lab.guest import build
from deploy.lab.lab_vms import PREFIX, GuestRole, LabHost, LabVm, connect
from manager.model.cpus import parse_cpus
from manager.protocol.client import ManagerClient
from tests.chaos.site import DEADLINE_S, HOST, Machine, Site, crash_safe_server
from tests.lab_turn import lab_turn
from tests.live.conftest import GROUP_DEFAULTS, group_file, is_untouched, is_v1, until, virsh, weight
from tests.live.test_control import CRITICAL, has_systemd, vcpu_cpus
from tests.loop.disk import SmallDisk, small_disk

CHAOS_PREFIX = f"{PREFIX}chaos-"
_SOME = {"on_ms": 10, "off_ms": 90}
CACHE = LabVm(f"{CHAOS_PREFIX}cache", GuestRole.MEMCACHED, "192.168.122.251")
BATCH = LabVm(f"{CHAOS_PREFIX}batch", GuestRole.BATCH, "192.168.122.252", vcpus=2, options=_SOME)
OTHER = LabVm(f"{CHAOS_PREFIX}other", GuestRole.BATCH, "192.168.122.253", options=_SOME)
VMS = (CACHE, BATCH, OTHER)
APPLICATION, RATE_RPS = "shop", 200

_ALL = frozenset(os.sched_getaffinity(0))
_KNOBS = {"cpu.shares": "weight", "cpu.weight": "weight", "cpu.idle": "idle"}
_ENTRIES = "SELECT libvirt_name, knob, idx, original, previous, intended, is_external FROM owned"
_PID = Path("/run/libvirtd.pid")
_MAGIC = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Held:
    """A setting that the kernel has: ``original`` is what it gave the VM at its start; as text or as CPUs."""

    vm: str
    where: str
    knob: str
    index: int
    value: str | frozenset[int]
    original: str | frozenset[int]


def held(vm: LabVm) -> list[Held]:
    """All settings of a VM that runs. Raises OSError when it ends meanwhile."""
    found = []
    for where, text in settings_of(vm.name).items():
        thread, file = re.search(r": affinity of thread \d+ \((.*)\)", where), where.rpartition("/")[2]
        if thread:
            vcpu = re.match(r"CPU (\d+)/", thread.group(1))
            knob, index = ("vcpu_pin", int(vcpu.group(1))) if vcpu else ("emulator_pin", 0)
            found.append(Held(vm.name, where, knob, index, parse_cpus(text), _ALL))
        elif ": policy and nice" in where:
            found.append(Held(vm.name, where, "scheduling", 0, text, "0, 0"))
        elif file in GROUP_DEFAULTS:
            found.append(Held(vm.name, where, _KNOBS.get(file, file), 0, text, GROUP_DEFAULTS[file]))
    return found


class VmSite(Site):
    """The site on real VMs. ``orders`` are the latest ones for the host."""

    disk: SmallDisk
    orders: dict[str, bool]

    def kill(self, name: str) -> None:
        super().kill(name)
        if name == "agent":  # at whatever moment of a tick: what is not as it was must be in the journal
            assert not (wrong := self.strays(at_rest=False)), wrong

    def order(self, what: str) -> None:
        """Have settings changed: ``batch_idle`` or ``pinning`` becomes another."""
        self.orders[what] = not self.orders[what]
        self.until(lambda client: client.request("PATCH", f"/hosts/{HOST}", body=self.orders))

    def strays(self, *, at_rest: bool) -> list[str]:
        """Settings that are neither the VM's own nor as the journal says that the agent set them.

        At rest they are as it was to set them last; before, they may still be as they were before that.
        """
        entries = {tuple(row[:3]): row[3:] for row in self.agent_rows("journal.db", _ENTRIES)}
        found = []
        for vm in VMS:
            try:
                settings = held(vm)
            except OSError as error:
                if at_rest:
                    found.append(f"{vm.name}: {error}")
                continue
            idle = any(one.knob == "idle" and one.value == "1" for one in settings)
            for one in settings:
                entry = entries.get((one.vm, one.knob, one.index))
                if (entry and entry[3]) or (one.value != one.original and not _explains(entry, one, idle, at_rest)):
                    found.append(f"{one.where} is {one.value}, was {one.original}, journal: {entry}")
        return found

    def not_in_force(self) -> list[str]:
        """Orders that are not carried out."""
        pinned = 1 if self.orders["pinning"] else len(_ALL)
        wanted: list[tuple[str, object, object]] = [
            ("weight of the cache", weight(CACHE), CRITICAL),
            ("pCPUs of the cache", len(vcpu_cpus(CACHE.name)), pinned),
        ]
        for vm in (BATCH, OTHER):
            idle = group_file(vm, "cpu.idle").read_text().strip()
            wanted.append((f"idle class of {vm.name}", idle, str(int(self.orders["batch_idle"]))))
            if not self.orders["batch_idle"]:
                wanted.append((f"weight of {vm.name}", weight(vm), 2 if is_v1(vm) else 1))
        return [f"{what} is {value}, not {goal}" for what, value, goal in wanted if value != goal]

    def settle(self) -> None:
        """Wait until orders are in force and no setting is a stray one."""
        deadline_s = time.monotonic() + DEADLINE_S
        wrong = ["nothing was read"]
        while wrong:
            assert time.monotonic() < deadline_s, f"{wrong}; the log ends with\n{self.log[-5000:]}"
            try:
                wrong = self.not_in_force() + self.strays(at_rest=True)
            except (OSError, AssertionError, sqlite3.OperationalError) as error:  # a VM or the journal is being changed
                wrong = [repr(error)]
            time.sleep(0.1)

    def told_of(self, file: str) -> int:
        """How often the operator was told that a file was damaged."""
        [[count]] = self.rows(
            f"SELECT count(*) FROM events WHERE kind = 'file-damaged' AND message LIKE '%/{file} was damaged%'"
        )
        return int(count)

    def revive(self, name: str) -> None:
        """Start what refused to run, as systemd does."""
        if not self.lives(name):
            assert self.ended(name) == 1, self.log[-3000:]
            self.start(name)


def _explains(entry: Any, one: Held, idle: bool, at_rest: bool) -> bool:
    if entry is None:
        return False
    original, previous, intended = (
        parse_cpus(text) if isinstance(one.value, frozenset) else text for text in entry[:3]
    )
    if original != one.original:
        return False
    if one.knob == "weight" and idle:  # the kernel's own while it is
        return True
    return one.value == intended or (not at_rest and one.value == previous)


def register(client: ManagerClient) -> None:
    """A critical service with an SLA and a source of its own, and batch VMs; weights and pins are in force."""
    # The batch group has an idle class of its own; tests/loop walks that through every fault.
    host = {"mode": "enforce", "policy": "priority", "pinning": True, "placement": {"batch_group": "off"}}
    client.request("PUT", f"/hosts/{HOST}", body=host)
    for vm in VMS:
        body = {"class": "critical" if vm is CACHE else "batch", "host": HOST}
        client.request("PUT", f"/vms/{vm.name}", body=body)
    source = {"name": "probe", "type": "memcached_probe", "address": CACHE.ip, "rate_rps": 20}
    tiers = [{"name": "cache", "vms": [CACHE.name]}]
    body = {"tiers": tiers, "sla": {"response_time_ms": 5}, "sources": [source]}
    client.request("PUT", f"/applications/{APPLICATION}", body=body)


@contextmanager
def lab() -> Iterator[LabHost]:
    """Through a connection of its own, as libvirtd may have been killed. Raises LabError."""
    guest = build()
    connection = connect()
    try:
        yield LabHost(connection, guest, decide(guest).accelerator)
    finally:
        connection.close()


def start_again(vm: LabVm) -> None:
    """kill -9 of its QEMU, and its next start."""
    os.kill(qemu_pid(vm.name), signal.SIGKILL)
    until(lambda: vm.name not in virsh("list", "--all", "--name").split(), "libvirt to have seen its end", DEADLINE_S)
    with lab() as host:
        host.start(vm)
        if vm is CACHE:  # batch VMs, which may get little, boot meanwhile
            host.wait_ready(vm, 2 * DEADLINE_S)


def kill_libvirtd() -> None:
    """kill -9."""
    if has_systemd():
        subprocess.run(["systemctl", "kill", "--signal=KILL", "libvirtd.service"], check=True)
        return
    pid = int(_PID.read_text())
    os.kill(pid, signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists(), "libvirtd to end")


def start_libvirtd() -> None:
    """And wait until it answers."""
    command = ["systemctl", "start", "libvirtd.service"] if has_systemd() else ["libvirtd", "-d"]
    # What it starts inherits its nice value, which need not be ours.
    subprocess.run(command, check=True, preexec_fn=lambda: os.setpriority(os.PRIO_PROCESS, 0, 0))
    until(_answers, "libvirtd to answer", DEADLINE_S)


def _answers() -> bool:
    with suppress(LabError):
        connect().close()
        return True
    return False


class Load:
    """Requests to the cache at a rate of their own, from a process of their own, until it is told to stop."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "load.json"
        target = f"memcached://{CACHE.ip}"
        words = ("--rate", str(RATE_RPS), "--duration", "86400", "--warmup", "0", "--timeout", "2")
        with self._file.open("w") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "manager.cli", "load", target, *words, "--json"],
                stdout=file,
                stderr=subprocess.DEVNULL,
            )

    def end(self) -> dict[str, Any]:
        """What it measured, as the load generator writes it."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(DEADLINE_S)
        measured: dict[str, Any] = json.loads(self._file.read_text())
        return measured

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def running_vms(folder: Path, config: pytest.Config) -> Iterator[VmSite]:
    """Everything but the agent, started. Skips the test where a file system cannot be mounted."""
    with ExitStack() as stack:
        stack.enter_context(lab_turn("tests/run chaos", config))
        disk = stack.enter_context(small_disk(folder / "agent", "32m"))
        stack.callback(_remove_vms)
        with lab() as host:
            host.destroy_all(CHAOS_PREFIX)
            for vm in VMS:
                host.start(vm)
            for vm in VMS:
                host.wait_ready(vm, 2 * DEADLINE_S)
        assert all(map(is_untouched, VMS)), [held(vm) for vm in VMS]
        server = stack.enter_context(crash_safe_server())
        machine = Machine({"SYSLOG_LISTEN_PORT": 0}, register, disk.folder)
        made = VmSite(folder, server, None, stack, machine)
        made.disk, made.orders = disk, {"batch_idle": False, "pinning": True}
        yield made


def _remove_vms() -> None:
    if not _answers():
        start_libvirtd()
    with lab() as host:
        host.destroy_all(CHAOS_PREFIX)


def spoil(path: Path, chance: random.Random, first: bool) -> None:
    """Overwrite some bytes of a file of SQLite's: of its begin, by which it is known, or of any page but the first."""
    page = 4096
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # else its log may hold the page, and nothing is lost
    begin = chance.randrange(len(_MAGIC)) if first else chance.randrange(page, path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(begin)
        length = chance.choice((16, 256, page))
        file.write(chance.randbytes(min(length, page - begin) if first else length))
