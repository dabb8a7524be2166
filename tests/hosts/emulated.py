"""A machine that boots an image of ``tests.hosts.images``, and a root shell in it.

By KVM where that runs a machine, else emulated, which works anywhere. Its disk is a copy on write: what a test does to
it is gone at its end. It has two networks: to the outside (QEMU's user mode), and between machines of a fleet.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from deploy.lab.commands import LabError, last_lines, run
from tests.hosts.images import Image

BOOT_S = 900.0
COMMAND_S = 300.0
BOOT_ID = "/proc/sys/kernel/random/boot_id"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
KVM = ("-accel", "kvm", "-cpu", "host")
# Without what QEMU 7.2 emulates wrongly (cx16 in code that the kernel patches while another CPU runs it) or slowly.
TCG = ("-accel", "tcg,thread=multi", "-cpu", "max,-cx16,-la57")
# With cx16, one thread for all CPUs: newer kernels have no memory for BPF's task storage without it (kmalloc_nolock).
TCG_CX16 = ("-accel", "tcg,thread=single", "-cpu", "max,-la57")
# A kernel that patches itself while it boots (int3, then the rest) may trip over that with a thread per emulated CPU,
# once in many boots: it then boots again. From ``Host.ready`` on it stays down, as a kernel by default.
TRIPS = "oops=panic panic=1"
AFTER_BOOT = "sysctl -qw kernel.panic=0 kernel.panic_on_oops=0"
KERNEL = (
    "root=/dev/vda rw console=ttyS0 quiet mitigations=off tsc=reliable no_timer_check systemd.show_status=no " + TRIPS
)


OUTSIDE = "10.0.2.2"
"""The loopback of the machine that runs QEMU, as its user-mode network calls it."""
KVM_S = 5.0
"""Within which a kernel says something on the console where KVM works: it takes one of them."""


class ShellError(LabError):
    """A script in an emulated machine failed; the text says which, and what it printed."""


@dataclass(frozen=True, slots=True)
class Output:
    """What came of a script."""

    status: int
    stdout: str
    stderr: str


class Shell:
    """The root shell of a machine: scripts may run side by side."""

    def __init__(self, path: Path) -> None:
        """``path`` is QEMU's socket of the serial port."""
        self._socket = _connect(path)
        self._lock = threading.Lock()
        self._numbers = itertools.count(time.monotonic_ns())  # another process may have left answers behind
        self._waiting: dict[int, Future[Output]] = {}
        threading.Thread(target=self._read, name="guest-shell", daemon=True).start()

    def ask(self, script: str, stdin: str, timeout_s: float) -> Future[Output]:
        """Have a script run."""
        number = next(self._numbers)
        answer: Future[Output] = Future()
        line = json.dumps({"id": number, "script": script, "stdin": stdin, "timeout_s": timeout_s})
        with self._lock:
            self._waiting[number] = answer
            self._socket.sendall(line.encode() + b"\n")
        return answer

    def _read(self) -> None:
        with contextlib.suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                try:
                    message = json.loads(line)
                    answer = self._waiting.pop(message.pop("id"))
                except (ValueError, KeyError):  # half a line of before a reset
                    continue
                answer.set_result(Output(**message))

    def forget(self) -> None:
        """The machine was reset: nobody answers any more."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            answer.set_exception(ShellError("the machine was reset"))

    def close(self) -> None:
        """Close the socket."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Monitor:
    """QEMU's monitor of one machine (QMP)."""

    def __init__(self, path: Path) -> None:
        """``path`` is its socket."""
        self._socket = _connect(path)
        self._lines = self._socket.makefile("rb")
        self._lines.readline()
        self.execute("qmp_capabilities")

    def execute(self, command: str, **arguments: object) -> Any:
        """Run a command and return its result. Raises LabError."""
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        for line in self._lines:
            message = json.loads(line)
            if "error" in message:
                raise LabError(f"{command}: {message['error']['desc']}")
            if "return" in message:
                return message["return"]
        raise LabError(f"{command}: QEMU ended")

    def close(self) -> None:
        """Close the socket."""
        self._lines.close()
        self._socket.close()


def best_hardware(image: Image, emulated: Sequence[str] = TCG) -> Sequence[str]:
    """KVM where it runs a kernel: /dev/kvm may be there and run nothing. Else what emulates."""
    return KVM if Path("/dev/kvm").exists() and runs(image, KVM) else emulated


def runs(image: Image, hardware: Sequence[str], patience_s: float = KVM_S) -> bool:
    """Whether the image's kernel gets as far as its console, without a disk."""
    machine = ("qemu-system-x86_64", "-machine", "q35", *hardware, "-m", "512", "-nodefaults", "-display", "none")
    kernel = ("-kernel", str(image.kernel), "-append", "console=ttyS0 panic=-1", "-no-reboot", "-serial", "stdio")
    with subprocess.Popen([*machine, *kernel], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        patience = threading.Timer(patience_s, process.kill)
        patience.start()
        try:
            return any(b"Linux version" in line for line in process.stdout or ())
        finally:
            patience.cancel()
            process.kill()


def start(
    image: Image,
    folder: Path,
    *,
    number: int = 1,
    fleet_port: int = 0,
    cpus: int = 2,
    memory_mib: int = 3072,
    hardware: Sequence[str] = TCG,
) -> Host:
    """Start a machine; ``Host.ready`` waits until it is up. ``folder`` gets its disk, sockets and console.

    ``number`` makes its addresses; machines with the same ``fleet_port`` share a network, 0: none. Raises LabError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    disk, errors = folder / "disk.qcow2", folder / "qemu-errors"
    run(["qemu-img", "create", "-q", "-f", "qcow2", "-b", str(image.disk), "-F", "raw", str(disk)])
    network = (
        *("-netdev", f"socket,id=fleet,mcast=230.0.0.1:{fleet_port},localaddr=127.0.0.1"),
        *("-device", f"virtio-net-pci,netdev=fleet,mac=52:54:00:00:01:{number:02x}"),
    )
    command = [
        *("qemu-system-x86_64", "-machine", "q35", *hardware, "-smp", str(cpus), "-m", str(memory_mib)),
        *("-nodefaults", "-display", "none", "-pidfile", str(folder / "pid")),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", KERNEL),
        *("-drive", f"file={disk},if=virtio,format=qcow2,cache=unsafe,discard=unmap"),
        *("-netdev", "user,id=outside", "-device", f"virtio-net-pci,netdev=outside,mac=52:54:00:00:00:{number:02x}"),
        *(network if fleet_port else ()),
        *("-device", "virtio-rng-pci", "-device", "virtio-serial-pci"),
        *("-chardev", f"socket,id=shell,path={folder / 'shell'},server=on,wait=off"),
        *("-device", "virtserialport,chardev=shell,name=equipoise.shell"),
        *("-serial", f"file:{folder / 'console'}", "-qmp", f"unix:{folder / 'monitor'},server=on,wait=off"),
    ]
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True
        )
    try:
        host = Host(folder)
    except OSError as error:
        process.kill()
        raise LabError(f"QEMU did not start in {folder}: {errors.read_text()}") from error
    # It is this process's child: collected when it ends, whoever ends it.
    threading.Thread(target=process.wait, daemon=True).start()
    return host


class Host:
    """A running machine and a root shell in it. To be closed, which ends it, or left, which does not."""

    def __init__(self, folder: Path) -> None:
        """Attach to the machine that was started in this folder; one process at a time may. Raises OSError."""
        self.folder, self.name = folder, folder.name
        self.console = folder / "console"
        self._shell, self.monitor = Shell(folder / "shell"), Monitor(folder / "monitor")

    def ready(self, timeout_s: float = BOOT_S) -> Host:
        """Wait until it is up: systemd has started everything. Raises LabError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            answer = self._shell.ask("systemctl is-system-running --wait", "", timeout_s)
            with contextlib.suppress(FutureTimeoutError):
                state = answer.result(10.0 if not answer.done() else 0.0).stdout.strip()
                if state in {"running", "degraded"}:
                    break
            if time.monotonic() > deadline_s or not self._runs():
                raise LabError(f"{self.name} is not up: {last_lines(self.console.read_text(errors='replace'), 30)}")
        self.run(AFTER_BOOT)
        return self

    def run(self, script: str, *, stdin: str = "", timeout_s: float = COMMAND_S, check: bool = True) -> str:
        """Run a script as root and return what it printed. Raises ShellError when it fails, unless ``check`` is off."""
        output = self.output(script, stdin=stdin, timeout_s=timeout_s)
        if check and output.status:
            text = last_lines(f"{output.stdout}\n{output.stderr}", 40)
            raise ShellError(f"{self.name}: status {output.status} of\n{script}\n{text}")
        return output.stdout

    def output(self, script: str, *, stdin: str = "", timeout_s: float = COMMAND_S) -> Output:
        """Run a script as root. Raises ShellError when nothing comes back."""
        try:
            return self._shell.ask(script, stdin, timeout_s).result(timeout_s + 30.0)
        except FutureTimeoutError:
            raise ShellError(f"{self.name}: no answer within {timeout_s:g} s of\n{script}") from None

    def write(self, path: str, content: str | bytes, mode: str = "644") -> None:
        """Write a file."""
        data = content.encode() if isinstance(content, str) else content
        where = shlex.quote(path)
        script = f"mkdir -p $(dirname {where}) && base64 -d >{where} && chmod {mode} {where}"
        self.run(script, stdin=base64.b64encode(data).decode())

    def read(self, path: str) -> str:
        """A file's text."""
        return self.run(f"cat {shlex.quote(path)}")

    def fetch(self, file: Path, path: str) -> None:
        """Bring a large file into the machine, over its network to the outside."""
        handler = partial(SimpleHTTPRequestHandler, directory=str(file.parent))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            url = f"http://{OUTSIDE}:{server.server_port}/{quote(file.name)}"
            self.run(f"curl -sSf -o {shlex.quote(path)} {shlex.quote(url)}")
            server.shutdown()

    def reset(self) -> Host:
        """Crash it, as the button does, and wait until it is up again."""
        self._shell.forget()
        self.monitor.execute("system_reset")
        return self.ready()

    def reboot(self) -> Host:
        """Shut it down in order, and wait until it is up again. Raises LabError."""
        booted = self.read(BOOT_ID)
        self.run("systemd-run -q --on-active=1 systemctl reboot")
        deadline_s = time.monotonic() + BOOT_S
        while self._boot_id() in {"", booted}:
            if time.monotonic() > deadline_s:
                raise LabError(
                    f"{self.name} does not come back: {last_lines(self.console.read_text('utf-8', 'replace'), 30)}"
                )
        return self.ready()

    def _boot_id(self) -> str:
        """Of this boot; empty while nobody answers."""
        try:
            return self._shell.ask(f"cat {BOOT_ID}", "", COMMAND_S).result(5.0).stdout
        except FutureTimeoutError:
            self._shell.forget()
            return ""

    def save(self, tag: str) -> None:
        """Keep the whole machine as it is now, disk and memory."""
        # An emulated TSC never goes back, so to a loaded machine all the time since would seem to have passed, and
        # every watchdog of systemd to have run out. The HPET is loaded with the machine, but slow to read.
        self._take_clock("hpet", instead_of="tsc")
        self._human(f"savevm {tag}")
        self._take_clock("tsc", instead_of="hpet")

    def load(self, tag: str) -> None:
        """Make the whole machine what it was at ``save``. Its clock then stands at the time of that."""
        self._shell.forget()
        self._human(f"loadvm {tag}")
        self._take_clock("tsc", instead_of="hpet")
        self.run(f"date -s @{time.time():.0f}")

    def _take_clock(self, clock: str, *, instead_of: str) -> None:
        self.run(f"! grep -qx {instead_of} {CLOCK} || echo {clock} >{CLOCK}")

    def _human(self, command: str) -> None:
        said = self.monitor.execute("human-monitor-command", **{"command-line": command})
        if said.strip():
            raise LabError(f"{self.name}: {command}: {said.strip()}")

    def _runs(self) -> bool:
        try:
            return Path("/proc", (self.folder / "pid").read_text().strip()).is_dir()
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """End the machine at once."""
        with contextlib.suppress(LabError, OSError):
            self.monitor.execute("quit")
        self.leave()

    def leave(self) -> None:
        """Let it run."""
        self._shell.close()
        self.monitor.close()


def _connect(path: Path) -> socket.socket:
    """Connect to a socket that QEMU is about to make. Raises OSError when it makes none in ten seconds."""
    deadline_s = time.monotonic() + 10.0
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
            return connection
        except OSError:
            connection.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)
