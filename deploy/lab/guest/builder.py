"""Building the guest: fetch, assemble, and put kernel and initramfs in place in one step."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.commands import LabError, Runner, run
from deploy.lab.guest.initramfs import archive, files
from deploy.lab.guest.kernel import fetch_kernel

DEFAULT_BASE = Path("/var/lib/equipoise-lab")


@dataclass(frozen=True, slots=True)
class Guest:
    """A built guest. ``stamp`` is a hash of all its content; the directory is named after it."""

    directory: Path

    @property
    def stamp(self) -> str:
        return self.directory.name

    @property
    def kernel(self) -> Path:
        return self.directory / "vmlinuz"

    @property
    def initrd(self) -> Path:
        return self.directory / "initrd.img"


def build(base: Path = DEFAULT_BASE, say: Callable[[str], None] = lambda _line: None, run: Runner = run) -> Guest:
    """Build the guest below ``base`` unless the very same one is there already; an older one is removed.

    ``say`` gets a line of progress for each step. The result appears in one rename, so nobody sees half of it.
    Raises LabError, also when libvirt's QEMU user could not read the result.
    """
    cache, guests = base / "cache", base / "guest"
    for directory in (base, cache, guests):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    _require_readable(guests)
    with only_builder(base):
        say("[1/4] kernel")
        kernel = fetch_kernel(cache, run, say)
        say(f"[2/4] programs for the guest ({kernel.name})")
        initramfs = archive(files(kernel, cache, run))
        image = kernel.image.read_bytes()
        guest = Guest(guests / hashlib.sha256(image + initramfs).hexdigest()[:16])
        if guest.directory.is_dir():
            say(f"[4/4] up to date: {guest.directory}")
            return guest
        say("[3/4] writing")
        with tempfile.TemporaryDirectory(dir=base) as scratch:
            new = Guest(Path(scratch) / guest.stamp)
            new.directory.mkdir()
            new.kernel.write_bytes(image)
            # Not compressed: an emulated guest unpacks more slowly than the host reads.
            new.initrd.write_bytes(initramfs)
            for path, mode in ((new.kernel, 0o644), (new.initrd, 0o644), (new.directory, 0o755)):
                path.chmod(mode)
            new.directory.rename(guest.directory)
        for other in guests.iterdir():
            if other != guest.directory:
                shutil.rmtree(other)
        say(f"[4/4] built: {guest.directory}")
        return guest


def _require_readable(directory: Path) -> None:
    """QEMU runs as a user of its own under libvirt: every directory on the way must let others pass."""
    for each in (directory, *directory.resolve().parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            raise LabError(f"{each} is closed to other users, so libvirt's QEMU could not read a guest in {directory}")


@contextmanager
def only_builder(base: Path) -> Iterator[None]:
    """Hold the builders' lock: two at once would remove each other's results."""
    descriptor = os.open(base / "builder.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
