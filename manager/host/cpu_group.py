"""The CPU controller's files of a VM's cgroup: weight, idle class and quota, on cgroup v1 and v2."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from manager.errors import HostError
from manager.host.files import open_file, read_all, write
from manager.host.registry import IDLE_FILE, CgroupCpu
from manager.model.host import Quota
from manager.model.knobs import UNLIMITED, Knob


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the group holds. ``weight`` None: it is in the idle class; the others: the kernel has no such file."""

    weight: int | None
    idle: bool | None
    quota: Quota | None

    def value(self, knob: Knob) -> int | None:
        """As a knob has it."""
        idle, quota_us = int(self.idle or 0), self.quota.quota_us if self.quota else None
        return {Knob.WEIGHT: self.weight, Knob.IDLE: idle, Knob.QUOTA: quota_us}[knob]


class CpuGroup:
    """A cgroup's files, held open."""

    def __init__(self, cpu: CgroupCpu, folder: Path) -> None:
        """Open them. Raises VmVanished, HostError."""
        self._cpu = cpu
        self._files = {Knob.WEIGHT: cpu.weight_file, Knob.IDLE: IDLE_FILE, Knob.QUOTA: cpu.quota_file}
        self._fds: dict[str, int] = {}
        self._seen: tuple[list[bytes], GroupState] | None = None
        try:
            for name in filter(None, (*self._files.values(), cpu.period_file)):
                if name == cpu.weight_file or (folder / name).exists():
                    self._fds[name] = open_file(folder / name, os.O_RDWR)
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
        idle = bool(_number(texts[IDLE_FILE])) if IDLE_FILE in texts else None
        return GroupState(None if idle else _number(texts[self._cpu.weight_file]), idle, self._quota_of(texts))

    def write(self, knob: Knob, value: int) -> int:
        """Set weight, idle class (0 or 1) or quota (microseconds, or UNLIMITED) and return what it then holds.

        Raises VmVanished, and HostError with the kernel's errno: EINVAL for the weight of a group in the idle class.
        """
        descriptor = self._fds.get(self._files[knob])
        if descriptor is None:
            raise HostError(f"this kernel has no file for {knob}", errno.ENOENT)
        # v2 keeps the period where only the quota is written.
        unlimited = knob is Knob.QUOTA and value == UNLIMITED and self._cpu.period_file is None
        write(descriptor, b"max" if unlimited else str(value).encode())
        held = self.read().value(knob)
        return value if held is None else held

    def close(self) -> None:
        """Close all descriptors; may be called twice."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    def _quota_of(self, texts: Mapping[str, bytes]) -> Quota | None:
        period_file, quota_text = self._cpu.period_file, texts.get(self._cpu.quota_file)
        if quota_text is None:
            return None
        if period_file is not None:
            return Quota(_number(quota_text), _number(texts[period_file])) if period_file in texts else None
        quota, period = _whole(quota_text).split()
        return Quota(UNLIMITED if quota == b"max" else int(quota), int(period))


def _whole(text: bytes) -> bytes:
    """A file's one line, as a whole: a part of a number would pass for another. Raises HostError."""
    if not text.endswith(b"\n"):
        raise HostError(f"read: {text!r} is cut short", errno.EIO)
    return text


def _number(text: bytes) -> int:
    """The number that a file consists of. Raises HostError, ValueError."""
    return int(_whole(text))
