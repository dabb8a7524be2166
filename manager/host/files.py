"""Kernel files: small ones that are read or written once, those held open, and where file systems are mounted."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from manager.errors import HostError, VmVanished
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, parse_cpus

_GONE = frozenset({errno.ENODEV, errno.ESRCH, errno.ENOENT})
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")
SHORT, LONG = 256, 4096
"""Bytes that hold a few numbers, or a page of them: Python has room for the former at hand, and a tick reads many."""
LIBC = ctypes.CDLL(None, use_errno=True)


def refusal(action: str, error: OSError) -> HostError:
    """The error for a failed system call: VmVanished when its object is gone, otherwise HostError with the errno."""
    number = error.errno or 0
    kind = VmVanished if number in _GONE else HostError
    return kind(f"{action}: {os.strerror(number)}", number)


@contextlib.contextmanager
def refused(action: str) -> Iterator[None]:
    """Raises ``refusal`` in place of the block's OSError."""
    try:
        yield
    except OSError as error:
        raise refusal(action, error) from error


def succeeded(result: int) -> int:
    """What a call of ``LIBC`` returned. Raises OSError with its errno for -1."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def open_file(path: Path, flags: int) -> int:
    """A descriptor. Raises VmVanished, HostError."""
    with refused(f"open {path}"):
        return os.open(path, flags | os.O_CLOEXEC)


def read(descriptor: int, most: int = SHORT) -> bytes:
    """At most so many bytes from the file's start. Raises VmVanished, HostError."""
    try:  # without ``refused``: it is read for each vCPU in each tick
        text = os.pread(descriptor, most, 0)
    except OSError as error:
        raise refusal("read", error) from error
    if not text:
        raise HostError("read: the kernel returned nothing", errno.EIO)
    return text


def write(descriptor: int, text: bytes) -> None:
    """Write in one call. Raises VmVanished, HostError."""
    with refused(f"write {text.decode()}"):
        os.pwrite(descriptor, text, 0)


def number_in(path: Path) -> int:
    """The number that a file holds. Raises VmVanished, HostError."""
    with refused(f"read {path}"):
        text = path.read_bytes()
    try:
        return int(text)
    except ValueError as error:
        raise HostError(f"{path}: {error}", errno.EIO) from error


def put_number(path: Path, value: int) -> None:
    """Write it. Raises VmVanished, HostError."""
    descriptor = open_file(path, os.O_WRONLY)
    try:
        write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def inode(folder: Path) -> int:
    """Number of a folder: for a control group, its id. Raises VmVanished, HostError."""
    with refused(f"{folder}"):
        return folder.stat().st_ino


def read_small(path: str) -> bytes:
    """A small file of procfs, at half the cost of Path.read_bytes, which counts for each thread of each VM."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def text_of(path: Path) -> str | None:
    """The file's text, stripped; None where there is no such file, or its process ended. Raises other OSErrors."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None


def number_of(path: Path) -> int | None:
    """The number in a file, None where there is no such file. Raises OSError, ValueError for anything else in it."""
    text = text_of(path)
    return None if text is None else int(text)


def cpus_of(path: Path) -> CpuSet:
    """The CPU list in a file; empty where there is none, or ``(null)`` (nohz_full off). Raises OSError, ValueError."""
    text = text_of(path) or ""
    return frozenset() if text == "(null)" else parse_cpus(text)


def names_in(folder: Path) -> list[str]:
    """Names in a folder, sorted; none where there is no such folder. Raises other OSErrors."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def cpu_flags(paths: HostPaths) -> frozenset[str]:
    """The flags (x86) or features (Arm) of the first CPU in /proc/cpuinfo. Raises OSError."""
    for line in paths.cpuinfo.read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()


def cpu_model(paths: HostPaths) -> str:
    """The model of the first CPU in /proc/cpuinfo: its name (x86), or numbers of maker and part (Arm); empty: none."""
    fields: dict[str, str] = {}
    for line in (text_of(paths.cpuinfo) or "").splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), " ".join(value.split()))
    if fields.get("model name"):
        return fields["model name"]
    numbers = [fields.get(name, "") for name in ("CPU implementer", "CPU part")]
    return f"implementer {numbers[0]}, part {numbers[1]}" if all(numbers) else ""


class Mount(NamedTuple):
    """A mount of this mount namespace. ``top`` is the folder of the file system that ``point`` shows."""

    kind: str
    point: Path
    top: str
    options: tuple[str, ...]


def mounts_of(paths: HostPaths, *kinds: str) -> Iterator[Mount]:
    """Mounts of these kinds of file systems, at points below the root folder: proc_pid_mountinfo(5). Raises OSError."""
    for line in os.fsdecode(paths.mountinfo.read_bytes()).splitlines():
        left, _, right = line.partition(" - ")
        fields, system = left.split(), right.split()
        if len(fields) >= 5 and system and system[0] in kinds:
            top, point = (_OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), path) for path in fields[3:5])
            yield Mount(system[0], paths.root / point.lstrip("/"), top, tuple(system[-1].split(",")))


def mounted(paths: HostPaths, kind: str) -> Path | None:
    """Where a file system of that kind is mounted first, None where nowhere. Raises OSError."""
    return next((mount.point for mount in mounts_of(paths, kind)), None)
