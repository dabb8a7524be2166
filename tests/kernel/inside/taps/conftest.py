"""The program on taps, loaded once in each guest."""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from manager.host.registry import HostPaths
from manager.host.taps import TapProgram

LOOPBACK = 1
HOST = HostPaths(Path("/"))


@pytest.fixture(scope="session", autouse=True)
def loopback() -> None:
    """The loopback, up: SIOCSIFFLAGS with IFF_UP."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 1))


@pytest.fixture(scope="session")
def loaded(loopback: None) -> Iterator[TapProgram]:
    """For all tests of a guest: the verifier takes an emulated machine longer than all of them."""
    with closing(TapProgram(HOST)) as program:
        yield program


@pytest.fixture
def program(loaded: TapProgram) -> Iterator[TapProgram]:
    """It has seen nothing yet, and looks at nothing."""
    assert not loaded.attached
    yield loaded
    loaded.detach(LOOPBACK)
    assert loaded.traffic() == []
    assert not list(Path("/sys/fs/bpf").glob("equipoise_tap*"))
