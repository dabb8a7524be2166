"""The file system resctrl itself: files, folders and the mount, with the kernel's errors as they are."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Protocol

from manager.host.registry import HostPaths

_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")
_NOSUID_NODEV_NOEXEC = 2 | 4 | 8
_CHUNK_BYTES = 1 << 16


class ResctrlFile(Protocol):
    """A file that is held open; of a removed group it fails with ENODEV, also where the name is used again."""

    def read(self) -> str:
        """The whole text as it is now. Raises OSError."""

    def write(self, text: str) -> None:
        """One command, in one system call. Raises OSError."""

    def close(self) -> None:
        """Close it; may be called twice."""


class ResctrlTree(Protocol):
    """The tree; paths are relative to its root, which is the empty path. Everything raises OSError."""

    def options(self) -> frozenset[str] | None:
        """Options of the mount, None where resctrl is not mounted."""

    def mount(self, options: frozenset[str]) -> None:
        """Mount it at the usual place."""

    def unmount(self) -> None:
        """Unmount it, by which the kernel removes all groups, of others too, and resets all values."""

    def open(self, path: str, *, write: bool = False) -> ResctrlFile:
        """Hold a file, for reading or for writing."""

    def folders(self, path: str) -> list[str]:
        """Names of the folders in a folder, sorted."""

    def make(self, path: str) -> None:
        """Make a group."""

    def remove(self, path: str) -> None:
        """Remove a group; its tasks go to the group above it."""


class KernelFile:
    """A descriptor."""

    def __init__(self, path: Path, flags: int) -> None:
        self._fd = os.open(path, flags | os.O_CLOEXEC)

    def read(self) -> str:
        """From the begin to the end."""
        text = b""
        while chunk := os.pread(self._fd, _CHUNK_BYTES, len(text)):
            text += chunk
        return text.decode()

    def write(self, text: str) -> None:
        """The kernel takes each call for one command."""
        os.write(self._fd, text.encode())

    def close(self) -> None:
        """Close the descriptor."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class KernelTree:
    """The tree of a running kernel, wherever it is mounted."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._point = paths.resctrl

    def options(self) -> frozenset[str] | None:
        """From proc_pid_mountinfo(5), the options of the file system; the mount point is noted for everything else."""
        for line in os.fsdecode(self._paths.mountinfo.read_bytes()).splitlines():
            left, _, right = line.partition(" - ")
            fields, kind = left.split(), right.split()
            if len(fields) >= 5 and kind[:1] == ["resctrl"]:
                point = _OCTAL_ESCAPE.sub(lambda match: chr(int(match.group(1), 8)), fields[4])
                self._point = self._paths.root / PurePosixPath(point).relative_to("/")
                return frozenset(kind[-1].split(","))
        return None

    def mount(self, options: frozenset[str]) -> None:
        """mount(2)."""
        self._point = self._paths.resctrl
        data = ",".join(sorted(options)).encode()
        point = os.fsencode(self._point)
        _call(lambda libc: libc.mount(b"resctrl", point, b"resctrl", ctypes.c_ulong(_NOSUID_NODEV_NOEXEC), data))

    def unmount(self) -> None:
        """umount2(2)."""
        _call(lambda libc: libc.umount2(os.fsencode(self._point), 0))

    def open(self, path: str, *, write: bool = False) -> KernelFile:
        """Neither made nor truncated: a file that is not there is an error."""
        return KernelFile(self._point / path, os.O_WRONLY if write else os.O_RDONLY)

    def folders(self, path: str) -> list[str]:
        """In one reading of the folder."""
        with os.scandir(self._point / path) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))

    def make(self, path: str) -> None:
        """mkdir(2)."""
        (self._point / path).mkdir(0o755)

    def remove(self, path: str) -> None:
        """rmdir(2)."""
        (self._point / path).rmdir()


def _call(function: Callable[[ctypes.CDLL], int]) -> None:
    """A call of the C library. Raises OSError."""
    if function(ctypes.CDLL(None, use_errno=True)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
