"""What a critical vCPU waits for: who ran meanwhile, and how far the batch groups are from the average of their queue.

By tracepoints, and by the scheduler's own listing in debugfs, which has the virtual times of queues and groups.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kernel.inside.tail.experiment import CROWD, Shape, batch, critical, groups, percentiles

TRACING = Path("/sys/kernel/tracing")
EVENTS = ("sched_switch", "sched_waking")
LISTING = Path("/sys/kernel/debug/sched/debug")
SPAN_MS, SAMPLES = 500, 15
LONG_US = 2000
UNIT = 1 << 20  # of a weight that runs at the speed of time: scale_load(NICE_0_LOAD)
LINE = re.compile(r" *.+?-\d+ +\[(\d+)\] \S+ +(\d+\.\d+): (\w+): (.*)")
QUEUE = re.compile(r"^cfs_rq\[(\d+)\]:(/machine\.slice\S*)$(.*?)(?=^\S)", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  \.(\S+) +: (-?[\d.]+)$", re.MULTILINE)


def trace(shape: Shape) -> Iterator[dict[str, object]]:
    """The lags of the batch groups that are siblings of the critical ones; then each long wait; then how many."""
    with running(shape):
        time.sleep(0.3)
        lags_us = [lag for _ in range(SAMPLES) for lag in sample()]
    yield {"lag_us": percentiles([round(abs(lag)) for lag in lags_us])}
    with events(), running(shape):
        pass
    found = list(waits((TRACING / "trace").read_text()))
    yield from found
    yield {"long_waits": len(found)}


@contextmanager
def running(shape: Shape) -> Iterator[None]:
    """The VMs; what is done meanwhile is real-time, and makes them wait."""
    with groups():
        command = [CROWD, "200", str(SPAN_MS)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as crowd:
            assert crowd.stdin is not None
            crowd.stdin.write("\n".join([*critical(shape), *batch(shape)]))
            crowd.stdin.close()
            yield


@contextmanager
def events() -> Iterator[None]:
    (TRACING / "buffer_size_kb").write_text("32768")
    (TRACING / "trace").write_text("")
    switches = [TRACING / "events/sched" / name / "enable" for name in EVENTS]
    for switch in switches:
        switch.write_text("1")
    (TRACING / "tracing_on").write_text("1")
    try:
        yield
    finally:
        for switch in switches:
            switch.write_text("0")


def sample() -> list[float]:
    """How far each batch group in the critical groups' queue on each CPU is behind its average, in microseconds of its
    share: ``vlag`` by weight. None before EEVDF, whose queues have no average.
    """
    time.sleep(0.02)
    text = LISTING.read_text() + "\nend"
    queues = {(cpu, path): dict(FIELD.findall(rest)) for cpu, path, rest in QUEUE.findall(text)}
    found = []
    for (cpu, path), fields in queues.items():
        above = queues.get((cpu, "/machine.slice"))
        if above and "avg_vruntime" in above and path.count("/") == 2 and "batch" in path and "se->vruntime" in fields:
            lag_ms = float(above["avg_vruntime"]) - float(fields["se->vruntime"])
            found.append(lag_ms * 1000 * int(fields["se->load.weight"]) / UNIT)
    return found


def waits(text: str) -> Iterator[dict[str, object]]:
    """From a critical vCPU's wake-up until it runs, where that is long: who came to run on its pCPU, how often."""
    woken: dict[str, tuple[int, float, Counter[str]]] = {}
    for line in text.splitlines():
        match = LINE.match(line)
        if not match:
            continue
        cpu, at_us, event, rest = int(match[1]), float(match[2]) * 1e6, match[3], match[4]
        if event == "sched_waking" and (found := re.match(r"comm=(critical\d+) .*target_cpu=(\d+)", rest)):
            woken[found[1]] = int(found[2]), at_us, Counter()
        elif event == "sched_switch" and (found := re.search(r"==> next_comm=(.*) next_pid", rest)):
            _, since_us, ran = woken.pop(found[1], (cpu, at_us, Counter()))
            if at_us - since_us >= LONG_US:
                yield {"critical": found[1], "wait_us": round(at_us - since_us), "ran": dict(ran)}
            for on, _, others in woken.values():
                if on == cpu:
                    others[found[1]] += 1
