"""Rate limits and turns that the processes of a manager share, in a file that all of them map.

The file is a table of sets of a few buckets; a key's digest says which set. Locks are those of the file (fcntl(2),
F_SETLKW): the kernel releases them when a process ends, however it does. Where a set is full the bucket that was not
used for longest makes room.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
import threading
import time
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from pathlib import Path

from manager.errors import Busy

_BUCKET = struct.Struct("=16sdd")
_WAYS = 8
_SETS = 1280
_SET_BYTES = _WAYS * _BUCKET.size
_TABLE_BYTES = _SETS * _SET_BYTES
_GATE_WAIT_S = 3.0
_GATE_LOOK_S = 0.02


class SharedLimits:
    """The table of one process. Thread-safe; a process opens it once, as closing it would release all its locks."""

    def __init__(self, file: Path) -> None:
        """Map a file, which is made where it is missing. Raises OSError."""
        self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.posix_fallocate(self._file, 0, _TABLE_BYTES)  # else a full disk ends whoever writes to the table
        self._table = mmap.mmap(self._file, _TABLE_BYTES)
        self._lock = threading.Lock()  # locks of the file are those of a process, for all of its threads

    def buckets(self, limit: str) -> SharedBuckets:
        """Those of a limit by its name."""
        return SharedBuckets(self, limit)

    @contextmanager
    def gate(self) -> Iterator[None]:
        """Whoever is in it is alone. Raises Busy after three seconds."""
        deadline_s = time.monotonic() + _GATE_WAIT_S
        while not self._enter():
            if time.monotonic() > deadline_s:
                raise Busy("too many requests of this kind at the same time: try again in a moment")
            time.sleep(_GATE_LOOK_S)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _TABLE_BYTES)

    def _enter(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _TABLE_BYTES)
        except BlockingIOError:
            return False
        return True

    @contextmanager
    def locked(self, place: int) -> Iterator[None]:
        """A block in which no other process or thread uses the set at a place."""
        with self._lock:
            fcntl.lockf(self._file, fcntl.LOCK_EX, _SET_BYTES, place)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN, _SET_BYTES, place)

    def read(self, place: int, digest: bytes) -> tuple[float, float] | None:
        """The bucket of a digest in the set at a place."""
        for way in range(_WAYS):
            owner, left, at_s = _BUCKET.unpack_from(self._table, place + way * _BUCKET.size)
            if owner == digest:
                return left, at_s
        return None

    def set(self, place: int, digest: bytes, left: float, at_s: float) -> None:
        """Keep the bucket of a digest in the set at a place."""
        oldest, oldest_s = 0, float("inf")
        for way in range(_WAYS):
            owner, _, used_s = _BUCKET.unpack_from(self._table, place + way * _BUCKET.size)
            if owner == digest:
                oldest = way
                break
            if used_s < oldest_s:
                oldest, oldest_s = way, used_s
        _BUCKET.pack_into(self._table, place + oldest * _BUCKET.size, digest, left, at_s)


class SharedBuckets:
    """The buckets of one limit; see ``rate_limit.Buckets``. Keys that are written alike are one."""

    def __init__(self, limits: SharedLimits, name: str) -> None:
        self._limits = limits
        self._name = name

    @contextmanager
    def locked(self, key: Hashable) -> Iterator[None]:
        """A block in which nobody else reads or sets the bucket of that key."""
        with self._limits.locked(_place(self._digest(key))):
            yield

    def read(self, key: Hashable) -> tuple[float, float] | None:
        """The bucket; None: a full one."""
        digest = self._digest(key)
        return self._limits.read(_place(digest), digest)

    def set(self, key: Hashable, left: float, at_s: float) -> None:
        """Keep it."""
        digest = self._digest(key)
        self._limits.set(_place(digest), digest, left, at_s)

    def _digest(self, key: Hashable) -> bytes:
        return hashlib.blake2b(repr((self._name, key)).encode(), digest_size=16).digest()


def _place(digest: bytes) -> int:
    return int.from_bytes(digest[:4], "little") % _SETS * _SET_BYTES
