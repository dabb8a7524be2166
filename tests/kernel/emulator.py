"""A QEMU whose CPUs get equal times when it counts instructions, which they do since 8.1.

Before, one went on until some timer was due; who had none then got no turn for hundreds of milliseconds at times.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path

from deploy.bpf.suites import apt_of, own_suite
from deploy.lab.commands import LabError, Runner
from deploy.lab.guest.packages import missing_packages, unpack

QEMU = "qemu-system-x86_64"
FAIR = (8, 1)
PACKAGES = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios")

_VERSION = re.compile(r"version (\d+)\.(\d+)")


def installed_qemu(_cache: Path, _run: Runner) -> tuple[str, ...]:
    """This machine's, as the beginning of a command."""
    return (QEMU,)


def fair_qemu(cache: Path, run: Runner) -> tuple[str, ...]:
    """This machine's if it is new enough, else that of its release's backports, kept in ``cache``. Raises LabError."""
    version = _VERSION.search(run([QEMU, "--version"]))
    if version and (int(version[1]), int(version[2])) >= FAIR:
        return (QEMU,)
    kept = cache / f"qemu-{hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]}"
    if not kept.is_dir():
        codename, _ = own_suite(run)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            apt = apt_of((codename, f"{codename}-backports"), PACKAGES, Path(scratch) / "apt", run)
            root = Path(scratch) / "root"
            unpack(missing_packages(PACKAGES, apt), root, apt)
            root.rename(kept)
    share = kept / "usr/share"
    program = kept / "usr/bin" / QEMU
    if not program.is_file():
        raise LabError(f"the packages {' '.join(PACKAGES)} of backports hold no {QEMU}")
    return (str(program), "-L", str(share / "qemu"), "-L", str(share / "seabios"))
