"""Threads that jobs are done in: begun when needed, never more than a bound, and none keeps the process from ending."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

Result = TypeVar("Result")


class Pool:
    """Takes jobs from any thread."""

    def __init__(self, name: str, threads: int, most_waiting: int) -> None:
        """``most_waiting``: jobs that wait for a thread."""
        self._name = name
        self._threads = threads
        self._most = threads + most_waiting
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._begun = 0
        self._unfinished = 0

    @property
    def full(self) -> bool:
        """Whether a job would wait behind too many."""
        return self._unfinished >= self._most

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have a job done; its future has the result."""
        future: Future[Result] = Future()

        def job() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except Exception as error:  # noqa: BLE001 - whoever waits for the result gets it
                    future.set_exception(error)

        self._take(job)
        return future

    async def run(self, work: Callable[[], Result]) -> Result:
        """The result of a job. Cancelled while it waits, it is not done."""
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Result] = loop.create_future()

        def job() -> None:
            if result.cancelled():
                return
            try:
                settle: Callable[[Any], None] = result.set_result
                outcome: Any = work()
            except Exception as error:  # noqa: BLE001 - whoever waits for the result gets it
                settle, outcome = result.set_exception, error
            with suppress(RuntimeError):  # the loop has ended: nobody waits
                loop.call_soon_threadsafe(_settle, result, settle, outcome)

        self._take(job)
        return await result

    def close(self) -> None:
        """End the threads once what was submitted is done."""
        for _ in range(self._begun):
            self._jobs.put(None)

    def _take(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._begun < min(self._threads, self._unfinished + 1):
                name = f"{self._name}-{self._begun + 1}"
                threading.Thread(target=self._run, name=name, daemon=True).start()  # which fails where none may begin
                self._begun += 1
            self._unfinished += 1
        self._jobs.put(job)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # a thread that waits keeps nobody's body
            with self._lock:
                self._unfinished -= 1


def _settle(result: asyncio.Future[Any], settle: Callable[[Any], None], outcome: Any) -> None:
    """Called in the loop's thread."""
    if not result.done():  # else it was cancelled meanwhile
        settle(outcome)
