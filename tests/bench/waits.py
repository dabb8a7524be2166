"""Who keeps threads waiting for a pCPU: from the kernel's trace of wake-ups, switches and interrupts.

Pure: events in, waits out. ``tests.bench.tail_trace`` records the events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.bench.figures import Spread

IDLE = 0
"""The thread that runs where nothing else does."""
NOBODY = "pCPU idle (it wakes up)"

_LINE = re.compile(r"\s*(?P<tid>-?\d+)\s+\[(?P<cpu>\d+)\]\s+(?P<at>[\d.]+):\s+\w+:(?P<event>\w+):\s+(?P<rest>.*)")
_SWITCH = re.compile(r"prev_comm=(.*) prev_pid=(\d+) prev_prio=\d+ prev_state=(\S+) ==> next_comm=(.*) next_pid=(\d+)")
_SHORT_SWITCH = re.compile(r"(.*):(\d+) \[\d+\] (\S+) ==> (.*):(\d+) \[\d+\]")
_ACTION = re.compile(r"action=(\w+)")
_WAKE_UP = re.compile(r"(?:comm=)?(.*?)(?: pid=|:)(\d+)(?: prio=\d+| \[\d+\])(?: success=1)? (?:target_cpu=|CPU:)(\d+)")


@dataclass(frozen=True, slots=True)
class Switch:
    """A pCPU goes from one thread to another; ``runnable``: the one it leaves wants to go on."""

    at_s: float
    cpu: int
    left: int
    runnable: bool
    next: int
    next_comm: str


@dataclass(frozen=True, slots=True)
class WakeUp:
    """A thread becomes runnable."""

    at_s: float
    cpu: int
    tid: int


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The pCPU begins, or ends, an interrupt or a softirq. ``what`` names it where it begins."""

    at_s: float
    cpu: int
    begins: bool
    what: str = ""


Event = Switch | WakeUp | Interrupt


def parse(lines: Iterable[str]) -> Iterator[Event]:
    """Events of ``perf script -F tid,cpu,time,event,trace``, in its order; what is none of ours is left out."""
    for line in lines:
        match = _LINE.match(line)
        if match is None:
            continue
        at_s, cpu, event, rest = float(match["at"]), int(match["cpu"]), match["event"], match["rest"]
        if event == "sched_switch" and (fields := _SWITCH.match(rest) or _SHORT_SWITCH.match(rest)):
            _, left, state, comm, following = fields.groups()
            yield Switch(at_s, cpu, int(left), state.startswith("R"), int(following), comm)
        elif event in {"sched_wakeup", "sched_wakeup_new"} and (fields := _WAKE_UP.match(rest)):
            yield WakeUp(at_s, int(fields[3]), int(fields[2]))
        elif event.endswith("_exit"):
            yield Interrupt(at_s, cpu, False)
        elif event.endswith("_entry"):
            yield Interrupt(at_s, cpu, True, _interrupt(event.removesuffix("_entry"), rest))


def _interrupt(event: str, rest: str) -> str:
    """A softirq by its action, a device's interrupt as such, another vector by its event's name."""
    action = _ACTION.search(rest)
    if action is not None:
        return f"softirq {action[1]}"
    return "device interrupt" if event == "irq_handler" else f"{event.replace('_', ' ')} interrupt"


@dataclass(slots=True)
class Waits:
    """Of one thread: each wait for a pCPU in ms, and for the long ones the time in ms by who had the pCPU meanwhile."""

    woken_ms: list[float] = field(default_factory=list)
    preempted_ms: list[float] = field(default_factory=list)
    blamed_ms: dict[str, float] = field(default_factory=dict)
    long_waits: int = 0
    ran_s: float = 0.0
    interrupted_ms: dict[str, float] = field(default_factory=dict)
    """While it had the pCPU, by what interrupted it."""

    def add(self, other: Waits) -> None:
        """Those of another thread, or time, too."""
        self.woken_ms += other.woken_ms
        self.preempted_ms += other.preempted_ms
        for mine, others in ((self.blamed_ms, other.blamed_ms), (self.interrupted_ms, other.interrupted_ms)):
            for who, spent_ms in others.items():
                _spend(mine, who, spent_ms)
        self.long_waits += other.long_waits
        self.ran_s += other.ran_s

    def figures(self) -> Mapping[str, object]:
        """For a table and JSON."""
        woken = Spread.of(self.woken_ms or [0.0])
        ordered = sorted(self.woken_ms or [0.0])
        return {
            "wake_ups": len(self.woken_ms),
            "p50_ms": woken.median,
            "p95_ms": ordered[int(len(ordered) * 0.95)],
            "p99_ms": woken.p99,
            "greatest_ms": woken.largest,
            "preempted": len(self.preempted_ms),
            "preempted_ms": sum(self.preempted_ms),
            "long_waits": self.long_waits,
            "blamed_ms": _largest_first(self.blamed_ms),
            "ran_s": self.ran_s,
            "interrupted_ms": _largest_first(self.interrupted_ms),
        }


def _spend(spent_ms: dict[str, float], who: str, more_ms: float) -> None:
    spent_ms[who] = spent_ms.get(who, 0.0) + more_ms


def _largest_first(spent_ms: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(spent_ms.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """From ``at_s`` until the next stretch somebody has the pCPU, or an interrupt has it."""

    at_s: float
    who: int
    interrupt: str | None


def waits_of(
    events: Iterable[Event], tids: Iterable[int], role: Callable[[int, str], str], long_ms: float
) -> dict[int, Waits]:
    """The waits of these threads. ``role`` names a thread by its number and its command's name.

    A wait is *woken* from the wake-up to running, *preempted* from being put aside while it could go on. Time in
    interrupts is blamed on them, the innermost, whoever was interrupted.
    """
    waits = {tid: Waits() for tid in tids}
    since: dict[int, tuple[float, bool]] = {}
    stretches: dict[int, list[_Stretch]] = {}
    running: dict[int, tuple[int, float]] = {}
    names: dict[int, str] = {}
    nested: dict[int, list[str]] = {}

    def named(tid: int) -> str:
        return role(tid, names.get(tid, ""))

    for event in events:
        if isinstance(event, WakeUp):
            if event.tid in waits and not any(who == event.tid for who, _ in running.values()):
                since.setdefault(event.tid, (event.at_s, True))  # else it was about to sleep, and does not
            continue
        row = stretches.setdefault(event.cpu, [])
        who, from_s = running.get(event.cpu, (IDLE, event.at_s))
        if isinstance(event, Interrupt):
            inside = nested.setdefault(event.cpu, [])
            _interrupt_who_ran(event, inside, waits, who, from_s)
            running[event.cpu] = who, event.at_s
            row.append(_Stretch(event.at_s, who, inside[-1] if inside else None))
            continue
        _ran(waits, who, from_s, event.at_s)
        names[event.next] = event.next_comm
        running[event.cpu] = event.next, event.at_s
        if event.left in waits and event.runnable:
            since[event.left] = event.at_s, False
        if event.next in since and event.next in waits:
            began_s, woken = since.pop(event.next)
            _note(waits[event.next], row, began_s, event.at_s, woken, long_ms, named)
        inside = nested.get(event.cpu, [])
        row.append(_Stretch(event.at_s, event.next, inside[-1] if inside else None))
        if len(row) > _KEPT:
            del row[: _KEPT // 2]
    return waits


_KEPT = 20_000
"""Stretches of a pCPU that are remembered: those of the last second or so."""


def _ran(waits: Mapping[int, Waits], who: int, from_s: float, until_s: float) -> None:
    if who in waits:
        waits[who].ran_s += until_s - from_s


def _interrupt_who_ran(
    event: Interrupt, inside: list[str], waits: Mapping[int, Waits], who: int, from_s: float
) -> None:
    """Give the time until now to the thread, or to the innermost of the interrupts that the pCPU is ``inside`` of."""
    if not inside:
        _ran(waits, who, from_s, event.at_s)
    elif who in waits:
        _spend(waits[who].interrupted_ms, inside[-1], (event.at_s - from_s) * 1000)
    if event.begins:
        inside.append(event.what)
    elif inside:
        inside.pop()


def _note(
    waits: Waits,
    row: list[_Stretch],
    began_s: float,
    until_s: float,
    woken: bool,
    long_ms: float,
    role: Callable[[int], str],
) -> None:
    waited_ms = (until_s - began_s) * 1000
    (waits.woken_ms if woken else waits.preempted_ms).append(waited_ms)
    if waited_ms < long_ms:
        return
    waits.long_waits += 1
    for stretch in reversed(row):
        who = stretch.interrupt or (NOBODY if stretch.who == IDLE else role(stretch.who))
        _spend(waits.blamed_ms, who, (until_s - max(stretch.at_s, began_s)) * 1000)
        until_s = stretch.at_s
        if until_s <= began_s:
            break
