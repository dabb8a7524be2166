"""Pinned BPF maps, through the bpf(2) system call: microseconds, where bpftool takes tens of milliseconds."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from pathlib import Path

from manager.errors import HostError
from manager.host.process import refusal

# Numbers of the system call: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_BPF = {"x86_64": 321, "aarch64": 280}
# Commands and attributes: include/uapi/linux/bpf.h
_LOOKUP, _UPDATE, _DELETE, _OBJ_GET = 1, 2, 3, 7

_libc = ctypes.CDLL(None, use_errno=True)


class _Element(ctypes.Structure):
    _fields_ = (
        ("map_fd", ctypes.c_uint32),
        ("padding", ctypes.c_uint32),
        ("key", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


class _Path(ctypes.Structure):
    _fields_ = (("pathname", ctypes.c_uint64), ("bpf_fd", ctypes.c_uint32), ("file_flags", ctypes.c_uint32))


class BpfMap:
    """A map, held open. Every method raises HostError."""

    def __init__(self, pin: Path) -> None:
        self._pin = pin
        path = ctypes.create_string_buffer(os.fsencode(pin))
        attributes = _Path(pathname=ctypes.addressof(path))
        self._descriptor = self._call(_OBJ_GET, attributes)

    def read(self, key: bytes, value_bytes: int) -> bytes | None:
        """An element's value, None when there is none. ``value_bytes`` must be what the kernel writes."""
        value = ctypes.create_string_buffer(value_bytes)
        try:
            self._element(_LOOKUP, key, value)
        except HostError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def write(self, key: bytes, value: bytes) -> None:
        """Set an element."""
        self._element(_UPDATE, key, ctypes.create_string_buffer(value, len(value)))

    def remove(self, key: bytes) -> None:
        """Remove an element, if it is there."""
        try:
            self._element(_DELETE, key, None)
        except HostError as error:
            if error.errno != errno.ENOENT:
                raise

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def _element(self, command: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None) -> None:
        held = ctypes.create_string_buffer(key, len(key))
        at = ctypes.addressof(value) if value is not None else 0
        self._call(command, _Element(map_fd=self._descriptor, key=ctypes.addressof(held), value=at))

    def _call(self, command: int, attributes: ctypes.Structure) -> int:
        number = _BPF.get(platform.machine())
        if number is None:
            raise HostError(f"bpf(2) on {platform.machine()} is not known", errno.ENOSYS)
        done = int(_libc.syscall(number, command, ctypes.byref(attributes), ctypes.sizeof(attributes)))
        if done < 0:
            code = ctypes.get_errno()
            raise refusal(f"bpf map {self._pin}", OSError(code, os.strerror(code)))
        return done
