"""File systems that fill up or refuse writes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A small file system that is mounted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Use up all that is left."""
        with self._filler.open("ab", buffering=0) as filler:
            try:
                while True:
                    filler.write(b"x" * 512)
            except OSError:
                pass

    def clear(self) -> None:
        self._filler.unlink()

    def forbid_writes(self) -> None:
        """As the kernel does after errors of the device, but here only while no file is open for writing."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)

    def allow_writes(self) -> None:
        subprocess.run(["mount", "-o", "remount,rw", str(self.folder)], check=True)


@contextmanager
def small_disk(folder: Path, size: str = "256k") -> Iterator[SmallDisk]:
    """Mount one at ``folder``; the test is skipped where that is not allowed."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: mounting a small file system needs root")
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: a small file system cannot be mounted here: {mounted.stderr}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
