"""What the program on taps takes of the throughput through an interface, and what its reader costs meanwhile.

    python -m tests.bench.tap_throughput [--vm] [--rounds 9] [--seconds 2] [--json FILE]

memcached in a network namespace stands for the guest, one end of a pair of virtual interfaces for its tap. A client
asks it as fast as it can, over 16 connections at once: for 100 bytes, for 1 MiB, and for 100 bytes over a new
connection each time. Rounds with the program and without it take turns, by each way that this kernel has, so that
they share what else the machine does. Bars: of the throughput without it at least 98 % (median of the rounds' ratios,
and the interval that holds it with 95 % confidence: where the bar lies within it, nothing is decided), and of a core
at most 1 % for a reading every second. Needs root, bpftool, iproute2 and memcached.

*program's time* is what the kernel counts that the program took (kernel.bpf_stats_enabled), as a part of the time of
the rounds with it: throughput that one CPU bounds falls by no more, however noisy the rounds are; *a packet*: for each
that passed.

With `--vm` a VM of the lab serves memcached, and its packets pass its own tap. A guest's tap is slower than a pair, so
it loses less; the result says whether the VM was emulated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from deploy.lab.accelerator import decide
from deploy.lab.guest import build
from deploy.lab.lab_lock import only_user
from deploy.lab.lab_vms import PREFIX, URI, GuestRole, LabHost, LabVm
from deploy.lab.lab_vms import connect as lab_connection
from manager.host.registry import HostPaths
from manager.host.taps import TapProgram
from manager.host.vm_interfaces import interfaces
from manager.model.traffic import TapWay
from tests.bench.figures import machine, write_json

NAMESPACE, TAP, INSIDE = "eqp-bench", "eqp-tap0", "eqp-tap1"
HOST_IP, GUEST_IP = "10.213.7.1", "10.213.7.2"
PORT = 11211
VM = LabVm(f"{PREFIX}throughput", GuestRole.MEMCACHED, "192.168.122.234")
CONNECTIONS = 16
STATS = Path("/proc/sys/kernel/bpf_stats_enabled")
PROGRAMS = ("to_guest", "from_guest", "both_ways")
SIZES = {"100 B": 100, "1 MiB": 1_000_000}
ANEW = "100 B, new connections"
LEAST = 0.98
MOST_OF_A_CORE = 0.01


@dataclass(frozen=True)
class Loss:
    """Medians over the rounds: requests per second without the program, and with it as a part of that.

    ``low`` and ``high`` hold the ratio's median with a confidence of 95 %.
    """

    without_rps: float
    ratio: float
    low: float
    high: float
    program_share: float
    """CPU time of the program, by the kernel's own count, as a part of the time that it was attached."""
    packet_ns: float
    """And for each packet that passed."""

    @property
    def verdict(self) -> str:
        """What the rounds say of the bar, or where they are too noisy, the program's time."""
        if self.low >= LEAST:
            return "met"
        if self.high < LEAST:
            return "MISSED"
        return "met, by its time" if self.program_share <= 1 - LEAST else "within noise"


def run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@dataclass(frozen=True)
class Place:
    """Where memcached serves, behind which interface; ``what`` says what stands for the guest."""

    ip: str
    interface: int
    what: str

    def connect(self) -> socket.socket:
        """A connection to it, once it listens. Raises OSError when it does not within 5 s."""
        deadline_s = time.monotonic() + 5
        while True:
            try:
                return socket.create_connection((self.ip, PORT), timeout=5)
            except OSError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)


@contextlib.contextmanager
def vm_of_the_lab() -> Iterator[Place]:
    """A VM that serves memcached. Raises LabError."""
    with contextlib.ExitStack() as made:
        made.enter_context(only_user("tests.bench.tap_throughput"))
        guest = build()
        accelerator = decide(guest).accelerator
        connection = lab_connection()
        made.callback(connection.close)
        lab = LabHost(connection, guest, accelerator)
        lab.destroy_all(VM.name)
        made.callback(lab.destroy_all, VM.name)
        lab.start(VM)
        lab.wait_ready(VM)
        [index] = [each.index for each in interfaces(URI) if each.vm == VM.name and each.index is not None]
        yield Place(VM.ip, index, f"a VM ({accelerator})")


@contextlib.contextmanager
def network_namespace() -> Iterator[Place]:
    """A network namespace that serves memcached."""
    inside = ("ip", "netns", "exec", NAMESPACE)
    with contextlib.ExitStack() as made:
        run("ip", "netns", "add", NAMESPACE)
        made.callback(run, "ip", "netns", "del", NAMESPACE)
        run("ip", "link", "add", TAP, "type", "veth", "peer", "name", INSIDE, "netns", NAMESPACE)
        run("ip", "addr", "add", f"{HOST_IP}/30", "dev", TAP)
        run("ip", "link", "set", TAP, "up")
        run(*inside, "ip", "addr", "add", f"{GUEST_IP}/30", "dev", INSIDE)
        run(*inside, "ip", "link", "set", INSIDE, "up")
        server = subprocess.Popen([*inside, "memcached", "-u", "nobody", "-l", GUEST_IP, "-I", "2m", "-t", "1"])
        made.callback(server.wait)
        made.callback(server.kill)
        yield Place(GUEST_IP, socket.if_nametoindex(TAP), "a network namespace")


def ask(clients: list[socket.socket], key: str, answer_bytes: int, seconds: float) -> float:
    """Answers per second."""
    request, answers = f"get {key}\r\n".encode(), 0
    begun_s = time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < seconds:
        for client in clients:
            client.sendall(request)
        for client in clients:
            left = answer_bytes
            while left:
                left -= len(client.recv(min(left, 1 << 20)))
        answers += len(clients)
    return answers / passed_s


def ask_anew(place: Place, key: str, answer_bytes: int, seconds: float) -> float:
    """Answers per second, each over a connection of its own."""
    answers, begun_s = 0, time.monotonic()
    while (passed_s := time.monotonic() - begun_s) < seconds:
        with closing(place.connect()) as client:
            client.sendall(f"get {key}\r\n".encode())
            left = answer_bytes
            while left:
                left -= len(client.recv(left))
        answers += 1
    return answers / passed_s


def compare(place: Place, way: TapWay, answers_per_s: Callable[[float], float], rounds: int, seconds: float) -> Loss:
    """Rounds without the program and with it; ``answers_per_s`` asks for so many seconds."""
    answers_per_s(seconds / 2)
    without, ratios, timed = [], [], []
    for _ in range(rounds):
        before = answers_per_s(seconds)
        with closing(TapProgram(HostPaths(Path("/")), ways=[way])) as program:
            program.attach(place.interface)
            with timed_programs() as took:
                seen = answers_per_s(seconds)
            timed.extend(took)
            assert any(service.answers for service in program.traffic()), "the program saw nothing"
        after = answers_per_s(seconds)
        without.append((before + after) / 2)
        ratios.append(seen / without[-1])
    share, packet_ns = (median(each) for each in zip(*timed, strict=True))
    return Loss(median(without), median(ratios), *around_median(ratios), share, packet_ns)


@contextlib.contextmanager
def timed_programs() -> Iterator[list[tuple[float, float]]]:
    """Afterwards: the part of the time that the kernel spent in the program on taps, and nanoseconds for a packet."""
    took: list[tuple[float, float]] = []
    STATS.write_text("1")
    try:
        begun_s, (before_ns, before) = time.monotonic(), program_time()
        yield took
        (after_ns, after), passed_s = program_time(), time.monotonic() - begun_s
        took.append(((after_ns - before_ns) / 1e9 / passed_s, (after_ns - before_ns) / max(after - before, 1)))
    finally:
        STATS.write_text("0")


def program_time() -> tuple[int, int]:
    """Nanoseconds and runs that the kernel counted of all programs that look at packets of a tap."""
    shown = subprocess.run(("bpftool", "--json", "prog", "show"), check=True, capture_output=True).stdout
    ours = [each for each in json.loads(shown) if each.get("name") in PROGRAMS]
    return sum(each.get("run_time_ns", 0) for each in ours), sum(each.get("run_cnt", 0) for each in ours)


def around_median(values: list[float]) -> tuple[float, float]:
    """The order statistics that hold the median with 95 % confidence, whatever the distribution; of few, all."""
    ordered, left_out, chance = sorted(values), 0, 0.0
    while (chance := chance + math.comb(len(values), left_out) / 2 ** len(values)) <= 0.025:
        left_out += 1
    at = max(left_out - 1, 0)
    return ordered[at], ordered[-1 - at]


def reading(place: Place, key: str, answer_bytes: int, seconds: float) -> tuple[float, float]:
    """Requests per second, and the part of a core that a reading every second took."""
    with closing(TapProgram(HostPaths(Path("/")))) as program, contextlib.ExitStack() as opened:
        program.attach(place.interface)
        clients = [opened.enter_context(place.connect()) for _ in range(CONNECTIONS)]
        ended, used_s = threading.Event(), 0.0

        def read() -> None:
            nonlocal used_s
            while not ended.wait(1.0):
                program.traffic()
            used_s = time.thread_time()

        reader = threading.Thread(target=read)
        reader.start()
        rate_rps = ask(clients, key, answer_bytes, seconds)
        ended.set()
        reader.join()
        return rate_rps, used_s / seconds


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vm", action="store_true", help="through the tap of a VM of the lab")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each round")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    headings = "way", "value", "req/s without", "with, of that", "95 % sure", "program's time", "a packet, ns"
    table = Table(*headings, f"bar {LEAST:.0%}")
    measured: dict[str, dict[str, float]] = {}
    with vm_of_the_lab() if options.vm else network_namespace() as place:
        answers: dict[str, int] = {}
        with contextlib.ExitStack() as opened:
            client = opened.enter_context(place.connect())
            for name, size in SIZES.items():
                key = f"k{size}"
                client.sendall(f"set {key} 0 0 {size}\r\n".encode() + b"x" * size + b"\r\n")
                assert client.recv(100) == b"STORED\r\n"
                answers[name] = len(f"VALUE {key} 0 {size}\r\n") + size + len("\r\nEND\r\n")
            clients = [opened.enter_context(place.connect()) for _ in range(CONNECTIONS)]
            ways_to_ask = {name: partial(ask, clients, f"k{size}", answers[name]) for name, size in SIZES.items()}
            ways_to_ask[ANEW] = partial(ask_anew, place, "k100", answers["100 B"])
            for way in TapWay:
                for name, answers_per_s in ways_to_ask.items():
                    loss = compare(place, way, answers_per_s, options.rounds, options.seconds)
                    told = f"{loss.without_rps:,.0f}", f"{loss.ratio:.1%}", f"{loss.low:.1%} to {loss.high:.1%}"
                    table.add_row(way, name, *told, f"{loss.program_share:.2%}", f"{loss.packet_ns:,.0f}", loss.verdict)
                    measured[f"{way}, {name}"] = asdict(loss)
        rate_rps, part = reading(place, "k100", answers["100 B"], 5 * options.seconds)
    print(f"{place.what} serves; {machine()}")
    Console(width=100).print(table)
    met = "met" if part <= MOST_OF_A_CORE else "MISSED"
    print(f"reading one service every second at {rate_rps:,.0f} requests/s: {part:.2%} of a core; bar 1 %: {met}")
    write_json(
        options.json,
        {"served_by": place.what, "throughput": measured, "reading": {"rate_rps": rate_rps, "part_of_a_core": part}},
    )


if __name__ == "__main__":
    main()
