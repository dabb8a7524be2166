"""Whether response times at the tap are right: real VMs, beside the client's clock, a capture and NGINX's log.

    python -m tests.bench.tap_accuracy [--seconds 5] [--cell TEXT ...] [--json FILE]

Bars: as many requests as the client made, to 0.5 %; p50 and p95 within 5 % of the client's time less its network. The
client notes when it sends each request and when it has the answer, and packets are captured at the tap with the
kernel's times. The capture shares no code with the program. *Network*, of each request: from the client's sending to
the request's last byte at the tap (*out*), and from the answer's first byte there to the client's having it all, which
is the *rest* of the answer and the way *back*. So the client's time less its network is the response time in the
capture, and percentiles are taken over the same requests on both sides. Not separated is what lies between tap and
guest: the program counts it as the VM's, and so does this.

NGINX's ``$request_time`` is in whole milliseconds, from the first byte that NGINX read to the last that it sent. What
waits before NGINX runs is missing in it. NGINX looks at the clock only between events, so that the time of what it
answers at once is 0. Its lines are counted, and its p95 may exceed the *whole*, until the answer's last byte passed the
tap, by its resolution only. It says most of *gzip*, milliseconds of work for each request.

All VMs are on the first pCPU, client and capture on the last. *beside batch*: a batch VM that is always busy shares the
pCPU, with equal weights. *most*: as many requests/s as are answered with a p95 of 20 ms at most, less a tenth. Needs
root, bpftool and the lab (deploy/lab/setup.sh).
"""

from __future__ import annotations

import argparse
import gc
import math
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.lab.accelerator import Accelerator, decide
from deploy.lab.commands import LabError
from deploy.lab.guest import DEFAULT_BASE, Guest, build
from deploy.lab.guest.initramfs import SOURCES, archive, filler_text
from deploy.lab.lab_lock import only_user
from deploy.lab.lab_vms import HTTP_PORT, MEMCACHED_PORT, PREFIX, URI, GuestRole, LabHost, LabVm, connect
from manager.host.taps import of_this_machine
from manager.host.vm_interfaces import interfaces
from manager.load import HttpOptions, LoadSpec, MemcachedOptions, Phase, run
from manager.model.traffic import ServiceTraffic
from tests.bench.figures import host_cpu_s, machine, undone_when_told_to_end, write_json
from tests.bench.tap_capture import PassedTurn, TapCapture, passed
from tests.bench.tap_clients import (
    ClientLoad,
    HeardLoadgen,
    HttpsClient,
    HttpsUrl,
    MemcachedClient,
    ThreadsLoad,
    TurnClient,
    by_threads,
)

RATE_BAR, TIME_BAR = 0.005, 0.05
LOG_RESOLUTION_MS = 1.0
SETTLE_S = 0.2
"""For ends of connections, and lines of the log, that are still on their way."""
MOST_P95_MS = 20.0
CONNECTIONS, THREADS = 32, 8
CPUS = sorted(os.sched_getaffinity(0))
LAB_PREFIX = f"{PREFIX}accuracy-"
GATEWAY = "192.168.122.1"
# memcached takes no value of 1 MiB with its key, and the load generator none above 1,000,000 bytes.
SIZES: Mapping[str, int] = {"100 B": 100, "10 KiB": 10 << 10, "1 MiB": 1 << 20, "1 MB": 1_000_000}
GZIP = "gzip"
KEYS: Mapping[str, int] = {"100 B": 1000, "10 KiB": 1000, "1 MB": 16}
_SO_RCVBUFFORCE = 33
_LOG_BUFFER_BYTES = 64 << 20
_LOGGED = re.compile(rb"request_time=([\d.]+)")
# What guests have besides the lab's own: files of these sizes, and TLS.
_TLS_SERVER = """
    server {{
        listen {port} ssl backlog=4096;
        ssl_certificate /etc/tls/certificate.pem;
        ssl_certificate_key /etc/tls/key.pem;
        {settings};
        root /usr/share;
    }}
"""
# The handshake takes a round more where the curve is not the one that clients offer at first.
TLS_SETTINGS = {
    443: "ssl_protocols TLSv1.3",
    8443: "ssl_protocols TLSv1.3; ssl_ecdh_curve secp384r1",
    8444: "ssl_protocols TLSv1.2",
}
_SIZES_OF_FIRST = """
    server {
        location /sizes/ { root /usr/share; }
"""


@dataclass(frozen=True, slots=True)
class AccuracyCell:
    """What is measured at once. ``rate_rps`` None: the most."""

    service: str
    keep: bool
    size: str
    rate_rps: float | None
    batch: bool = False

    @property
    def name(self) -> str:
        """As the table has it."""
        words = [self.service, "keep-alive" if self.keep else "new connections", self.size]
        words.append("most" if self.rate_rps is None else f"{self.rate_rps:g} req/s")
        return ", ".join([*words, *(["beside batch"] if self.batch else [])])


MEMCACHED, NGINX, TLS, TLS_12 = "memcached", "NGINX", "NGINX TLS 1.3", "NGINX TLS 1.2, close_notify"
TLS_ALERT, TLS_RETRY = "NGINX TLS 1.3, close_notify", "NGINX TLS 1.3, HelloRetryRequest"
PORTS = {MEMCACHED: MEMCACHED_PORT, NGINX: HTTP_PORT, TLS: 443, TLS_ALERT: 443, TLS_RETRY: 8443, TLS_12: 8444}
OVER_TLS = frozenset({TLS, TLS_ALERT, TLS_RETRY, TLS_12})
CELLS = (
    *(AccuracyCell(MEMCACHED, True, "100 B", rate_rps) for rate_rps in (10, 100, 1000, None)),
    AccuracyCell(MEMCACHED, True, "10 KiB", 100),
    AccuracyCell(MEMCACHED, True, "1 MB", 10),
    AccuracyCell(MEMCACHED, False, "100 B", 100),
    AccuracyCell(MEMCACHED, False, "10 KiB", 100),
    *(AccuracyCell(NGINX, True, "100 B", rate_rps) for rate_rps in (10, 100, 1000, None)),
    AccuracyCell(NGINX, True, "10 KiB", 100),
    AccuracyCell(NGINX, True, "1 MiB", 10),
    AccuracyCell(NGINX, True, GZIP, 20),
    *(AccuracyCell(NGINX, False, *case) for case in (("100 B", 100), ("10 KiB", 100), ("1 MiB", 10))),
    *(AccuracyCell(TLS, True, *case) for case in (("100 B", 100), ("10 KiB", 100), ("1 MiB", 10))),
    AccuracyCell(TLS, False, "10 KiB", 20),
    AccuracyCell(TLS_12, True, "10 KiB", 100),
    AccuracyCell(TLS_12, False, "10 KiB", 20),
    AccuracyCell(TLS_ALERT, False, "10 KiB", 20),
    AccuracyCell(TLS_ALERT, True, "10 KiB", 100),
    AccuracyCell(TLS_RETRY, True, "10 KiB", 100),
    AccuracyCell(TLS_RETRY, False, "10 KiB", 20),
    *(AccuracyCell(MEMCACHED, True, *case, batch=True) for case in (("100 B", 10), ("100 B", 100), ("1 MB", 10))),
    AccuracyCell(MEMCACHED, False, "100 B", 100, batch=True),
    *(AccuracyCell(NGINX, True, *case, batch=True) for case in (("100 B", 100), ("10 KiB", 100), ("1 MiB", 10))),
    AccuracyCell(NGINX, False, "10 KiB", 100, batch=True),
    AccuracyCell(TLS, True, "10 KiB", 50, batch=True),
)


def percentile_ms(times_ns: Sequence[int], percentile: float) -> float:
    """Nearest rank, as histograms have it; NaN without any."""
    ordered = sorted(times_ns)
    return ordered[math.ceil(len(ordered) * percentile / 100) - 1] / 1e6 if ordered else math.nan


@dataclass(frozen=True, slots=True)
class TapComparison:
    """What a client says and what the tap says. ``turns`` of the client are in the capture, ``missing`` are not.

    ``requests`` were answered, ``timed`` of them are to be timed.
    """

    requests: int
    timed: int
    turns: list[PassedTurn]
    missing: int
    seen: ServiceTraffic

    @property
    def counted(self) -> int:
        """Requests by the tap, of which sources take the rate."""
        return sum(self.seen.requests.values())

    @property
    def rate_error(self) -> float:
        """Of the requests that the tap counted, as a fraction of the client's."""
        return self.counted / self.requests - 1

    def error(self, percentile: float) -> float:
        """Of the tap's percentile, as a fraction of the client's less its network; NaN where nothing can be timed."""
        return self.tap_ms(percentile) / percentile_ms([turn.tap_ns for turn in self.turns], percentile) - 1

    def tap_ms(self, percentile: float) -> float:
        """By the program; NaN where it timed nothing."""
        time_us = self.seen.times.percentile_us(percentile)
        return math.nan if time_us is None else time_us / 1000

    @property
    def misses(self) -> list[str]:
        """What is not as it should be."""
        missed = [] if abs(self.rate_error) <= RATE_BAR else ["rate"]
        if self.seen.answers != self.timed:
            missed.append(f"timed {self.seen.answers} of {self.timed}")
        if self.seen.unanswered or self.seen.errors:
            missed.append(f"{self.seen.unanswered} unanswered, {self.seen.errors} errors")
        if self.missing:
            missed.append(f"{self.missing} not captured")
        return missed + [f"p{at}" for at in (50, 95) if self.timed and not abs(self.error(at)) <= TIME_BAR]

    def figures(self) -> dict[str, Any]:
        """For a table and JSON; times in ms."""
        shares: Mapping[str, Callable[[PassedTurn], int]] = {
            "client": lambda turn: turn.client_ns,
            "out": lambda turn: turn.out_ns,
            "rest": lambda turn: turn.rest_ns,
            "back": lambda turn: turn.back_ns,
            "capture": lambda turn: turn.tap_ns,
            "whole": lambda turn: turn.whole_ns,
        }
        measured = {
            f"{share}_p{at}_ms": percentile_ms([time_ns(turn) for turn in self.turns], at)
            for share, time_ns in shares.items()
            for at in (50, 95)
        }
        measured |= {f"tap_p{at}_ms": self.tap_ms(at) for at in (50, 95)}
        measured |= {f"p{at}_error": self.error(at) for at in (50, 95)}
        return {
            "requests": self.requests,
            "counted": self.counted,
            "timed": self.seen.answers,
            "rate_error": self.rate_error,
            **{name: None if math.isnan(value) else value for name, value in measured.items()},
        }


def compare(vm: LabVm, port: int, load: Callable[[], ClientLoad]) -> TapComparison:
    """Produce a load on a service of a VM that runs. Raises HostError, OSError, LoadError and CaptureError."""
    name, index = interface_of(vm)
    with closing(of_this_machine()) as program, closing(TapCapture(name, port)) as capture:
        program.attach(index)
        done = load()
        time.sleep(SETTLE_S)
        [seen] = [traffic for traffic in program.traffic() if traffic.port == port]
        packets = capture.packets()
    timed = done.timed(packets)
    turns, missing = passed(timed, packets)
    return TapComparison(done.requests, len(timed), turns, missing, seen)


def p95_of_log_ms(log_ms: Sequence[float]) -> float:
    """Of NGINX's request times; NaN without any."""
    return percentile_ms([round(time_ms * 1e6) for time_ms in log_ms], 95)


def log_misses(compared: TapComparison, log_ms: Sequence[float]) -> list[str]:
    """What of NGINX's log does not fit: it ends a request before its last byte passes the tap."""
    missed = [] if len(log_ms) == compared.requests else [f"{len(log_ms)} lines in the log"]
    most_ms = percentile_ms([turn.whole_ns for turn in compared.turns], 95) + LOG_RESOLUTION_MS
    if p95_of_log_ms(log_ms) > most_ms:  # not so where either is NaN
        missed.append("log p95")
    return missed


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of a cell. ``log_ms``: NGINX's request times; None for another service."""

    cell: AccuracyCell
    rate_rps: float
    compared: TapComparison
    log_ms: list[float] | None

    @property
    def misses(self) -> list[str]:
        """What is not as it should be."""
        if self.log_ms is None:
            return self.compared.misses
        return self.compared.misses + log_misses(self.compared, self.log_ms)

    @property
    def log_p95_ms(self) -> float:
        """By NGINX; NaN for another service."""
        return p95_of_log_ms(self.log_ms or [])

    def figures(self) -> dict[str, Any]:
        """For a table and JSON; times in ms."""
        return self.compared.figures() | {
            "rate_rps": self.rate_rps,
            "log_lines": None if self.log_ms is None else len(self.log_ms),
            "log_p95_ms": None if self.log_ms is None else self.log_p95_ms,
            "missed": self.misses,
        }


class AccuracyLab:
    """The VMs, and what is at hand beside them."""

    def __init__(self, lab: LabHost, log: socket.socket, certificate: Path) -> None:
        self._lab = lab
        self._log = log
        self._certificate = certificate
        collector = f"{GATEWAY}:{log.getsockname()[1]}"
        cpu = str(CPUS[0])
        self.cache = LabVm(f"{LAB_PREFIX}cache", GuestRole.MEMCACHED, "192.168.122.231", cpus=cpu)
        self.web = LabVm(
            f"{LAB_PREFIX}web", GuestRole.NGINX, "192.168.122.232", cpus=cpu, options={"access_log": collector}
        )
        self.batch = LabVm(f"{LAB_PREFIX}batch", GuestRole.BATCH, "192.168.122.233", cpus=cpu)

    def start(self) -> None:
        """All three, ready, and the batch VM paused. Raises LabError."""
        vms = (self.cache, self.web, self.batch)
        for vm in vms:
            self._lab.start(vm)
        for vm in vms:
            self._lab.wait_ready(vm)
        self._lab.suspend(self.batch)

    @contextmanager
    def beside_batch(self, runs: bool) -> Iterator[None]:
        """The batch VM runs in the block, or not."""
        if not runs:
            yield
            return
        self._lab.resume(self.batch)
        try:
            yield
        finally:
            self._lab.suspend(self.batch)

    @cached_property
    def context(self) -> ssl.SSLContext:
        """Of clients that know the guest's certificate."""
        return ssl.create_default_context(cafile=self._certificate)

    def measure(self, cell: AccuracyCell, seconds: float) -> Accuracy:
        """One cell. Raises LabError, LoadError, OSError, CaptureError and HostError."""
        with self.beside_batch(cell.batch):
            rate_rps = cell.rate_rps or self.most_rps(cell)
            return self._measure(cell, Phase(seconds, rate_rps))

    def most_rps(self, cell: AccuracyCell) -> float:
        """As many requests/s as are answered in time, less a tenth."""
        held_rps, rate_rps = 500.0, 1000.0
        while rate_rps <= 16_000:
            result = run(self._spec(cell, Phase(1.5, rate_rps)))
            p95_us = result.histogram.percentile_us(95)
            if result.errors or p95_us is None or p95_us > MOST_P95_MS * 1000:
                break
            held_rps, rate_rps = rate_rps, rate_rps * 1.25
        return round(held_rps * 0.9, -1)

    def _measure(self, cell: AccuracyCell, phase: Phase) -> Accuracy:
        load = self._load(cell, phase)
        time.sleep(SETTLE_S)
        logged_ms(self._log)
        vm = self.cache if cell.service == MEMCACHED else self.web
        compared = compare(vm, PORTS[cell.service], load)
        return Accuracy(cell, phase.rate_rps, compared, None if vm is self.cache else logged_ms(self._log))

    def _load(self, cell: AccuracyCell, phase: Phase) -> Callable[[], ClientLoad]:
        """What produces it, once memcached has its keys."""
        generator = HeardLoadgen(self._spec(cell, phase))
        generator.prepare()
        if cell.service in OVER_TLS or (cell.service == MEMCACHED and not cell.keep):
            return partial(self._by_threads, cell, phase)
        return generator.run

    def _by_threads(self, cell: AccuracyCell, phase: Phase) -> ClientLoad:
        turns = by_threads(self._connector(cell), phase, THREADS, keep=cell.keep)
        return ThreadsLoad(turns, first_is_timed=cell.service not in OVER_TLS)

    def _spec(self, cell: AccuracyCell, phase: Phase) -> LoadSpec:
        if cell.service == MEMCACHED:
            memcached = MemcachedOptions(KEYS[cell.size], SIZES[cell.size])
            return LoadSpec(self.cache.ip, MEMCACHED_PORT, memcached, (phase,), connections=CONNECTIONS)
        headers = () if cell.keep else (("Connection", "close"),)
        return LoadSpec(self.web.ip, HTTP_PORT, HttpOptions(path_of(cell), headers), (phase,), connections=CONNECTIONS)

    def _connector(self, cell: AccuracyCell) -> Callable[[], TurnClient]:
        if cell.service == MEMCACHED:
            return partial(MemcachedClient, self.cache.ip, MEMCACHED_PORT, "equipoise:0")
        url = HttpsUrl(self.web.ip, PORTS[cell.service], path_of(cell))
        return partial(HttpsClient, url, self.context, notify=cell.service in {TLS_ALERT, TLS_12})


def logged_ms(log: socket.socket) -> list[float]:
    """NGINX's request times of all lines since."""
    times_ms: list[float] = []
    while True:
        try:
            line = log.recv(2000)
        except BlockingIOError:
            return times_ms
        match = _LOGGED.search(line)
        if match is not None:
            times_ms.append(float(match[1]) * 1000)


def interface_of(vm: LabVm) -> tuple[str, int]:
    """Name and index of the tap of a VM. Raises LabError."""
    for interface in interfaces(URI):
        if interface.vm == vm.name and interface.index is not None:
            return interface.name, interface.index
    raise LabError(f"{vm.name} has no tap")


def path_of(cell: AccuracyCell) -> str:
    """Of the file of that size, or of the text that is compressed for each request."""
    return "/gzip" if cell.size == GZIP else f"/sizes/{SIZES[cell.size]}"


@contextmanager
def collector() -> Iterator[socket.socket]:
    """Where NGINX's log goes, with room for all lines of a cell."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as log:
        log.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _LOG_BUFFER_BYTES)
        log.bind((GATEWAY, 0))
        log.setblocking(False)
        yield log


def make_certificate(folder: Path, address: str) -> tuple[Path, Path]:
    """A key and its own certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=lab", "-addext", f"subjectAltName=IP:{address}"]
    subprocess.run([*command, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return key, certificate


def guest_with_more(guest: Guest, folder: Path, key: Path, certificate: Path) -> Guest:
    """The lab's guest with files of all sizes, and with TLS: a second archive behind the first one adds to it."""
    original = (SOURCES / "nginx.conf").read_text()
    over_tls = "".join(_TLS_SERVER.format(port=port, settings=settings) for port, settings in TLS_SETTINGS.items())
    content = {
        "etc/nginx.conf": original.replace("    server {\n", f"{over_tls}{_SIZES_OF_FIRST}", 1).encode(),
        "etc/tls/key.pem": key.read_bytes(),
        "etc/tls/certificate.pem": certificate.read_bytes(),
        **{f"usr/share/sizes/{size}": filler_text(size) for size in SIZES.values()},
    }
    more = Guest(folder)
    shutil.copyfile(guest.kernel, more.kernel)
    more.initrd.write_bytes(guest.initrd.read_bytes() + archive(content))
    for path, mode in ((more.kernel, 0o644), (more.initrd, 0o644), (folder, 0o755)):
        path.chmod(mode)
    return more


@contextmanager
def accuracy_lab() -> Iterator[tuple[AccuracyLab, Accelerator]]:
    """The VMs run in the block. Raises LabError."""
    with ExitStack() as stack:
        stack.enter_context(only_user("tests.bench.tap_accuracy"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=DEFAULT_BASE)))
        guest = build()
        accelerator = decide(guest).accelerator
        connection = connect()
        stack.callback(connection.close)
        key, certificate = make_certificate(folder, "192.168.122.232")
        image = folder / "guest"
        image.mkdir()
        folder.chmod(0o755)
        lab = LabHost(connection, guest_with_more(guest, image, key, certificate), accelerator)
        lab.destroy_all(LAB_PREFIX)
        stack.callback(lab.destroy_all, LAB_PREFIX)
        found = AccuracyLab(lab, stack.enter_context(collector()), certificate)
        found.start()
        yield found, accelerator


def measure_all(cells: Sequence[AccuracyCell], seconds: float, console: Console) -> dict[str, Any]:
    """All cells, with the share of all CPUs that was busy meanwhile."""
    results = {}
    with accuracy_lab() as (lab, accelerator), undisturbed():
        for cell in cells:
            gc.collect()
            busy_s, all_s = host_cpu_s()
            found = lab.measure(cell, seconds)
            busy_after_s, all_after_s = host_cpu_s()
            figures = found.figures() | {"host_busy": (busy_after_s - busy_s) / (all_after_s - all_s)}
            console.print(f"{cell.name}: {', '.join(found.misses) or 'met'}", highlight=False)
            results[cell.name] = figures
    return {
        "accelerator": accelerator,
        "seconds": seconds,
        "rate_bar": RATE_BAR,
        "time_bar": TIME_BAR,
        "cells": results,
    }


@contextmanager
def undisturbed() -> Iterator[None]:
    """The client is on a pCPU without VMs, and no garbage collection stops it."""
    os.sched_setaffinity(0, {CPUS[-1]})
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        os.sched_setaffinity(0, CPUS)


def text_of(value: float | None, form: str = ".2f") -> str:
    """A dash for what there is not."""
    return "-" if value is None or math.isnan(value) else format(value, form)


def show(console: Console, cells: Mapping[str, Mapping[str, Any]]) -> None:
    """The table; times in ms as p50/p95."""
    columns = ("client", "out", "rest", "back", "capture", "tap")
    table = Table("", "req/s", "requests", "counted", *columns, "error %", "whole p95", "log p95", "")
    for name, found in cells.items():
        pairs = ["/".join(text_of(found[f"{column}_p{at}_ms"]) for at in (50, 95)) for column in columns]
        errors = "/".join(text_of(found[f"p{at}_error"] and found[f"p{at}_error"] * 100, "+.1f") for at in (50, 95))
        verdict = f"VIOLATED: {', '.join(found['missed'])}" if found["missed"] else "met"
        row = [name, f"{found['rate_rps']:g}", str(found["requests"]), f"{found['rate_error']:+.2%}", *pairs, errors]
        table.add_row(*row, text_of(found["whole_p95_ms"]), text_of(found["log_p95_ms"], ".0f"), verdict)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each cell")
    parser.add_argument("--cell", action="append", metavar="TEXT", help="only those whose names contain it")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    cells = [cell for cell in CELLS if not options.cell or any(text in cell.name for text in options.cell)]
    if not cells:
        parser.error(f"--cell {options.cell}: none of {'; '.join(cell.name for cell in CELLS)}")
    console = Console(width=None if sys.stdout.isatty() else 260)
    with undone_when_told_to_end():
        result = measure_all(cells, options.seconds, console)
    console.print(f"{machine()}, {result['accelerator']}")
    show(console, result["cells"])
    write_json(options.json, result)


if __name__ == "__main__":
    main()
