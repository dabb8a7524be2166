"""Opening a log that others name and others write: only a plain file, in a folder where logs may be.

Each component is opened beneath the one before and no link is followed. What is there is looked at before it is opened
for reading, as opening a device, a pipe or a file of procfs may have effects of its own: open(2), O_PATH.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import sys
from collections.abc import Sequence
from pathlib import PurePosixPath

from manager.host.files import LIBC, succeeded

DEFAULT_LOG_DIRS = ("/var/log",)
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

# statfs(2), f_type: file systems that keep files on a disk or in memory. Those of a network or of FUSE may block.
_FILE_SYSTEMS = frozenset(
    {
        0xEF53,  # ext2, ext3, ext4
        0x58465342,  # XFS
        0x9123683E,  # Btrfs
        0x2FC12FC1,  # ZFS
        0xF2F52010,  # F2FS
        0xCA451A4E,  # bcachefs
        0x3153464A,  # JFS
        0x52654973,  # ReiserFS
        0x3434,  # NILFS
        0x4D44,  # FAT
        0x2011BAB0,  # exFAT
        0x794C7630,  # overlayfs
        0x01021994,  # tmpfs
        0x858458F6,  # ramfs
    }
)
_STATFS_BYTES = 256
_TYPE_BYTES = 4 if platform.machine() == "s390x" else ctypes.sizeof(ctypes.c_long)


def look_at_log(path: str, folders: Sequence[str]) -> int:
    """A descriptor by which nothing can be read (O_PATH) of the plain file at ``path``, in one of ``folders``.

    Raises OSError, also for what is not a plain file, or not to be reached without a link.
    """
    folder, parts = _place(path, folders)
    # A folder of the settings may be a link: the administrator named it.
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parts:
        try:
            inner = os.open(part, _LOOK, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = inner
        try:
            _check(descriptor, is_last=part is parts[-1])
        except OSError:
            os.close(descriptor)
            raise
    return descriptor


def open_log(looked_at: int) -> int:
    """Open what ``look_at_log`` found for reading. Raises OSError."""
    return os.open(f"/proc/self/fd/{looked_at}", _READ)


def _place(path: str, folders: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The folder that a path is in, and the components below it."""
    parts = PurePosixPath(path).parts
    if ".." not in parts:
        for folder in folders:
            above = PurePosixPath(folder).parts
            if len(parts) > len(above) and parts[: len(above)] == above:
                return folder, parts[len(above) :]
    allowed = ", ".join(folders) or "none"
    raise OSError(0, f"it is in no folder of this agent's setting log_dirs ({allowed})", path)


def _check(descriptor: int, *, is_last: bool) -> None:
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(0, "there is a symbolic link on the way, which is not followed")
    if is_last and not stat.S_ISREG(mode):
        raise OSError(0, "it is not a regular file")
    if is_last and _file_system(descriptor) not in _FILE_SYSTEMS:
        raise OSError(0, "it is on no file system of a disk or of memory")


def _file_system(descriptor: int) -> int:
    """The type of the file system that a file is on. Raises OSError."""
    answer = ctypes.create_string_buffer(_STATFS_BYTES)
    succeeded(LIBC.fstatfs(descriptor, answer))
    return int.from_bytes(answer.raw[:_TYPE_BYTES], sys.byteorder) & 0xFFFF_FFFF
