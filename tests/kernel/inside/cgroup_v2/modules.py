"""The kernel modules that this guest brings."""

from __future__ import annotations

import os
from pathlib import Path

from manager.host.files import LIBC, succeeded

MODULES, LOADED = Path("/modules"), Path("/sys/module")
FINIT_MODULE = {"x86_64": 313, "aarch64": 273}


def load_module(name: str, parameters: str = "") -> None:
    """finit_module(2), unless it is there."""
    if (LOADED / name).exists():
        return
    module = os.open(MODULES / f"{name}.ko", os.O_RDONLY)
    succeeded(LIBC.syscall(FINIT_MODULE[os.uname().machine], module, parameters.encode(), 0))
    os.close(module)


def make_swap(disk: Path, size_bytes: int) -> None:
    """A disk becomes swap: its header is that of mkswap(8)."""
    page = bytearray(os.sysconf("SC_PAGESIZE"))
    page[1024:1032] = (1).to_bytes(4, "little") + (size_bytes // len(page) - 1).to_bytes(4, "little")
    page[-10:] = b"SWAPSPACE2"
    with disk.open("r+b") as opened:
        opened.write(page)
    succeeded(LIBC.swapon(str(disk).encode(), 0))


def end_swap(disk: Path) -> None:
    """What is on the disk comes back into memory."""
    succeeded(LIBC.swapoff(str(disk).encode()))


def load_vhost() -> None:
    """What /dev/vhost-net needs, in its order, without what is built in."""
    for name in ("vhost_iotlb", "vhost", "tap", "tun", "vhost_net"):
        if (MODULES / f"{name}.ko").exists():
            load_module(name)
