"""Kernel files that are held open and read or written again and again."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from manager.errors import HostError
from manager.host.process import refusal


def open_file(path: Path, flags: int) -> int:
    """A descriptor. Raises VmVanished, HostError."""
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError as error:
        raise refusal(f"open {path}", error) from error


def read(descriptor: int) -> bytes:
    """The file from its begin. Raises VmVanished, HostError."""
    try:
        text = os.pread(descriptor, 4096, 0)
    except OSError as error:
        raise refusal("read", error) from error
    if not text:
        raise HostError("read: the kernel returned nothing", errno.EIO)
    return text


def read_all(descriptors: Iterable[int]) -> list[bytes]:
    """Several short files from their begin. Raises VmVanished, HostError."""
    try:
        texts = [os.pread(descriptor, 4096, 0) for descriptor in descriptors]
    except OSError as error:
        raise refusal("read", error) from error
    if not all(texts):
        raise HostError("read: the kernel returned nothing", errno.EIO)
    return texts


def read_number(descriptor: int, key: bytes = b"") -> int:
    """The number in a file, after ``key`` where there is one. Raises VmVanished, HostError, ValueError, IndexError."""
    text = read(descriptor)
    return int(text.partition(key)[2].split(None, 1)[0] if key else text)


def write(descriptor: int, text: bytes) -> None:
    """Write as a whole. Raises VmVanished, HostError."""
    try:
        os.pwrite(descriptor, text, 0)
    except OSError as error:
        raise refusal(f"write {text.decode()}", error) from error


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor for a moment. Raises VmVanished, HostError."""
    descriptor = open_file(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def number_in(path: Path) -> int:
    """The number that a file holds. Raises VmVanished, HostError."""
    with opened(path, os.O_RDONLY) as descriptor:
        try:
            return read_number(descriptor)
        except ValueError as error:
            raise HostError(f"{path}: {error}", errno.EIO) from error


def put_number(path: Path, value: int) -> None:
    """Write it. Raises VmVanished, HostError."""
    with opened(path, os.O_WRONLY) as descriptor:
        write(descriptor, str(value).encode())


def inode(folder: Path) -> int:
    """Number of a folder: for a control group, its id. Raises VmVanished, HostError."""
    try:
        return folder.stat().st_ino
    except OSError as error:
        raise refusal(f"{folder}", error) from error
