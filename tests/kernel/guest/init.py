"""First process of a guest that runs tests: mounts, runs pytest, says how it ended on the second serial port, ends.

What to do is in /job.json: ``mounts`` (type, directory), ``python``, ``folder``, ``arguments``, ``environment``. Runs
without site and without any package. The interpreter's path is put above when the guest is made.
"""

import ctypes
import json
import os
import signal
import subprocess
import time
from pathlib import Path

REPORTS = "/dev/ttyS1"
LINUX_REBOOT_CMD_POWER_OFF = 0x4321FEDC

libc = ctypes.CDLL(None, use_errno=True)


def mount(kind: str, directory: str) -> None:
    """Mount a file system that has no device."""
    Path(directory).mkdir(parents=True, exist_ok=True)
    if libc.mount(kind.encode(), directory.encode(), kind.encode(), 0, None):
        raise OSError(ctypes.get_errno(), f"mount {kind} on {directory}: {os.strerror(ctypes.get_errno())}")


def run(job: dict) -> int:
    """Mount everything and run the tests; pytest's status."""
    for kind, directory in job["mounts"]:
        mount(kind, directory)
    console = os.open("/dev/console", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(console, descriptor)
    print(f"guest: {os.uname().release}, tests begin {time.monotonic():.1f} s after the boot", flush=True)
    command = [job["python"], *job["arguments"]]
    done = subprocess.run(command, cwd=job["folder"], env=job["environment"], check=False)
    print(f"guest: tests ended {time.monotonic():.1f} s after the boot", flush=True)
    return done.returncode


def main() -> None:
    """Whatever happens, it is told and the guest ends: a first process that returns is a panic."""
    ended: dict = {}
    try:
        ended["status"] = run(json.loads(Path("/job.json").read_text()))
    except Exception as error:  # noqa: BLE001 - process 1 must not end: whatever it is goes into the report
        ended["trouble"] = f"{type(error).__name__}: {error}"
        print(f"guest: {ended['trouble']}", flush=True)
    try:
        Path(REPORTS).write_text(json.dumps({"ended": ended}) + "\n")
    finally:
        libc.reboot(LINUX_REBOOT_CMD_POWER_OFF)
        signal.pause()


main()
