"""The recorded operations, which the fake is checked with, on this kernel."""

from __future__ import annotations

import os
import platform
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from manager.host.resctrl.tree import ResctrlTree
from tests.host.conftest import REAL
from tests.host.resctrl.replay import Role, differences, read_record
from tests.kernel.inside.resctrl.host import POINT, Host


@dataclass
class KernelSubject:
    """This machine's resctrl, and processes of the kinds that the record has."""

    tree: ResctrlTree
    started: list[int] = field(default_factory=list)

    def entries(self, path: str) -> dict[str, bool]:
        with os.scandir(POINT / path) as found:
            return {entry.name: entry.is_dir() for entry in found}

    def process(self, recorded: int, role: Role) -> int:
        if role is Role.WRITER:
            return os.getpid()
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if role is Role.THREADED:
                    for _ in range(2):
                        threading.Thread(target=signal.pause).start()
                os.write(write, b"!")
                if role not in {Role.ZOMBIE, Role.DEAD}:
                    signal.pause()
            finally:
                os._exit(0)
        os.read(read, 1)
        os.close(read)
        os.close(write)
        if role is Role.DEAD:
            os.waitpid(pid, 0)
        else:
            self.started.append(pid)
        if role is Role.ZOMBIE:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid

    def resctrl_groups(self, pid: int) -> str:
        return Path(f"/proc/{pid}/cpu_resctrl_groups").read_text()

    def end(self) -> None:
        for pid in self.started:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


@pytest.fixture
def subject(host: Host) -> Iterator[KernelSubject]:
    """It begins as the record does: just mounted."""
    host.groups.close()
    host.tree.unmount()
    host.tree.mount(frozenset())
    found = KernelSubject(ResctrlTree(REAL))
    found.tree.options()
    yield found
    found.end()


def record_of(release: str) -> str:
    """The record of the kernel that is nearest; each of these changed what is said."""
    version = tuple(map(int, re.findall(r"\d+", release)[:2]))
    return next(f"linux-{'.'.join(map(str, one))}" for one in ((7, 3), (7, 2), (6, 12), (6, 1)) if version >= one)


def test_the_kernel_answers_as_it_did(subject: KernelSubject, record_property: Callable[[str, object], None]) -> None:
    record = record_of(platform.release())
    operations, different = differences(subject, read_record(record))
    record_property("record", record)
    record_property("operations", operations)
    assert not different, "\n".join(different)
    assert operations > 400
