"""The timer of the program on threads: it samples chosen waits until one is above its bound, and then rings.

It ends with this process, whatever ends that: the kernel stops the timer of a map that nobody holds.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from array import array
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from manager.bpf import threads
from manager.errors import HostError
from manager.host.bpf_calls import BpfMap, open_pin, run_program

_WORD_BYTES = 8
_WORDS = len(threads.WATCH) + len(threads.WATCH_COLUMNS) * threads.MOST_WATCHED
_FIRST = {name: len(threads.WATCH) + number * threads.MOST_WATCHED for number, name in enumerate(threads.WATCH_COLUMNS)}


@dataclass(frozen=True, slots=True)
class TimerSample:
    """The last sample, and the one before, of CLOCK_MONOTONIC: the waits in nanoseconds. GONE: of a thread that is."""

    from_ns: int
    at_ns: int
    before_ns: Sequence[int]
    wait_ns: Sequence[int]


class WaitTimer:
    """Its programs and maps. Not thread-safe, but for ``descriptor``, which is readable once it rang."""

    def __init__(self, opened: contextlib.ExitStack, folder: Path) -> None:
        """``folder``: where the program is pinned; ``opened`` closes what is opened. Raises HostError."""
        self._start, self._stop = (open_pin(folder / name) for name in (threads.START_WATCH, threads.STOP_WATCH))
        for program in (self._start, self._stop):
            opened.callback(os.close, program)
        watch, alarms, _ = (
            opened.enter_context(closing(BpfMap(folder / "maps" / name)))
            for name in (threads.WATCH_MAP, threads.ALARMS, threads.TIMER)
        )
        self.descriptor = alarms.descriptor
        mapped = watch.mapped(_WORD_BYTES * _WORDS, writable=True)
        read_to, written_to = alarms.mapped(mmap.PAGESIZE, writable=True), alarms.mapped(mmap.PAGESIZE, mmap.PAGESIZE)
        for memory in (mapped, read_to, written_to):
            opened.callback(memory.close)
        self._words = opened.enter_context(memoryview(mapped).cast("Q"))
        self._read_to, self._written_to = (
            opened.enter_context(memoryview(memory).cast("Q")) for memory in (read_to, written_to)
        )
        self._samples = 0  # at the last start

    def start(self, at_ns: int, wait_ns: Sequence[int], bounds: Sequence[float], interval_ns: int, now_ns: int) -> None:
        """Sample the first of the chosen threads each ``interval_ns``: at ``at_ns`` they had waited ``wait_ns``.

        ``bounds``: which share of the time each of them may wait, 0 .. 1. Raises HostError.
        """
        self._head("interval_ns", interval_ns)
        self._head("count", len(wait_ns))
        self._head("at_ns", at_ns)
        self._write("wait_ns", wait_ns)
        self._write("bound", [int(bound * threads.WHOLE) for bound in bounds])
        self._samples = self.samples
        answer = run_program(self._start, threads.START.pack(max(at_ns + interval_ns - now_ns, 0), 0))
        if not threads.START.unpack(answer)[-1]:
            raise HostError("the kernel did not start the timer of the program on threads")

    def stop(self) -> TimerSample | None:
        """The last sample since the start, None: there was none. No more are taken. Raises HostError."""
        run_program(self._stop, bytes(threads.START.size))
        self._read_to[0] = self._written_to[0]
        head = dict(zip(threads.WATCH, self._words[: len(threads.WATCH)], strict=True))
        if head["samples"] == self._samples:
            return None
        count = head["count"]
        return TimerSample(
            head["from_ns"], head["at_ns"], self._column("before_ns", count), self._column("wait_ns", count)
        )

    @property
    def samples(self) -> int:
        """How many were taken in all."""
        return self._words[threads.WATCH.index("samples")]

    @property
    def took_ns(self) -> int:
        """The time that all samples took, in the kernel."""
        return self._words[threads.WATCH.index("took_ns")]

    def _head(self, name: str, value: int) -> None:
        self._words[threads.WATCH.index(name)] = value

    def _write(self, name: str, values: Sequence[int]) -> None:
        first = _FIRST[name]
        self._words[first : first + len(values)] = memoryview(array("Q", values))

    def _column(self, name: str, count: int) -> list[int]:
        first = _FIRST[name]
        return self._words[first : first + count].tolist()
