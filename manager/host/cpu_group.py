"""The CPU controller's files of a VM's cgroup: weight, idle class and quota, on cgroup v1 and v2."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError
from manager.host.files import open_file, read, read_all, write
from manager.host.registry import IDLE_FILE, CgroupCpu
from manager.model.host import Quota
from manager.model.knobs import UNLIMITED, Knob


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the group holds. ``weight`` None: it is in the idle class; the others: the kernel has no such file."""

    weight: int | None
    idle: bool | None
    quota: Quota | None


class CpuGroup:
    """A cgroup's files, held open."""

    def __init__(self, cpu: CgroupCpu, folder: Path) -> None:
        """Open them. Raises VmVanished, HostError."""
        self._cpu = cpu
        self._fds: dict[str, int] = {}
        self._seen: tuple[list[bytes], GroupState] | None = None
        try:
            self._weight = self._open(folder / cpu.weight_file)
            self._idle = self._open(folder / IDLE_FILE, optional=True)
            self._quota = self._open(folder / cpu.quota_file, optional=True)
            self._period = self._open(folder / cpu.period_file, optional=True) if cpu.period_file else -1
        except BaseException:  # whatever ends it, no descriptor may stay open
            self.close()
            raise

    def read(self) -> GroupState:
        """All of them. Raises VmVanished, HostError; ValueError or IndexError for what no kernel writes."""
        read_now = read_all(self._fds.values())
        if self._seen is None or self._seen[0] != read_now:  # mostly they hold what they held
            self._seen = read_now, self._state_of(dict(zip(self._fds, read_now, strict=True)))
        return self._seen[1]

    def _state_of(self, texts: Mapping[str, bytes]) -> GroupState:
        idle = bool(_number_of(texts[IDLE_FILE])) if self._idle >= 0 else None
        return GroupState(None if idle else _number_of(texts[self._cpu.weight_file]), idle, self._quota_of(texts))

    def write(self, knob: Knob, value: int) -> int:
        """Set weight, idle class (0 or 1) or quota (microseconds, or UNLIMITED) and return what it then holds.

        Raises VmVanished, and HostError with the kernel's errno: EINVAL for the weight of a group in the idle class.
        """
        if knob is Knob.WEIGHT:
            write(self._weight, str(value).encode())
            return _number(self._weight)
        descriptor = self._idle if knob is Knob.IDLE else self._quota
        if descriptor < 0:
            raise HostError(f"this kernel has no file for {knob}", errno.ENOENT)
        if knob is Knob.IDLE:
            write(descriptor, str(value).encode())
            return _number(descriptor)
        # v2 keeps the period where only the quota is written.
        write(descriptor, b"max" if self._cpu.period_file is None and value == UNLIMITED else str(value).encode())
        held = self._quota_of({name: read(descriptor) for name, descriptor in self._fds.items()})
        return value if held is None else held.quota_us

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _quota_of(self, texts: Mapping[str, bytes]) -> Quota | None:
        if self._quota < 0:
            return None
        quota_text, period_file = texts[self._cpu.quota_file], self._cpu.period_file
        if period_file is not None:
            return Quota(_number_of(quota_text), _number_of(texts[period_file])) if self._period >= 0 else None
        quota, period = _whole(quota_text).split()
        return Quota(UNLIMITED if quota == b"max" else int(quota), int(period))

    def _open(self, path: Path, *, optional: bool = False) -> int:
        if optional and not path.exists():
            return -1
        self._fds[path.name] = descriptor = open_file(path, os.O_RDWR)
        return descriptor


def _whole(text: bytes) -> bytes:
    """A file's one line, as a whole: a part of a number would pass for another. Raises HostError."""
    if not text.endswith(b"\n"):
        raise HostError(f"read: {text!r} is cut short", errno.EIO)
    return text


def _number_of(text: bytes) -> int:
    """The number that a file consists of. Raises HostError, ValueError."""
    return int(_whole(text))


def _number(descriptor: int) -> int:
    """The number in a file. Raises VmVanished, HostError, ValueError."""
    return _number_of(read(descriptor))
