"""Who uses the lab: one at a time, as all take the same CPUs, and tests end libvirtd and VMs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.lab.commands import LabError
from deploy.lab.guest import DEFAULT_BASE

LOCK = "lab.lock"


@contextmanager
def only_user(who: str, base: Path = DEFAULT_BASE) -> Iterator[None]:
    """Have the lab for oneself while the block runs; a block within one of the same process changes nothing.

    Raises LabError that names who has it, and what to do.
    """
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(base / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process, _, user = os.pread(descriptor, 200, 0).decode(errors="replace").strip().partition(" ")
            if process == str(os.getpid()):
                yield
                return
            raise LabError(f"{user or 'somebody'} is using the lab (process {process}): wait or stop it") from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {who}\n".encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)
