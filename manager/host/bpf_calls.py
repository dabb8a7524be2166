"""The system call bpf(2): maps that were pinned, and links, which end with the process that made them.

Microseconds each, where bpftool takes tens of milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import socket
import struct
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from manager.errors import HostError
from manager.host.files import LIBC, refused, succeeded
from manager.host.registry import HostPaths
from manager.model.cpus import parse_cpus

# Numbers of the system call: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h
_BPF = {"x86_64": 321, "aarch64": 280}
# Commands and attributes: include/uapi/linux/bpf.h
_LOOKUP, _UPDATE, _DELETE, _OBJ_GET, _TEST_RUN, _LOOKUP_BATCH, _TAKE_BATCH, _LINK_CREATE = 1, 2, 3, 7, 10, 24, 25, 28
_ITER_CREATE = 33
_TRACE_ITER, TCX_INGRESS, TCX_EGRESS = 28, 46, 47
_ELEMENT = struct.Struct("=I4xQQQ")  # map_fd, key, value, flags
_PATH = struct.Struct("=QII")  # pathname, bpf_fd, file_flags
_BATCH = struct.Struct("=QQQQIIQQ")  # in_batch, out_batch, keys, values, count, map_fd, elem_flags, flags
_COUNT_AT = 32
_SO_ATTACH_BPF = 50  # include/uapi/asm-generic/socket.h
_EVERY_PROTOCOL = 3  # ETH_P_ALL: include/uapi/linux/if_ether.h
_TCX_LINK = struct.Struct("=IIIII4xQ")  # prog_fd, target_ifindex, attach_type, flags, relative_fd, expected_revision
_ITER_LINK = struct.Struct("=IIIIQI4x")  # prog_fd, target_fd, attach_type, flags, iter_info, iter_info_len
_ITER_TASK = struct.Struct("=III4x")  # tid, pid, pid_fd
_ITER = struct.Struct("=II")  # link_fd, flags
# prog_fd, retval, data_size_in, data_size_out, data_in, data_out, repeat, duration, ctx_size_in, ctx_size_out, ctx_in,
# ctx_out, flags, cpu, batch_size
_RUN = struct.Struct("=IIIIQQIIIIQQIII4x")
_AT_ONCE = 4096


def call(what: str, command: int, attributes: bytes | ctypes.Array[ctypes.c_char]) -> int:
    """What bpf(2) returns. Raises HostError, which begins with ``what``."""
    number = _BPF.get(platform.machine())
    if number is None:
        raise HostError(f"bpf(2) on {platform.machine()} is not known", errno.ENOSYS)
    with refused(what):
        return succeeded(LIBC.syscall(number, command, attributes, len(attributes)))


def open_pin(pin: Path) -> int:
    """A descriptor of the map or program that is pinned there. Raises HostError."""
    path = ctypes.create_string_buffer(os.fsencode(pin))
    return call(f"bpf object {pin}", _OBJ_GET, _PATH.pack(ctypes.addressof(path), 0, 0))


def link_tcx(program: int, interface: int, direction: int) -> int:
    """Attach a program (its descriptor) to an interface (its index), TCX_INGRESS or TCX_EGRESS, Linux 6.6 or newer.

    Returns the link's descriptor: the program is detached when that is closed, also by the end of the process.
    Raises HostError: EINVAL where the kernel knows no TCX, ENODEV for an interface that is gone.
    """
    attributes = _TCX_LINK.pack(program, interface, direction, 0, 0, 0)
    return call(f"attach to interface {interface}", _LINK_CREATE, attributes)


def visit_thread(program: int, tid: int) -> bytes:
    """Run a task iterator (its descriptor) on one thread, and what it says; of one that is gone it says nothing.

    Linux 6.1 or newer. Raises HostError.
    """
    task = ctypes.create_string_buffer(_ITER_TASK.pack(tid, 0, 0), _ITER_TASK.size)
    what = f"iterator on thread {tid}"
    link = call(what, _LINK_CREATE, _ITER_LINK.pack(program, 0, _TRACE_ITER, 0, ctypes.addressof(task), len(task)))
    try:
        iterator = call(what, _ITER_CREATE, _ITER.pack(link, 0))
        try:
            with refused(what):
                return os.read(iterator, _AT_ONCE)
        finally:
            os.close(iterator)
    finally:
        os.close(link)


def run_program(program: int, told: bytes) -> bytes:
    """Run a program of type syscall (its descriptor) with a context; what it left there. Linux 5.14 or newer.

    Raises HostError.
    """
    context = ctypes.create_string_buffer(told, len(told))
    attributes = _RUN.pack(program, *[0] * 7, len(told), 0, ctypes.addressof(context), *[0] * 4)
    call("run of a program", _TEST_RUN, attributes)
    return context.raw


def filter_packets(program: int, interface: int) -> int:
    """Have a program of type socket filter (its descriptor) see all packets of an interface (its index), both ways.

    Returns the descriptor of a packet socket: when that is closed, also by the end of the process, the program sees no
    more. Every Linux. Raises HostError: ENODEV for an interface that is gone, EPERM without CAP_NET_RAW.
    """
    try:
        with contextlib.closing(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)) as packets:
            packets.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_BPF, struct.pack("=i", program))
            packets.bind((socket.if_indextoname(interface), _EVERY_PROTOCOL))
            return packets.detach()
    except OSError as error:
        number = errno.ENODEV if error.errno == errno.ENXIO else error.errno or 0
        raise HostError(f"packet socket of interface {interface}: {error.strerror}", number) from error


def possible_cpus(paths: HostPaths) -> int:
    """For how many CPUs a map has values where it has one for each. Raises OSError, ValueError."""
    return len(parse_cpus(paths.possible_cpus.read_text()))


class BpfMap:
    """A map, held open. Every method raises HostError."""

    def __init__(self, pin: Path) -> None:
        self._what = f"bpf map {pin}"
        self._descriptor = open_pin(pin)

    def read(self, key: bytes, value_bytes: int) -> bytes | None:
        """An element's value, None when there is none. ``value_bytes`` must be what the kernel writes."""
        value = ctypes.create_string_buffer(value_bytes)
        return value.raw if self._element(_LOOKUP, key, value) else None

    def write(self, key: bytes, value: bytes) -> None:
        """Set an element."""
        self._element(_UPDATE, key, ctypes.create_string_buffer(value, len(value)))

    def remove(self, key: bytes) -> None:
        """Remove an element, if it is there."""
        self._element(_DELETE, key, None)

    def items(
        self, key: struct.Struct, value: struct.Struct, *, take: bool = False
    ) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """All elements of a hash, with few calls. ``take``: which are removed from it."""
        keys, values = self.packed(key.size, value.size, take=take)
        return zip(key.iter_unpack(keys), value.iter_unpack(values), strict=True)

    def packed(self, key_bytes: int, value_bytes: int, *, take: bool = False) -> tuple[bytes, bytes]:
        """The keys of all elements of a hash, and their values in that order: the same one while it has the same keys.

        ``take``: they are removed from it. The numbers of bytes must be what the kernel writes.
        """
        keys = ctypes.create_string_buffer(key_bytes * _AT_ONCE)
        values = ctypes.create_string_buffer(value_bytes * _AT_ONCE)
        here, there = ctypes.create_string_buffer(4), ctypes.create_string_buffer(4)  # of hashes: a bucket's number
        all_keys, all_values = bytearray(), bytearray()
        begin, more = 0, True
        while more:
            places = begin, ctypes.addressof(there), ctypes.addressof(keys), ctypes.addressof(values)
            packed = _BATCH.pack(*places, _AT_ONCE, self._descriptor, 0, 0)
            attributes = ctypes.create_string_buffer(packed, len(packed))
            try:
                call(self._what, _TAKE_BATCH if take else _LOOKUP_BATCH, attributes)
            except HostError as error:
                if error.errno != errno.ENOENT:  # there are no more than these
                    raise
                more = False
            (count,) = struct.unpack_from("=I", attributes, _COUNT_AT)
            all_keys += memoryview(keys)[: count * key_bytes]
            all_values += memoryview(values)[: count * value_bytes]
            here, there, begin = there, here, ctypes.addressof(there)
        return bytes(all_keys), bytes(all_values)

    @property
    def descriptor(self) -> int:
        """Its own: it ends with the map."""
        return self._descriptor

    def mapped(self, size_bytes: int, offset_bytes: int = 0, *, writable: bool = False) -> mmap.mmap:
        """The memory of an array's one value, of a map that is BPF_F_MMAPABLE, or pages of a ring."""
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        with refused(self._what):
            return mmap.mmap(self._descriptor, size_bytes, mmap.MAP_SHARED, protection, offset=offset_bytes)

    def lookups(self, keys: Sequence[bytes], value: struct.Struct) -> BpfLookups:
        """These elements, to be read many times."""
        return BpfLookups(self._descriptor, keys, value)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._descriptor)

    def _element(self, command: int, key: bytes, value: ctypes.Array[ctypes.c_char] | None) -> bool:
        """Whether it is there."""
        held = ctypes.create_string_buffer(key, len(key))
        at = ctypes.addressof(value) if value is not None else 0
        try:
            call(self._what, command, _ELEMENT.pack(self._descriptor, ctypes.addressof(held), at, 0))
        except HostError as error:
            if error.errno != errno.ENOENT or command == _UPDATE:
                raise
            return False
        return True


class BpfLookups:
    """Elements of a map that are read again and again, all made ready: about 2 us each. Holds the map by itself."""

    def __init__(self, descriptor: int, keys: Sequence[bytes], value: struct.Struct) -> None:
        self.descriptor = held = os.dup(descriptor)
        self._closing = weakref.finalize(self, os.close, held)
        self._value = value
        self._number = _BPF[platform.machine()]
        self._held: list[tuple[Any, Any, Any]] = []
        for text in keys:
            key, found = ctypes.create_string_buffer(text, len(text)), ctypes.create_string_buffer(value.size)
            packed = _ELEMENT.pack(held, ctypes.addressof(key), ctypes.addressof(found), 0)
            self._held.append((ctypes.create_string_buffer(packed, len(packed)), found, key))

    def read(self) -> list[tuple[Any, ...] | None]:
        """Their values in order, None for one that is not there."""
        call, number, size, unpack = LIBC.syscall, self._number, _ELEMENT.size, self._value.unpack
        return [
            None if call(number, _LOOKUP, attributes, size) else unpack(found) for attributes, found, _ in self._held
        ]
