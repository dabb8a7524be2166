"""The kernel tells when pCPUs go and come; nobody else does."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from manager.host import replugs
from manager.host.replugs import Replugs

KERNEL, ANOTHER = 0, 4711


class Told:
    """A socket with these messages, each with its sender, or errors."""

    def __init__(self, *messages: tuple[bytes, int] | OSError) -> None:
        self.messages: Iterator[tuple[bytes, int] | OSError] = iter(messages)

    def recvfrom(self, _longest: int) -> tuple[bytes, tuple[int, int]]:
        message = next(self.messages, BlockingIOError())
        if isinstance(message, OSError):
            raise message
        text, sender = message
        return text, (sender, 1)


def counted(*messages: tuple[bytes, int] | OSError) -> int:
    found = Replugs()
    found._socket = Told(*messages)  # type: ignore[assignment]
    assert found.count == found.count
    return found.count


@pytest.mark.parametrize("action", [b"online", b"offline"])
def test_a_pcpu_that_goes_or_comes_counts(action: bytes) -> None:
    assert counted((action + b"@/devices/system/cpu/cpu1\0ACTION=" + action, KERNEL)) == 1


def test_other_devices_and_other_senders_do_not_count() -> None:
    others = [b"add@/devices/virtual/net/vnet0\0", b"online@/devices/system/memory/memory7\0", b""]
    assert counted(*[(text, KERNEL) for text in others], (b"online@/devices/system/cpu/cpu1\0", ANOTHER)) == 0


def test_lost_events_may_have_been_one() -> None:
    assert counted(OSError(errno.ENOBUFS, ""), (b"offline@/devices/system/cpu/cpu1\0", KERNEL)) == 2


def test_a_socket_that_fails_is_left() -> None:
    assert counted(OSError(errno.EBADF, ""), (b"offline@/devices/system/cpu/cpu1\0", KERNEL)) == 1


def test_without_netlink_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "")

    monkeypatch.setattr(replugs.socket, "socket", refuse)
    assert Replugs().count == 0


def test_this_kernel_tells(tmp_path: Path) -> None:
    """By the uevent file of a pCPU: what is written there the kernel sends as if it had happened."""
    del tmp_path
    file = next(iter(sorted(Path("/sys/devices/system/cpu").glob("cpu[0-9]*/uevent"))), None)
    try:
        socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15).close()
        found = Replugs()
        assert file is not None
        file.write_text("online")
    except OSError as error:
        pytest.skip(f"NOT TESTED: this kernel sends no uevents: {error}")
    assert found.count == 1
