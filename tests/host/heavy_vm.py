"""A process that uses memory or a disk as a VM's QEMU does, from a first line of input to its end. Run by the tests.

usage: heavy_vm.py (touch|direct) FILE

touch: reads a mapped file from end to end, again and again. direct: writes a file and reads it, past the page cache.
It prints a line once it has gone through the file for the first time.
"""

from __future__ import annotations

import mmap
import os
import select
import sys
from pathlib import Path

BLOCK = 1 << 20


def goes_on() -> bool:
    return not select.select([sys.stdin], [], [], 0)[0]


def touch(path: str) -> None:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as pages:
        pages.madvise(mmap.MADV_RANDOM)  # each page by a fault of its own
        while goes_on():
            sum(pages[place] for place in range(0, len(pages), mmap.PAGESIZE))
            print("touched", flush=True)


def direct(path: str) -> None:
    blocks = Path(path).stat().st_size // BLOCK
    descriptor = os.open(path, os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, BLOCK) as aligned:
        while goes_on():
            for number in range(blocks):
                os.pwritev(descriptor, [aligned], number * BLOCK)
                os.preadv(descriptor, [aligned], number * BLOCK)
            print("read", flush=True)


if __name__ == "__main__":
    sys.stdin.readline()
    {"touch": touch, "direct": direct}[sys.argv[1]](sys.argv[2])
