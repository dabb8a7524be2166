"""Who uses the lab: one at a time, as all take the same CPUs, and tests end libvirtd and VMs."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from deploy.lab.commands import LabError
from deploy.lab.guest import DEFAULT_BASE

LOCK = "lab.lock"
REMIND_S = 30.0
_POLL_S = 0.5


class _User(NamedTuple):
    """Who has the lab, as one line of the lock's file says, which deploy/lab/setup.sh shows, too."""

    process: int
    since: str
    name: str

    @property
    def text(self) -> str:
        return f"{self.name} (process {self.process}) has used the lab since {self.since}"


def to_stderr(line: str) -> None:
    """Print a line for a person who waits."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def only_user(
    who: str,
    base: Path = DEFAULT_BASE,
    *,
    wait: bool = True,
    say: Callable[[str], None] = to_stderr,
    remind_s: float = REMIND_S,
) -> Iterator[None]:
    """Have the lab for oneself while the block runs; a block within one of the same process changes nothing.

    While another process has it, ``say`` gets who and since when, at once and every ``remind_s`` seconds. Raises
    LabError with that where it is not to ``wait``.
    """
    base.mkdir(mode=0o755, parents=True, exist_ok=True)
    descriptor = os.open(base / LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        if not _take_turn(descriptor, wait, say, remind_s):
            yield
            return
        os.ftruncate(descriptor, 0)
        line = f"{os.getpid()} {time.strftime('%H:%M:%S')} {who}\n"
        os.pwrite(descriptor, line.encode(), 0)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _take_turn(descriptor: int, wait: bool, say: Callable[[str], None], remind_s: float) -> bool:
    """Lock the file, which may take as long as others use the lab. False: this process has it locked already."""
    said_s: float | None = None
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            user = _user(descriptor)
            if user is not None and user.process == os.getpid():
                return False
            text = user.text if user else "somebody uses the lab"
            if not wait:
                raise LabError(f"{text}: wait for its end, or stop it") from None
            if said_s is None or time.monotonic() - said_s >= remind_s:
                say(f"{text}: waiting for its end")
                said_s = time.monotonic()
            time.sleep(_POLL_S)
        else:
            if said_s is not None:
                say("the lab is free: going on")
            return True


def _user(descriptor: int) -> _User | None:
    """Who the file says has it; None where that is not written yet."""
    words = os.pread(descriptor, 200, 0).decode(errors="replace").strip().split(" ", 2)
    return _User(int(words[0]), words[1], words[2]) if len(words) == 3 and words[0].isdecimal() else None
