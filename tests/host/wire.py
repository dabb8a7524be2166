"""The program on taps with one interface, and packets that are handed to it one by one."""

from __future__ import annotations

import mmap
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from manager.host.bpf_calls import BpfMap
from manager.host.bpf_objects import pinned
from manager.host.tap_times import Grouping
from manager.host.taps import TapProgram
from manager.model.traffic import ServiceTraffic
from tests.host.conftest import REAL
from tests.host.packets import ACK, SYN, Connection, run_on

INTERFACE = 1
"""That of packets of a test run: the loopback."""
PASSES = -1
PAUSE_S = 0.02
GET, OK = b"GET / HTTP/1.1\r\nHost: shop\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NEEDS_BPF = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bpftool") is None, reason="NOT TESTED: needs root and bpftool"
)


class Wire:
    """The program with one interface that it looks at; packets are handed to it one by one."""

    def __init__(self, program: TapProgram) -> None:
        self.program = program
        program.admit(INTERFACE)

    def to_guest(self, packet: bytes) -> None:
        assert run_on(self.program.programs[0], packet) == PASSES

    def from_guest(self, packet: bytes) -> None:
        assert run_on(self.program.programs[1], packet) == PASSES

    def accept(self, connection: Connection) -> Connection:
        """Its handshake."""
        self.to_guest(connection.to_guest(flags=SYN))
        self.from_guest(connection.from_guest(flags=SYN | ACK))
        self.to_guest(connection.to_guest(flags=ACK))
        return connection

    def turn(self, connection: Connection, request: bytes = GET, answer: bytes = OK) -> None:
        """A request and its answer."""
        self.to_guest(connection.to_guest(request))
        self.from_guest(connection.from_guest(answer))

    @property
    def all(self) -> list[ServiceTraffic]:
        return self.program.traffic()

    @property
    def seen(self) -> ServiceTraffic:
        """Of the only service."""
        [only] = self.all
        return only

    @property
    def lost(self) -> dict[str, int]:
        return self.program.lost()

    @property
    def sampled_share(self) -> float:
        return self.program.sampled_share

    def detach(self) -> None:
        self.program.detach(INTERFACE)
        self.program.admit(INTERFACE)


class Contents:
    """What is in a map, of those that are empty or full of zeros in a program that was just loaded."""

    _HASH, _ARRAY, _MAPPABLE = 1, 2, 0x400  # include/uapi/linux/bpf.h

    def __init__(self, held: BpfMap) -> None:
        self._map = held
        about = Path(f"/proc/self/fdinfo/{held.descriptor}").read_text()
        said = re.findall(r"^(map_type|key_size|value_size|max_entries|map_flags):\s+(\w+)$", about, re.MULTILINE)
        self._about = {name: int(value, 0) for name, value in said}
        self._memory: mmap.mmap | None = None
        if self._about["map_flags"] & self._MAPPABLE:
            self._memory = held.mapped(self._about["value_size"] * self._about["max_entries"], writable=True)

    @property
    def forgettable(self) -> bool:
        """No map of programs, nor one of each CPU's own, which is of no use after a packet."""
        return self._about["map_type"] in {self._HASH, self._ARRAY}

    @property
    def empty(self) -> bool:
        if self._memory is not None:
            return not self._memory[:].strip(b"\0")
        keys, values = self._packed()
        return not (keys if self._about["map_type"] == self._HASH else values.strip(b"\0"))

    def forget(self) -> None:
        size = self._about["value_size"]
        if self._memory is not None:
            self._memory[:] = bytes(len(self._memory))
        elif self._about["map_type"] == self._HASH:
            self._packed(take=True)
        else:
            keys, values = self._packed()
            for place in range(len(keys) // 4):
                if values[place * size : (place + 1) * size].strip(b"\0"):
                    self._map.write(keys[place * 4 : (place + 1) * 4], bytes(size))

    def _packed(self, *, take: bool = False) -> tuple[bytes, bytes]:
        return self._map.packed(self._about["key_size"], self._about["value_size"], take=take)

    def close(self) -> None:
        if self._memory is not None:
            self._memory.close()
        self._map.close()


class LoadedTap:
    """The program, loaded once: that takes the kernel's verifier two seconds of CPU time."""

    def __init__(self, stack: ExitStack) -> None:
        self._maps: dict[str, Contents] = {}

        @contextmanager
        def seen(*arguments: object) -> Iterator[Path]:
            with pinned(*arguments) as folder:  # type: ignore[arg-type]
                for pin in (folder / "maps").glob("tap_*"):
                    self._maps[pin.name] = stack.enter_context(closing(Contents(BpfMap(pin))))
                yield folder

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("manager.host.taps.pinned", seen)
            self.program = stack.enter_context(closing(TapProgram(REAL)))

    def used(self) -> set[str]:
        """The maps in which something is."""
        return {name for name, one in self._maps.items() if one.forgettable and not one.empty}

    def as_new(self) -> TapProgram:
        """With nothing in its maps but new settings."""
        for interface in self.program.attached:
            self.program.detach(interface)
        for one in self._maps.values():
            if one.forgettable:
                one.forget()
        self.program._halved, self.program._seed = 0, secrets.randbits(64)
        self.program._grouping = Grouping(b"")
        self.program._set()
        return self.program


@pytest.fixture
def wire(loaded_tap: LoadedTap) -> Wire:
    return Wire(loaded_tap.as_new())


def time_us(wire: Wire) -> float:
    """The one response time that was seen."""
    assert wire.seen.times.count == 1
    return wire.seen.times.percentile_us(50) or 0.0
