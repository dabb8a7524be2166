"""A process whose threads are named as QEMU names its own. Run by the tests, which speak with it over pipes.

usage: qemu_like.py -uuid UUID -name MAIN -threads NAME ...

A name is text of bytes (latin-1). It prints one line of JSON with the thread id of each name, then does one command
a line and answers each with a line:

    start NAME   one thread more; answers with its thread id
    end NAME     that thread ends
    spin         all threads use as much CPU time as they get
    spin NAME    that thread does
    rest         they stop
    hold MIB     it has so much memory more, and uses all of it; 0: it gives all of that back
    grow MIB     it has so much more than it has
    touch        it uses all of that again
    read PATH    a thread more reads that disk until it rests, past the page cache
    vhost        it opens /dev/vhost-net, as for a network interface, for which the kernel makes a thread; or closes it
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import random
import sys
import threading
import time
from pathlib import Path

PR_SET_NAME = 15
VHOST_SET_OWNER = 0xAF01

_libc = ctypes.CDLL(None)
_spinning, _resting = threading.Event(), threading.Event()


class Worker:
    """A named thread; ``tid`` is known once it runs under its name."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ready, self._ending, self.spinning = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()
        self.tid = self._thread.native_id

    def _run(self) -> None:
        set_name(self._name)
        self._ready.set()
        while not self._ending.wait(0 if self._spins() else 0.01):
            if self._spins():
                hashlib.pbkdf2_hmac("sha256", b"", b"", 5000)  # lets the other threads run meanwhile

    def _spins(self) -> bool:
        return self.spinning.is_set() or _spinning.is_set()

    def end(self) -> None:
        self._ending.set()
        self._thread.join()
        while Path(f"/proc/self/task/{self.tid}").exists():  # the kernel is done with it a moment later
            time.sleep(0.001)


def set_name(name: str) -> None:
    """Name the calling thread as the kernel shows it."""
    _libc.prctl(PR_SET_NAME, name.encode("latin-1"), 0, 0, 0)


def use(memory: mmap.mmap) -> mmap.mmap:
    for place in range(0, len(memory), mmap.PAGESIZE):
        memory[place] = 1
    return memory


def read_disk(path: str) -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE)
    disk = os.open(path, os.O_RDONLY | os.O_DIRECT)
    size = os.lseek(disk, 0, os.SEEK_END)
    while not _resting.is_set():
        os.preadv(disk, [page], random.randrange(size // len(page)) * len(page))
    os.close(disk)


def occupy(held: list[mmap.mmap], command: str, mib: str) -> int:
    if command == "touch":
        return len([use(memory) for memory in held])  # no variable may hold one
    if command == "hold":
        held.clear()
    if int(mib):
        held.append(use(mmap.mmap(-1, int(mib) << 20)))
    return 0


def turn_vhost(opened: list[int]) -> None:
    """linux/vhost.h."""
    if opened:
        os.close(opened.pop())
        return
    opened.append(os.open("/dev/vhost-net", os.O_RDWR))
    fcntl.ioctl(opened[0], VHOST_SET_OWNER)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-uuid")
    parser.add_argument("-name", default="qemu-system-x86")
    parser.add_argument("-threads", nargs="*", default=[])
    options = parser.parse_args()
    set_name(options.name)
    workers = {name: Worker(name) for name in options.threads}
    print(json.dumps({name: worker.tid for name, worker in workers.items()}), flush=True)
    held: list[mmap.mmap] = []
    vhost: list[int] = []
    for line in sys.stdin:
        command, _, name = line.rstrip("\n").partition(" ")
        answer = 0
        if command == "start":
            workers[name] = Worker(name)
            answer = workers[name].tid
        elif command == "end":
            workers.pop(name).end()
        elif command == "spin":
            (workers[name].spinning if name else _spinning).set()
        elif command == "rest":
            _spinning.clear()
            _resting.set()
        elif command == "read":
            _resting.clear()
            threading.Thread(target=read_disk, args=(name,)).start()
        elif command in {"hold", "grow", "touch"}:
            answer = occupy(held, command, name)
        elif command == "vhost":
            turn_vhost(vhost)
        print(answer, flush=True)
    _resting.set()
    for worker in workers.values():
        worker.end()


if __name__ == "__main__":
    main()
