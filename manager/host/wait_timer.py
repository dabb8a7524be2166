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
from manager.model.traffic import AnswerCount, AnswersTable

_WORD_BYTES = 8
_WORDS = max(words.stop for words in threads.WATCH.values())
_ANSWERS = ("asked", "ended", "answers", "late")


@dataclass(frozen=True, slots=True)
class TimerSample:
    """The last sample, and the one before, of CLOCK_MONOTONIC: the waits in nanoseconds. GONE: of a thread that is.

    ``answers``: what the services had answered at ``answers_ns``, when it was looked at last and all was in time.
    """

    from_ns: int
    at_ns: int
    before_ns: Sequence[int]
    wait_ns: Sequence[int]
    answers_ns: int
    answers: Sequence[AnswerCount]


@dataclass(frozen=True, slots=True)
class WatchedAnswers:
    """Services by their keys in this table, and what they had answered at ``at_ns``."""

    table: AnswersTable | None = None
    keys: Sequence[bytes] = ()
    counts: Sequence[AnswerCount] = ()
    at_ns: int = 0


NO_ANSWERS = WatchedAnswers()


class WaitTimer:
    """Its programs and maps. Not thread-safe, but for ``descriptor``, which is readable once it rang."""

    def __init__(self, opened: contextlib.ExitStack, folder: Path) -> None:
        """``folder``: where the program is pinned; ``opened`` closes what is opened. Raises HostError."""
        self._start, self._stop = (open_pin(folder / name) for name in (threads.START_WATCH, threads.STOP_WATCH))
        for program in (self._start, self._stop):
            opened.callback(os.close, program)
        watch, alarms, self._judged_map, _ = (
            opened.enter_context(closing(BpfMap(folder / "maps" / name)))
            for name in (threads.WATCH_MAP, threads.ALARMS, threads.JUDGED_MAP, threads.TIMER)
        )
        self._table: AnswersTable | None = None  # that is there
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

    def start(
        self,
        at_ns: int,
        wait_ns: Sequence[int],
        bounds: Sequence[float],
        interval_ns: int,
        now_ns: int,
        judged: WatchedAnswers = NO_ANSWERS,
    ) -> None:
        """Sample the first of the chosen threads each ``interval_ns``: at ``at_ns`` they had waited ``wait_ns``.

        ``bounds``: which share of the time each of them may wait, 0 .. 1. Raises HostError.
        """
        if judged.table is not None and judged.table is not self._table:  # it takes milliseconds
            self._judged_map.write(bytes(threads.INDEX.size), threads.SERVICES_MAP.pack(judged.table.descriptor))
            self._table = judged.table
        head = {
            "interval_ns": interval_ns,
            "count": len(wait_ns),
            "at_ns": at_ns,
            "judged": len(judged.keys),
            "answers_ns": judged.at_ns,
            "turn": 0,
        }
        for name, value in head.items():
            self._words[threads.WATCH[name].start] = value
        self._write("wait_ns", wait_ns)
        self._write("bound", [int(bound * threads.WHOLE) for bound in bounds])
        if judged.keys:
            self._write("service", array("Q", b"".join(judged.keys)))
            for name, values in zip(_ANSWERS, zip(*judged.counts, strict=True), strict=True):
                self._write(name, values)
        self._samples = self.samples
        answer = run_program(self._start, threads.START.pack(max(at_ns + interval_ns - now_ns, 0), 0))
        if not threads.START.unpack(answer)[-1]:
            raise HostError("the kernel did not start the timer of the program on threads")

    def stop(self) -> TimerSample | None:
        """The last sample since the start, None: there was none. No more are taken. Raises HostError."""
        run_program(self._stop, bytes(threads.START.size))
        self._read_to[0] = self._written_to[0]
        if self.samples == self._samples:
            return None
        count, judged = self._number("count"), self._number("judged")
        begin = threads.MOST_JUDGED if self._number("turn") else 0
        answers = zip(*(self._column(name, judged, begin) for name in _ANSWERS), strict=True)
        return TimerSample(
            self._number("from_ns"),
            self._number("at_ns"),
            self._column("before_ns", count),
            self._column("wait_ns", count),
            self._number("answers_ns"),
            tuple(AnswerCount(*of_service) for of_service in answers),
        )

    @property
    def samples(self) -> int:
        """How many were taken in all."""
        return self._number("samples")

    @property
    def took_ns(self) -> int:
        """The time that all samples took, in the kernel."""
        return self._number("took_ns")

    def _number(self, name: str) -> int:
        return self._words[threads.WATCH[name].start]

    def _write(self, name: str, values: Sequence[int]) -> None:
        first = threads.WATCH[name].start
        self._words[first : first + len(values)] = memoryview(array("Q", values))

    def _column(self, name: str, count: int, begin: int = 0) -> list[int]:
        first = threads.WATCH[name].start + begin
        return self._words[first : first + count].tolist()
