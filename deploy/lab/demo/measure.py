"""Runs the load of one phase and measures what it cost whom."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import libvirt

from deploy.lab.commands import LabError, last_lines
from deploy.lab.demo.load_process import to_json
from deploy.lab.demo.originals import qemu_pid
from deploy.lab.demo.scene import WARMUP_S, Scene, Service
from manager.model.cpus import format_cpus

_LOADGROUP = Path(__file__).parent.parent / "loadgroup.sh"
_GRACE_S = 60.0
_TICKS_PER_S = 100


@dataclass(frozen=True, slots=True)
class CpuReading:
    """CPU times since boot, in seconds: of the managed pCPUs (busy, total), all pCPUs, and each VM.

    ``sleeps``: how often vCPUs of each service's VM went to sleep. ``stolen_s``: what the pCPUs were ready for, but had
    not, because this machine is a virtual one itself (proc_stat(5)); it counts as busy.
    """

    at_s: float
    managed_busy_s: float
    managed_total_s: float
    busy_s: float
    total_s: float
    vms_s: Mapping[str, float]
    sleeps: Mapping[str, int]
    stolen_s: float


@dataclass(frozen=True, slots=True)
class ServiceUse:
    """What a service's VM did: CPU seconds a second, and how often a second its vCPUs went to sleep."""

    cpu_rate: float
    sleeps_rate: float


@dataclass(frozen=True, slots=True)
class CpuUse:
    """What happened between two readings. Shares are of the managed pCPUs' time, ``outside_share`` and
    ``stolen_share`` of all pCPUs', the second no part of the first.

    ``batch_rate`` and ``critical_rate`` are CPU seconds per second of the batch VMs and of the others.
    """

    host_share: float
    outside_share: float
    batch_rate: float
    critical_rate: float
    services: Mapping[str, ServiceUse] = field(default_factory=dict)
    stolen_share: float = 0.0


@dataclass(frozen=True, slots=True)
class DemoMeasurement:
    """The load generators' results by service (as they write JSON), and the use of the CPUs meanwhile."""

    loads: Mapping[str, Mapping[str, Any]]
    use: CpuUse


class Meter:
    """Reads CPU times of the scene's VMs and pCPUs."""

    def __init__(self, scene: Scene, connection: libvirt.virConnect) -> None:
        self._scene = scene
        self._connection = connection
        self._domains = {vm.name: connection.lookupByName(vm.name) for vm in scene.vms}

    def read(self) -> CpuReading:
        """All CPU times now; 0 s of the late VM while it does not run."""
        vms_s = {name: domain.info()[4] / 1e9 for name, domain in self._domains.items()}
        if self._scene.late:
            vms_s[self._scene.late.name] = self._late_s(self._scene.late.name)
        managed_busy = managed_total = busy = total = stolen = 0.0
        for line in Path("/proc/stat").read_text().splitlines():
            name, *fields = line.split()
            if not name.startswith("cpu") or name == "cpu":
                continue
            ticks = [int(field) for field in fields[:8]]
            spent, idle = sum(ticks) / _TICKS_PER_S, (ticks[3] + ticks[4]) / _TICKS_PER_S
            total += spent
            busy += spent - idle
            stolen += ticks[7] / _TICKS_PER_S
            if int(name[3:]) in self._scene.managed_cpus:
                managed_total += spent
                managed_busy += spent - idle
        sleeps = {service.name: vcpu_sleeps(service.vm.name) for service in self._scene.services}
        return CpuReading(time.monotonic(), managed_busy, managed_total, busy, total, vms_s, sleeps, stolen)

    def use(self, before: CpuReading, after: CpuReading) -> CpuUse:
        """What happened between two readings."""
        elapsed_s = after.at_s - before.at_s
        used_s = {name: after.vms_s[name] - before.vms_s[name] for name in after.vms_s}
        busy_s, total_s = after.busy_s - before.busy_s, after.total_s - before.total_s
        stolen_s = after.stolen_s - before.stolen_s
        batch_s = sum(used_s.values()) - sum(used_s[service.vm.name] for service in self._scene.services)
        return CpuUse(
            host_share=(after.managed_busy_s - before.managed_busy_s)
            / (after.managed_total_s - before.managed_total_s),
            outside_share=max(busy_s - stolen_s - sum(used_s.values()), 0.0) / total_s,
            batch_rate=batch_s / elapsed_s,
            critical_rate=(sum(used_s.values()) - batch_s) / elapsed_s,
            services={
                service.name: ServiceUse(
                    used_s[service.vm.name] / elapsed_s,
                    (after.sleeps[service.name] - before.sleeps[service.name]) / elapsed_s,
                )
                for service in self._scene.services
            },
            stolen_share=stolen_s / total_s,
        )

    def _late_s(self, name: str) -> float:
        try:
            return float(self._connection.lookupByName(name).info()[4]) / 1e9
        except libvirt.libvirtError as error:
            if error.get_error_code() in (libvirt.VIR_ERR_NO_DOMAIN, libvirt.VIR_ERR_OPERATION_INVALID):
                return 0.0
            raise

    def over(self, seconds: float) -> CpuUse:
        """The use of the CPUs during the next ``seconds``."""
        before = self.read()
        time.sleep(seconds)
        return self.use(before, self.read())


def vcpu_sleeps(vm: str) -> int:
    """How often vCPU threads of a running VM left their pCPU to wait (proc_pid_status(5)). Raises OSError."""
    slept = 0
    for task in Path(f"/proc/{qemu_pid(vm)}/task").iterdir():
        if (task / "comm").read_text().startswith("CPU "):
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            slept += int(status["voluntary_ctxt_switches"])
    return slept


@contextmanager
def load_group() -> Iterator[None]:
    """The load generators' CPU group, while the block runs."""
    _loadgroup("make")
    try:
        yield
    finally:
        _loadgroup("remove")


def measure(
    scene: Scene,
    meter: Meter,
    seconds: float,
    push: Callable[[str, Mapping[str, Any]], None],
    progress: Callable[[float], None],
) -> DemoMeasurement:
    """Put all services under load for ``seconds`` after a warm-up.

    ``push(service, interval)`` is called with each interval's response times, ``progress`` with the seconds gone.
    Raises LabError when a load generator fails.
    """
    results: dict[str, Mapping[str, Any]] = {}
    generators = {service.name: _start_load(scene, service, seconds) for service in scene.services}
    readers = [
        threading.Thread(target=_collect, args=(name, process, results, push)) for name, process in generators.items()
    ]
    for reader in readers:
        reader.start()
    try:
        began = time.monotonic()
        _pass_time(began + WARMUP_S, began, progress)
        before = meter.read()
        _pass_time(began + WARMUP_S + seconds, began, progress)
        use = meter.use(before, meter.read())
        for (name, process), reader in zip(generators.items(), readers, strict=True):
            status = process.wait(_GRACE_S)
            reader.join()
            if status != 0 or name not in results:
                errors = process.stderr.read().decode(errors="replace") if process.stderr else ""
                raise LabError(f"the load generator of {name} failed:\n{last_lines(errors)}")
    except subprocess.TimeoutExpired as error:
        raise LabError(f"a load generator did not end: {error}") from error
    finally:
        for process in generators.values():
            process.kill()
        for reader in readers:
            reader.join()
        for process in generators.values():
            with process:  # closes its pipes and waits for its end
                pass
    return DemoMeasurement(results, use)


def _start_load(scene: Scene, service: Service, seconds: float) -> subprocess.Popen[bytes]:
    spec = to_json(service.load(seconds, scene.push_interval_s))
    command = [str(_LOADGROUP), "run", "--cpus", format_cpus(scene.load_cpus), "--"]
    command += ["ip", "netns", "exec", scene.clients] if scene.clients else []
    command += [sys.executable, "-m", "deploy.lab.demo.load_process", spec]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _collect(
    name: str,
    process: subprocess.Popen[bytes],
    results: dict[str, Mapping[str, Any]],
    push: Callable[[str, Mapping[str, Any]], None],
) -> None:
    """Read what a load generator prints until it ends."""
    for line in process.stdout or ():
        said = json.loads(line)
        if "result" in said:
            results[name] = said["result"]
        else:
            push(name, said["interval"])


def _pass_time(until_s: float, began_s: float, progress: Callable[[float], None]) -> None:
    while (left_s := until_s - time.monotonic()) > 0:
        progress(time.monotonic() - began_s)
        time.sleep(min(left_s, 0.5))


def _loadgroup(command: str) -> None:
    done = subprocess.run([str(_LOADGROUP), command], check=False, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        raise LabError(f"loadgroup.sh {command}: {last_lines(done.stderr)}")
