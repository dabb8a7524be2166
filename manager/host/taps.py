"""Response times of services in VMs from the packets at their taps: the program of ``manager.bpf.tap``, attached.

It is loaded by bpftool and its pins are removed at once, so that it is held by this process only: program, maps and
links vanish with it, whatever ends it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from manager.bpf import tap
from manager.errors import HostError
from manager.host.bpf_calls import TCX_EGRESS, TCX_INGRESS, BpfMap, link_tcx, open_pin, possible_cpus
from manager.host.registry import HostPaths
from manager.host.sched_ext import PINS
from manager.model.histogram import Histogram
from manager.model.traffic import ServiceTraffic, TapProtocol

_LOAD_S = 30
_COUNT = struct.Struct("=I")


class TapProgram:
    """The program, loaded. Every method raises HostError."""

    def __init__(self, paths: HostPaths, bpftool: str = "bpftool") -> None:
        """Load it; ``close`` undoes everything, and so does the end of the process."""
        try:
            self._cpus = possible_cpus(paths)
        except (OSError, ValueError) as error:
            raise HostError(f"possible CPUs cannot be read: {error}") from error
        self._links: dict[int, tuple[int, ...]] = {}
        with contextlib.ExitStack() as opened:
            with _pinned(paths.root / PINS, bpftool) as folder:
                self._to_guest, self._from_guest = open_pin(folder / tap.TO_GUEST), open_pin(folder / tap.FROM_GUEST)
                for descriptor in (self._to_guest, self._from_guest):
                    opened.callback(os.close, descriptor)
                maps = [BpfMap(folder / "maps" / name) for name in (tap.SERVICES, tap.INTERFACES, tap.TIMES, tap.LOST)]
                for held in maps:
                    opened.callback(held.close)
            self._services, self._interfaces, self._times, self._lost = maps
            self._opened = opened.pop_all()

    @property
    def programs(self) -> tuple[int, int]:
        """Descriptors of the programs, to and from the guest."""
        return self._to_guest, self._from_guest

    def admit(self, interface: int) -> None:
        """Let an interface have services; without it, its packets are not looked at."""
        self._interfaces.write(_COUNT.pack(interface), _COUNT.pack(0))

    def attach(self, interface: int) -> None:
        """Look at the packets of an interface, by its index. HostError: the kernel refuses, or knows no TCX."""
        with contextlib.ExitStack() as opened:
            try:
                to_guest = link_tcx(self._to_guest, interface, TCX_EGRESS)
                opened.callback(os.close, to_guest)
                from_guest = link_tcx(self._from_guest, interface, TCX_INGRESS)
                opened.callback(os.close, from_guest)
            except HostError as error:
                if error.errno == errno.EINVAL:
                    raise HostError(f"{error}: Linux 6.6 or newer is needed", error.errno) from error
                raise
            self.admit(interface)
            opened.pop_all()
        self._links[interface] = (to_guest, from_guest)

    @property
    def attached(self) -> frozenset[int]:
        """The interfaces whose packets are looked at."""
        return frozenset(self._links)

    def detach(self, interface: int) -> None:
        """Look at the packets of an interface no more, and forget its services."""
        for link in self._links.pop(interface, ()):
            os.close(link)
        self._interfaces.remove(_COUNT.pack(interface))
        for held, value_bytes in ((self._services, 8 * len(tap.COUNTERS)), (self._times, 8)):
            keys = [key for key, _ in held.items(tap.KEY.size, value_bytes * self._cpus)]
            for key in keys:
                if tap.KEY.unpack(key)[0] == interface:
                    held.remove(key)

    def traffic(self) -> list[ServiceTraffic]:
        """All that was seen since, by interface and port."""
        buckets: defaultdict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        for key, value in self._times.items(tap.KEY.size, 8 * self._cpus):
            interface, port, bucket = tap.KEY.unpack(key)
            buckets[interface, port][bucket] = sum(struct.unpack(f"={self._cpus}Q", value))
        size = 8 * len(tap.COUNTERS)
        seen = []
        for key, value in self._services.items(tap.KEY.size, size * self._cpus):
            interface, port, _ = tap.KEY.unpack(key)
            of_cpus = struct.iter_unpack(f"={len(tap.COUNTERS)}Q", value)
            counts = dict(zip(tap.COUNTERS, map(sum, zip(*of_cpus, strict=True)), strict=True))
            requests = {protocol: counts.pop(protocol) for protocol in TapProtocol}
            seen.append(ServiceTraffic(interface, port, requests, times=Histogram(buckets[interface, port]), **counts))
        return sorted(seen, key=lambda traffic: (traffic.interface, traffic.port))

    def lost(self) -> dict[str, int]:
        """What there was no room for, by the names in ``tap.LOST_COUNTERS``."""
        value = self._lost.read(bytes(4), 8 * len(tap.LOST_COUNTERS) * self._cpus) or b""
        of_cpus = struct.iter_unpack(f"={len(tap.LOST_COUNTERS)}Q", value)
        return dict(zip(tap.LOST_COUNTERS, map(sum, zip(*of_cpus, strict=True)), strict=True))

    def close(self) -> None:
        """Detach it from all interfaces, and unload it; may be called twice."""
        while self._links:
            for link in self._links.popitem()[1]:
                os.close(link)
        self._opened.close()


def of_this_machine() -> TapProgram:
    """The program, loaded. Raises HostError."""
    return TapProgram(HostPaths(Path("/")))


@contextlib.contextmanager
def _pinned(mount: Path, bpftool: str) -> Iterator[Path]:
    """Load the object and pin its programs and maps in a folder, which is removed at the end of the block."""
    folder = mount / f"equipoise_tap_{os.getpid()}"
    command = [bpftool, "prog", "loadall", str(tap.OBJECT), str(folder), "pinmaps", str(folder / "maps")]
    try:
        loading = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_LOAD_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{bpftool}: {error}") from error
    try:
        if loading.returncode:
            said = " ".join((loading.stderr or loading.stdout).split())[-400:]
            raise HostError(f"the kernel did not take the program for taps: {said}")
        yield folder
    finally:
        for file in sorted(folder.glob("**/*"), reverse=True):
            with contextlib.suppress(OSError):
                file.rmdir() if file.is_dir() else file.unlink()
        with contextlib.suppress(OSError):
            folder.rmdir()
