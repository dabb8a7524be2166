"""A disk that answers slowly, with a file system for images of VMs: what is beside them on it then matters.

A file system of one file takes a given time for each request (slow_disk.c), a loop device makes a disk of that, and BFQ
is its scheduler. Requests wait in the kernel's queues as before a real disk.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.lab.commands import LabError, Runner, run

SCHEDULER = "bfq"
START_S = 10.0
_POLL_S = 0.05
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class SlowDisk:
    """``device`` is such as ``loop0``; ``store`` is where its file system is mounted."""

    device: str
    store: Path
    runner: Runner = run

    def image(self, name: str, size_mib: int, files: Mapping[str, bytes] | None = None) -> Path:
        """A raw image, written in full; with an ext4 file system if it is to have ``files``. Raises LabError."""
        image = self.store / f"{name}.img"
        self.runner(["dd", "if=/dev/zero", f"of={image}", "bs=1M", f"count={size_mib}", "oflag=direct"])
        if files is not None:
            folder = self.store / name
            folder.mkdir()
            for file, content in files.items():
                (folder / file).write_bytes(content)
            self.runner(["mkfs.ext4", "-q", "-F", "-d", str(folder), str(image)])
        os.sync()
        return image


def why_no_slow_disk() -> str:
    """Why there can be none here; empty: there can."""
    offered = Path("/sys/block/loop0/queue/scheduler")
    if not Path("/dev/fuse").exists():
        return "this kernel has no FUSE"
    if not offered.exists():
        return "this kernel has no loop devices"
    if SCHEDULER not in offered.read_text():
        return f"this kernel has no {SCHEDULER.upper()}, so no weights of disks act"
    return ""


@contextmanager
def slow_disk(folder: Path, requests_per_s: int, size_mib: int, runner: Runner = run) -> Iterator[SlowDisk]:
    """The disk, below ``folder``, while the block runs; what a run that was killed left there is removed first.

    Its daemon runs in the load generators' group, which must be there: a disk does not wait for pCPUs. Raises LabError.
    """
    _remove(folder, runner)
    backing, served, store = folder / "backing.img", folder / "served", folder / "store"
    for directory in (folder, served, store):
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    with backing.open("wb") as file:
        file.truncate(size_mib * 1024 * 1024)
    with ExitStack() as stack:
        stack.callback(_remove, folder, runner)
        stack.enter_context(_daemon(backing, requests_per_s, served, runner))
        device = runner(["losetup", "--find", "--show", "--direct-io=on", str(served / "disk")]).strip()
        queue = Path("/sys/block") / Path(device).name / "queue"
        scheduler = (queue / "scheduler").read_text().partition("[")[2].partition("]")[0]
        stack.callback((queue / "scheduler").write_text, scheduler)
        (queue / "scheduler").write_text(SCHEDULER)
        (queue / "iosched/low_latency").write_text("0")  # what it prefers beside weights is not to be measured
        runner(["mkfs.ext4", "-q", "-F", device])
        runner(["mount", "-o", "noatime", device, str(store)])
        stack.callback(runner, ["umount", str(store)])
        yield SlowDisk(Path(device).name, store, runner)


@contextmanager
def _daemon(backing: Path, requests_per_s: int, served: Path, runner: Runner) -> Iterator[None]:
    program = backing.parent / "slow_disk"
    flags = runner(["pkg-config", "--cflags", "--libs", "fuse3"]).split()
    runner(["gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program), str(_HERE / "slow_disk.c"), *flags])
    command = [str(_HERE / "loadgroup.sh"), "run", "--", str(program), str(backing), str(requests_per_s), str(served)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as made:
        try:
            deadline_s = time.monotonic() + START_S
            while not (served / "disk").exists():
                if made.poll() is not None:
                    said = made.stdout.read().decode(errors="replace") if made.stdout else ""
                    raise LabError(f"slow_disk ended: {said.strip()}")
                if time.monotonic() > deadline_s:
                    raise LabError(f"slow_disk serves no disk within {START_S:g} s")
                time.sleep(_POLL_S)
            yield
        finally:
            _detach(served, runner)
            made.terminate()


def _detach(served: Path, runner: Runner) -> None:
    """Take the loop device from it, and the file system away."""
    for line in runner(["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"]).splitlines():
        device, _, backing = line.partition(" ")
        if backing.strip() == str(served / "disk"):
            runner(["losetup", "--detach", device])
    if os.path.ismount(served):
        runner(["umount", "--lazy", str(served)])


def _remove(folder: Path, runner: Runner) -> None:
    """Everything that a slow disk below ``folder`` consists of; that it is gone is no error."""
    store, served = folder / "store", folder / "served"
    if os.path.ismount(store):
        runner(["umount", str(store)])
    _detach(served, runner)
    for path in (folder / "slow_disk", folder / "backing.img"):
        path.unlink(missing_ok=True)
    for directory in (store, served, folder):
        with suppress(FileNotFoundError):
            directory.rmdir()
