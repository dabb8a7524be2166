"""Response times of services in VMs from the packets at their taps: the program of ``manager.bpf.tap``, attached.

It is held by this process only: program, maps and links vanish with it, whatever ends it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import struct
from collections.abc import Sequence
from pathlib import Path

from manager.bpf import tap
from manager.errors import HostError
from manager.host.bpf_calls import (
    TCX_EGRESS,
    TCX_INGRESS,
    BpfLookups,
    BpfMap,
    filter_packets,
    link_tcx,
    open_pin,
    run_program,
)
from manager.host.bpf_objects import pinned
from manager.host.registry import HostPaths
from manager.host.tap_times import Grouping
from manager.model.histogram import Histogram
from manager.model.traffic import AnswerCount, ServicePlace, ServiceTraffic, TapProtocol, TapWay

_NAME = "equipoise_tap"
_COUNT = struct.Struct("=I")
_SETTINGS = struct.Struct("=QQQ")
_SERVICE = struct.Struct(f"={len(tap.COUNTERS)}Q")
_TIMES = struct.Struct("=Q")
_LATENESS = struct.Struct(f"={len(tap.LATENESS)}Q")
_NONE = AnswerCount(0, 0, 0, 0)
_ANSWERS, _UNTIMED, _UNANSWERED, _LATE, _NOREPLY = map(
    tap.COUNTERS.index, ("answers", "untimed", "unanswered", "late", "noreply")
)
_REQUESTS = slice(tap.COUNTERS.index(TapProtocol.OTHER), tap.COUNTERS.index(TapProtocol.TLS) + 1)
_PROGRAMS = (tap.TO_GUEST, tap.FROM_GUEST, tap.BOTH_WAYS, tap.COUNT_WAITING, tap.SET_LATE)
_MAPS = (tap.SERVICES, tap.INTERFACES, tap.TIMES, tap.LOST, tap.WAITING, tap.SETTINGS, tap.CALLS)
_FULL, _ROOMY = tap.MOST_CONNECTIONS * 3 // 4, tap.MOST_CONNECTIONS // 4


def halvings_for(active: int, halved: int) -> int:
    """How often connections are to be halved, of which so many were active with ``halved``."""
    if active > _FULL:
        return min(halved + 1, tap.MOST_HALVINGS)
    return max(halved - 1, 0) if active < _ROOMY else halved


class TapProgram:
    """The program, loaded. Every method raises HostError."""

    def __init__(
        self,
        paths: HostPaths,
        bpftool: str = "bpftool",
        ways: Sequence[TapWay] = tuple(TapWay),
        given_up_s: float = 60.0,
    ) -> None:
        """Load it; ``close`` undoes everything, and so does the end of the process.

        Of the ``ways`` the first that the kernel knows is taken. A request that waits longer than ``given_up_s`` counts
        as unanswered and waits no more.
        """
        self._ways = ways
        self._given_up_s = given_up_s
        self._halved = 0
        self._seed = secrets.randbits(64)
        self._grouping = Grouping(b"")
        self._links: dict[int, tuple[int, ...]] = {}
        with contextlib.ExitStack() as opened:
            with pinned(paths, tap.OBJECT, _NAME, bpftool) as folder:
                descriptors = []
                for name in _PROGRAMS:
                    descriptors.append(open_pin(folder / name))
                    opened.callback(os.close, descriptors[-1])
                maps = []
                for name in _MAPS:
                    maps.append(BpfMap(folder / "maps" / name))
                    opened.callback(maps[-1].close)
            self._to_guest, self._from_guest, self._both_ways, self._count_waiting, self._set_late = descriptors
            self._services, self._interfaces, self._times, self._lost, self._waiting, self._settings = maps[:-1]
            self._set()
            self._opened = opened.pop_all()

    @property
    def programs(self) -> tuple[int, int]:
        """Descriptors of the programs, to and from the guest."""
        return self._to_guest, self._from_guest

    @property
    def sampled_share(self) -> float:
        """Of the connections, how many are looked at, 0 .. 1; what is counted stands for all of them."""
        return 1 / (1 << self._halved)

    def admit(self, interface: int) -> None:
        """Let an interface have services; without it, its packets are not looked at."""
        self._interfaces.write(_COUNT.pack(interface), _COUNT.pack(0))

    def attach(self, interface: int) -> TapWay:
        """Look at the packets of an interface, by its index.

        HostError: the kernel refuses, with EINVAL where it knows none of the ways; ENODEV: the interface is gone.
        """
        self.admit(interface)  # before its first packet shows a service
        refusal = HostError(f"attach to interface {interface}: no way is left", errno.EINVAL)
        for way in self._ways:
            try:
                self._links[interface] = self._link(interface, way)
            except HostError as error:
                refusal = error
                if error.errno != errno.EINVAL:
                    break
            else:
                return way
        self._interfaces.remove(_COUNT.pack(interface))
        raise refusal

    def _link(self, interface: int, way: TapWay) -> tuple[int, ...]:
        if way is TapWay.PACKET_SOCKET:
            return (filter_packets(self._both_ways, interface),)
        with contextlib.ExitStack() as opened:
            to_guest = link_tcx(self._to_guest, interface, TCX_EGRESS)
            opened.callback(os.close, to_guest)
            from_guest = link_tcx(self._from_guest, interface, TCX_INGRESS)
            opened.pop_all()
        return to_guest, from_guest

    @property
    def attached(self) -> frozenset[int]:
        """The interfaces whose packets are looked at."""
        return frozenset(self._links)

    def detach(self, interface: int) -> None:
        """Look at the packets of an interface no more, and forget its services."""
        for link in self._links.pop(interface, ()):
            os.close(link)
        self._interfaces.remove(_COUNT.pack(interface))
        for held, value in ((self._services, _SERVICE), (self._times, _TIMES)):
            for key in [key for key, _ in held.items(tap.KEY, value) if key[0] == interface]:
                held.remove(tap.KEY.pack(*key))
        self._walk()  # whereby its requests wait no more

    def traffic(self) -> list[ServiceTraffic]:
        """All that was seen since, and what waits now, by interface and port."""
        keys, values = self._times.packed(tap.KEY.size, _TIMES.size)
        if keys != self._grouping.keys:
            self._grouping = Grouping(keys)
        times, handshakes = self._grouping.histograms(values)
        waiting = self._walk()
        seen = []
        for (interface, port, _), value in self._services.items(tap.KEY, _SERVICE):
            counts = dict(zip(tap.COUNTERS, value, strict=True))
            requests = {protocol: counts.pop(protocol) for protocol in TapProtocol}
            del counts["late"], counts["late_ns"], counts["noreply"]
            place = (interface, port)
            answered, accepted, unanswered = (each.get(place, Histogram()) for each in (times, handshakes, waiting))
            seen.append(
                ServiceTraffic(
                    interface, port, requests, times=answered, handshakes=accepted, waiting=unanswered, **counts
                )
            )
        return sorted(seen, key=lambda traffic: (traffic.interface, traffic.port))

    def judge(self, interface: int, port: int, late_us: float | None) -> bool:
        """Count answers of a service that take longer than that, None: of none. Whether there is such a service."""
        told = _LATENESS.pack(interface, port, round((late_us or 0.0) * 1000), 0)
        return bool(_LATENESS.unpack(run_program(self._set_late, told))[-1])

    def answers(self, places: Sequence[ServicePlace]) -> AnswerCounts:
        """What services are asked and answer, and how much of it late."""
        keys = [tap.KEY.pack(interface, port, 0) for interface, port in places]
        return AnswerCounts(self._services.lookups(keys, _SERVICE))

    def _set(self) -> None:
        self._settings.write(bytes(4), _SETTINGS.pack(self._halved, round(self._given_up_s * 1e9), self._seed))

    def _walk(self) -> dict[ServicePlace, Histogram]:
        """Have the kernel count the requests that wait, and halve the connections where they are too many."""
        self._waiting.packed(tap.KEY.size, _TIMES.size, take=True)  # what a reading that failed has left
        answer = run_program(self._count_waiting, bytes(8 * len(tap.WALK)))
        walk = dict(zip(tap.WALK, struct.unpack(f"={len(tap.WALK)}Q", answer), strict=True))
        halved = halvings_for(walk["active"], self._halved)
        if halved != self._halved:
            self._halved = halved
            self._set()
        keys, values = self._waiting.packed(tap.KEY.size, _TIMES.size, take=True)
        return Grouping(keys).histograms(values)[0]

    def lost(self) -> dict[str, int]:
        """What there was no room for, by the names in ``tap.LOST_COUNTERS``."""
        counts = struct.Struct(f"={len(tap.LOST_COUNTERS)}Q")
        value = self._lost.read(bytes(4), counts.size) or bytes(counts.size)
        return dict(zip(tap.LOST_COUNTERS, counts.unpack(value), strict=True))

    def close(self) -> None:
        """Detach it from all interfaces, and unload it; may be called twice."""
        while self._links:
            for link in self._links.popitem()[1]:
                os.close(link)
        self._opened.close()


class AnswerCounts:
    """How much some services were asked and have answered, and how much of it late. Of any thread.

    It can be read for as long as it is held, also when the program is closed: then nothing grows any more.
    """

    def __init__(self, lookups: BpfLookups) -> None:
        self._lookups = lookups

    @property
    def descriptor(self) -> int:
        """See ``AnswersTable``."""
        return self._lookups.descriptor

    def read(self) -> list[AnswerCount]:
        """Of each service in order, as far as it was seen."""
        return [_answer_count(value) if value else _NONE for value in self._lookups.read()]


def _answer_count(counters: Sequence[int]) -> AnswerCount:
    answers, ended = counters[_ANSWERS], counters[_ANSWERS] + counters[_UNTIMED] + counters[_UNANSWERED]
    return AnswerCount(sum(counters[_REQUESTS]) - counters[_NOREPLY], ended, answers, counters[_LATE])


def of_this_machine() -> TapProgram:
    """The program, loaded. Raises HostError."""
    return TapProgram(HostPaths(Path("/")))
