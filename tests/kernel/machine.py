"""Boots a kernel in an emulated machine, runs tests in it, and hands back what they reported.

Emulated, not virtualised, so that it runs anywhere, and alike.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deploy.lab.commands import LabError, Runner, last_lines, run
from deploy.lab.guest.builder import DEFAULT_BASE, only_builder
from deploy.lab.guest.initramfs import archive
from deploy.lab.guest.kernel import Kernel, fetch_kernel
from tests.kernel import root
from tests.kernel.emulator import QEMU, installed_qemu
from tests.kernel.guest.relay import PORT

BOOTS = 3
"""How often a guest is started whose kernel hangs or crashes before its first process."""

FIRST_PROCESS = "guest: "
"""What each line of a guest's first process begins with."""

# A panic comes with registers and stack traces, of the interrupts on top of it too.
CONSOLE_LINES = 300
MOUNTS = (
    ("proc", "/proc"),
    ("sysfs", "/sys"),
    ("devtmpfs", "/dev"),
    ("tmpfs", "/dev/shm"),
    ("tmpfs", "/run"),
    ("tmpfs", "/tmp"),
)

Files = Callable[[Path, Runner], Mapping[str, bytes]]
FetchKernel = Callable[[Path, Runner, Callable[[str], None]], Kernel]


@dataclass(frozen=True, slots=True)
class Machine:
    """A guest to run tests in.

    ``fetch`` gets its kernel, ``mounts`` are file systems (type, directory) besides the usual, ``packages`` those of
    this Python environment that the tests import, ``files`` more files, such as programs, by their paths, ``qemu`` gets
    the emulator, ``hardware`` are its options for processor and accelerator, ``seed`` is of the guest's random numbers,
    ``boot_s`` is how long its kernel may take to its first process, ``timeout_s`` all of it.
    """

    mounts: tuple[tuple[str, str], ...] = ()
    fetch: FetchKernel = fetch_kernel
    packages: tuple[str, ...] = ("pytest", "libvirt-python")
    files: Files = lambda _cache, _run: {}
    qemu: Callable[[Path, Runner], tuple[str, ...]] = installed_qemu
    # One thread for all processors: with a thread each, 6.12 and 7.3 crashed ("Oops: int3") where they patch their own
    # code while another processor runs it.
    # rdrand: else the kernel has no random numbers yet when the first process starts, and Python does not start.
    hardware: tuple[str, ...] = ("-accel", "tcg,thread=single", "-smp", "2", "-cpu", "qemu64,+rdrand")
    seed: int | None = None
    memory_mib: int = 768
    command_line: str = ""
    timeout_s: float = 240.0
    boot_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Run:
    """What a guest told. ``reports`` are pytest's, serialised, by node id, ``results`` what other modules found;
    ``trouble`` why it did not end well, ``came_up`` whether its kernel reached the first process, ``boots`` how often
    it was started until then.
    """

    console: str
    reports: Mapping[str, Sequence[dict[str, Any]]] = field(default_factory=dict)
    running: str = ""
    trouble: str = ""
    results: Sequence[dict[str, Any]] = ()
    came_up: bool = True
    boots: int = 1

    @property
    def console_end(self) -> str:
        """The end of what the kernel and pytest wrote."""
        return last_lines(self.console, CONSOLE_LINES)

    def complete(self, nodeid: str) -> bool:
        """Whether a test ran to its end."""
        return any(report["when"] == "teardown" for report in self.reports.get(nodeid, ()))


def run_tests(machine: Machine, nodeids: Sequence[str], base: Path = DEFAULT_BASE) -> Run:
    """Run tests of this project, by their node ids, in a new guest. Raises LabError when it cannot be built."""
    pytest = ["pytest", "-p", "tests.kernel.guest.relay", "-p", "no:cacheprovider"]
    return run_module(machine, [*pytest, "--confcutdir", "tests/kernel/inside", "--color", "no", "-q", *nodeids], base)


def run_module(machine: Machine, arguments: Sequence[str], base: Path = DEFAULT_BASE) -> Run:
    """Run a Python module, with its arguments, in a new guest. Raises LabError when it cannot be built."""
    python = str(root.interpreter())
    job = {
        "mounts": (*MOUNTS, *machine.mounts),
        "python": python,
        "folder": f"/{root.PROJECT}",
        "arguments": ["-m", *arguments],
        "environment": {
            "PATH": f"{Path(python).parent}:/usr/bin:/bin",
            "HOME": "/tmp",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # importing what no test needs takes seconds
            "PYTHONPATH": f"/{root.PROJECT}:/{root.PACKAGES}",
            PORT: "/dev/ttyS1",
        },
    }
    cache = base / "cache"
    cache.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        initrd = Path(scratch) / "initrd.img"
        with only_builder(base), initrd.open("wb") as file:
            kernel = machine.fetch(cache, run, lambda _line: None)
            with root.environment_archive(cache, machine.packages, run).open("rb") as environment:
                shutil.copyfileobj(environment, file)
            file.write(root.project_archive(job))
            file.write(archive(machine.files(cache, run)))
            qemu = machine.qemu(cache, run)
        return boot(machine, kernel.image, initrd, qemu)


def boot(machine: Machine, image: Path, initrd: Path, qemu: Sequence[str] = (QEMU,)) -> Run:
    """Boot a kernel image with an initramfs and wait for its end. Raises LabError when QEMU is not installed.

    An emulated kernel of several CPUs hangs or crashes once in hundreds of boots before its first process: it is booted
    again.
    """
    boots = 1
    while not (run := boot_once(machine, image, initrd, qemu)).came_up and boots < BOOTS:
        boots += 1
    return dataclasses.replace(run, boots=boots)


def boot_once(machine: Machine, image: Path, initrd: Path, qemu: Sequence[str]) -> Run:
    """What a guest told."""
    with tempfile.TemporaryDirectory() as scratch:
        console, reports, errors = (Path(scratch) / name for name in ("console", "reports", "errors"))
        command = [
            *(*qemu, *machine.hardware, "-m", str(machine.memory_mib)),
            *("-nodefaults", "-display", "none", "-no-reboot"),
            *(() if machine.seed is None else ("-seed", str(machine.seed))),
            *("-kernel", str(image), "-initrd", str(initrd)),
            # A panic reboots at once, which ends QEMU. The kernel's own messages go to the console as far as errors.
            # A guest that gets no CPU time at the wrong moment believes that its timer does not work, and panics.
            *("-append", f"console=ttyS0 loglevel=4 panic=-1 no_timer_check {machine.command_line}"),
            *("-serial", f"file:{console}", "-serial", f"file:{reports}"),
        ]
        try:
            with errors.open("wb") as stderr:
                process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr)
        except FileNotFoundError as error:
            raise LabError(f"{QEMU} is not installed; on Debian: apt-get install qemu-system-x86") from error
        trouble = ""
        with process:
            try:
                if not ends_within(process, min(machine.boot_s, machine.timeout_s)):
                    if machine.boot_s < machine.timeout_s and not written(console):
                        trouble = f"its kernel hung for {machine.boot_s:g} s before its first process"
                        return Run("", trouble=trouble, came_up=False)
                    if not ends_within(process, machine.timeout_s - machine.boot_s):
                        trouble = f"the guest did not end within {machine.timeout_s:g} s"
            finally:
                process.kill()
        if not trouble and process.returncode:
            trouble = f"QEMU ended with status {process.returncode}: {written(errors).strip()}"
        run = parse(written(reports), written(console), trouble)
        return dataclasses.replace(run, came_up=bool(trouble) or FIRST_PROCESS in run.console)


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for a process's end, but not longer than this."""
    try:
        process.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return False
    return True


def written(file: Path) -> str:
    """What a guest or QEMU wrote so far."""
    return file.read_text(errors="replace") if file.exists() else ""


def parse(told: str, console: str, trouble: str = "") -> Run:
    """Make sense of the lines of ``guest.relay`` and ``guest.init``. The last may be cut off."""
    reports: dict[str, list[dict[str, Any]]] = {}
    running, ended, uncollected, results = "", None, [], []
    for line in told.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if "start" in message:
            running = message["start"]
        elif "report" in message:
            reports.setdefault(message["report"]["nodeid"], []).append(message["report"])
        elif "collect" in message:
            uncollected.append(message["collect"])
        elif "result" in message:
            results.append(message["result"])
        elif "ended" in message:
            ended = message["ended"]
    if not trouble and ended is None:
        trouble = "the guest ended without saying so: its kernel or first process crashed"
    elif not trouble and ended is not None:
        trouble = ended.get("trouble", "")
    return Run(console, reports, running, "\n".join([*filter(None, [trouble]), *uncollected]), results)
