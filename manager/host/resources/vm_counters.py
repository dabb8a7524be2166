"""The counters of one running VM: pressure, memory, disks and its vhost threads, from files that are held open."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from manager.errors import HostError, VmVanished
from manager.host import process
from manager.host.cgroup import CgroupMounts, emulator_threads, parse_process_cgroups, vm_group
from manager.host.files import open_file, refused
from manager.host.registry import (
    BLKIO_FILES,
    CGROUP_V1,
    CGROUP_V2,
    IO_STAT_FILE,
    MEMORY_STAT_FILE,
    PRESSURE_FILES,
    HostPaths,
)
from manager.host.resources.counter_texts import blkio, faults, io_stat, pressure_us, process_io, process_memory
from manager.host.resources.held_file import HeldFile
from manager.host.resources.perf_events import GroupCounters
from manager.model.host import VmInstance
from manager.model.resource_use import ALL_DISKS, DiskCounters, Pressures, VmCounters, WorkCounters

_SHORT = 512
SELDOM = 24
"""At every so many readings it is looked again for vhost threads, as interfaces are plugged, and for what counts disks:
a policy of v1 does once it acts on them."""

DeviceNames = Callable[[], Mapping[bytes, str]]
DiskReader = Callable[[], Mapping[str, DiskCounters] | None]


class _Faults(NamedTuple):
    """Major faults and refaults of a group when it had waited for memory so long (without PSI: its process had read so
    many bytes), and its process had so many.
    """

    waited: int | None
    of_process: int | None
    major: int | None
    refaults: int | None


class VmCounterFiles:
    """Reads one VM instance. What this host does not count is None; see docs/concepts/signals.md for what is where."""

    def __init__(self, paths: HostPaths, mounts: CgroupMounts, instance: VmInstance, device_names: DeviceNames) -> None:
        """``device_names`` returns the names of disks by ``MAJOR:MINOR``. Raises VmVanished, HostError."""
        self._paths = paths
        self._instance = instance
        self._device_names = device_names
        folder = paths.process(instance.pid)
        with refused(f"cgroup of process {instance.pid}"):
            groups = parse_process_cgroups(os.fsdecode((folder / "cgroup").read_bytes()))

        def folder_of(controller: str) -> Path | None:
            group = vm_group(groups.get(controller, ""))
            return None if group is None else mounts.folder(controller, group)

        def held(controller: str, name: str) -> HeldFile | None:
            place = folder_of(controller)
            return None if place is None else HeldFile(place / name)

        self._pressures = [held("", name) for name in PRESSURE_FILES]
        self._memory = held("memory", MEMORY_STAT_FILE) or held("", MEMORY_STAT_FILE)
        self._io_stat = None if "blkio" in mounts.by_controller else held("", IO_STAT_FILE)
        self._blkio = [(held("blkio", served), held("blkio", counted)) for served, counted in BLKIO_FILES]
        self._process, self._process_io = HeldFile(folder / "stat"), HeldFile(folder / "io")
        self._group, self._cpu = (folder_of("cpu"), CGROUP_V1) if "cpu" in groups else (folder_of(""), CGROUP_V2)
        self._counted = folder_of("perf_event") or folder_of("")  # v2 always has it, unless v1 does
        self._vhost: list[HeldFile] = []
        self._counting: DiskReader | None = None
        self._work: GroupCounters | None = None
        self._faults_then = _Faults(None, None, None, None)
        self._readings = instance.pid % SELDOM  # not those of all VMs at once
        if not process.is_alive(paths, instance):
            raise VmVanished(f"process {instance.pid} is gone", errno.ESRCH)

    def read(self) -> VmCounters:
        """What it used so far. Raises VmVanished."""
        stat = self._process.read(_SHORT)
        if stat is None:
            raise VmVanished(f"process {self._instance.pid} is gone", errno.ESRCH)
        process_faults, resident_bytes = process_memory(stat, os.sysconf("SC_PAGE_SIZE"))
        seldom = not self._counting or self._readings % SELDOM == 0
        self._readings += 1
        if seldom:
            self._find_vhost()
            self._counting = self._find_counting()
        pressures = Pressures(*(pressure_us(_text(file) or b"") for file in self._pressures))
        group_faults, refaults = self._faults(pressures.memory_us, process_faults, seldom)
        return VmCounters(
            time.monotonic(),
            pressures,
            process_faults if group_faults is None else group_faults,
            refaults,
            resident_bytes,
            self._counting() if self._counting else None,
            self._vhost_ns(),
            self._work_done(),
        )

    def _faults(self, waited_us: int | None, process_faults: int | None, seldom: bool) -> tuple[int | None, int | None]:
        """Those of its group, major faults and refaults.

        To read them takes two fifths of the CPU time of a reading. While nothing in the group waited for memory and its
        process had no fault they are taken to be as they were; refaults that nobody waited for come with the next one.
        Without PSI, while its process had no fault and read nothing: what comes back into memory is read.
        """
        then = self._faults_then
        waited = self._read_bytes() if waited_us is None else waited_us
        if seldom or waited is None or (waited, process_faults) != then[:2]:
            read = faults(_text(self._memory) or b"")
            self._faults_then = then = _Faults(waited, process_faults, *read)
        return then.major, then.refaults

    def _read_bytes(self) -> int | None:
        """What its process read from disks and network file systems; None: not known."""
        disks = process_io(self._process_io.read(_SHORT) or b"")
        return None if disks is None else disks[ALL_DISKS].read_bytes

    def count_work(self, pcpus: Iterable[int]) -> bool:
        """Count instructions from now on, on these pCPUs; False where that cannot be."""
        if self._counted is None:
            return False
        with contextlib.suppress(HostError):
            folder = open_file(self._counted, os.O_RDONLY | os.O_DIRECTORY)
            try:
                self._work = GroupCounters(folder, pcpus)
            finally:
                os.close(folder)
        return self._work is not None

    def _work_done(self) -> WorkCounters | None:
        if self._work is not None:
            with contextlib.suppress(HostError):
                return WorkCounters(*self._work.read())
        return None

    def _find_counting(self) -> DiskReader:
        """By device where a group's counters do so, or else all that the process did."""
        if _text(self._io_stat) is not None:
            return lambda: io_stat(_text(self._io_stat) or b"", self._device_names())
        for served, counted in self._blkio:
            if self._by_group(served, counted):
                return partial(self._by_group, served, counted)
        return lambda: process_io(self._process_io.read(_SHORT) or b"")

    def _by_group(self, served: HeldFile | None, counted: HeldFile | None) -> Mapping[str, DiskCounters]:
        return blkio(_text(served) or b"", _text(counted) or b"", self._device_names())

    def _vhost_ns(self) -> int | None:
        times: list[int] = []
        for file in self._vhost:
            with contextlib.suppress(ValueError, IndexError):
                times.append(int((file.read(_SHORT) or b"").split()[0]))
        return sum(times) if times else None

    def _find_vhost(self) -> None:
        for file in self._vhost:
            file.close()
        tids: list[int] = []
        with contextlib.suppress(HostError):  # the next reading finds out what became of it
            emulator = emulator_threads(self._group, self._cpu) if self._group else None
            tids = process.vhost_threads(self._paths, self._instance.pid, emulator)
        self._vhost = [HeldFile(self._paths.process(tid) / "schedstat") for tid in tids]

    def close(self) -> None:
        """Close all files; may be called twice."""
        self._counting = None  # it holds this
        if self._work is not None:
            self._work.close()
        blkio_files = [file for pair in self._blkio for file in pair]
        for file in (
            *self._pressures,
            self._memory,
            self._io_stat,
            *blkio_files,
            self._process,
            self._process_io,
            *self._vhost,
        ):
            if file is not None:
                file.close()


def _text(file: HeldFile | None) -> bytes | None:
    return None if file is None else file.read()
