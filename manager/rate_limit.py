"""Rate limits per source, so that a flood from one leaves the others theirs.

Each key has a bucket of tokens (Turner: "New directions in communications", IEEE Communications Magazine 24(10), 1986):
it fills at a rate, up to ``BURST_S`` of that rate, and may go into debt, which is repaid before more is granted.
"""

from __future__ import annotations

import ipaddress
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from manager.errors import Busy

BURST_S = 10.0
_MOST_KEYS = 10_000
_HALF_LIFE_S = 60.0


@lru_cache(_MOST_KEYS)
def network(address: str, v4_bits: int = 32, v6_bits: int = 64) -> str:
    """The block of addresses of one subscriber, or, of fewer bits, of a neighbourhood."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address  # as with a Unix socket
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    block = ipaddress.ip_network((str(parsed), v4_bits if parsed.version == 4 else v6_bits), strict=False)
    return str(parsed if block.num_addresses == 1 else block)


@dataclass(eq=False, slots=True)
class _Waiting:
    """A waiting caller; ``asked``: how often its key asked lately."""

    asked: float
    has_turn: bool = False
    displaced: bool = False


class Turns:
    """Lets one caller at a time use much memory, while a few wait. Thread-safe.

    The caller that asked least lately is next, and displaces the one that asked most: a flood displaces itself.
    """

    def __init__(
        self,
        waiting: int = 2,
        wait_s: float = 3.0,
        clock: Callable[[], float] = time.monotonic,
        gate: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """``wait_s``: the longest wait. Who has the turn also passes ``gate``, which may raise Busy."""
        self._gate = gate
        self._most_waiting = waiting
        self._wait_s = wait_s
        self._clock = clock
        self._changed = threading.Condition()
        self._taken = False
        self._waiting: list[_Waiting] = []
        # By key: how often it asked, halved every _HALF_LIFE_S, and when last.
        self._asked: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    @contextmanager
    def turn(self, key: Hashable = None) -> Iterator[None]:
        """The caller's turn. Raises Busy where waiting callers asked less, or after ``wait_s``."""
        with self._changed:
            self._take(key)
        try:
            with self._gate():
                yield
        finally:
            with self._changed:
                self._taken = False
                self._next()

    def _take(self, key: Hashable) -> None:
        mine = _Waiting(self._note(key))
        self._waiting.append(mine)
        self._next()
        if len(self._waiting) > self._most_waiting:
            most = max(reversed(self._waiting), key=lambda turn: turn.asked)  # of these the one that came last
            self._waiting.remove(most)
            most.displaced = True
            self._changed.notify_all()
        try:
            self._changed.wait_for(lambda: mine.has_turn or mine.displaced, self._wait_s)
        finally:
            if mine in self._waiting:
                self._waiting.remove(mine)
        if not mine.has_turn:
            raise Busy("too many requests of this kind at the same time: try again in a moment")

    def _next(self) -> None:
        """Give the turn to the caller that asked least, and of these to the first."""
        if self._waiting and not self._taken:
            least = min(self._waiting, key=lambda turn: turn.asked)
            self._waiting.remove(least)
            self._taken = least.has_turn = True
            self._changed.notify_all()

    def _note(self, key: Hashable) -> float:
        now_s = self._clock()
        requests, then_s = self._asked.get(key, (0.0, now_s))
        requests = requests * math.exp2((then_s - now_s) / _HALF_LIFE_S) + 1
        self._asked[key] = (requests, now_s)
        self._asked.move_to_end(key)
        if len(self._asked) > _MOST_KEYS:
            self._asked.popitem(last=False)
        return requests


class Buckets(Protocol):
    """Where the buckets of a limit are kept: by key the tokens left, and when that was."""

    def locked(self, key: Hashable) -> AbstractContextManager[object]:
        """A block in which nobody else reads or sets the bucket of that key."""

    def read(self, key: Hashable) -> tuple[float, float] | None:
        """The bucket; None: a full one."""

    def set(self, key: Hashable, left: float, at_s: float) -> None:
        """Keep it."""


class OwnBuckets:
    """Buckets of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # the most recently used at the end

    def locked(self, _key: Hashable) -> threading.Lock:
        """One lock for all."""
        return self._lock

    def read(self, key: Hashable) -> tuple[float, float] | None:
        """The bucket; None: a full one."""
        return self._left.get(key)

    def set(self, key: Hashable, left: float, at_s: float) -> None:
        """Keep it."""
        self._left[key] = (left, at_s)
        self._left.move_to_end(key)
        if len(self._left) > _MOST_KEYS:  # the longest unused, whose bucket is nearly full
            self._left.popitem(last=False)


class RateLimit:
    """Buckets by key. Thread-safe; ``clock`` is monotonic, in seconds."""

    def __init__(
        self, per_s: float, clock: Callable[[], float] = time.monotonic, buckets: Buckets | None = None
    ) -> None:
        """``per_s`` 0: no limit. ``buckets`` None: of this process."""
        self._per_s = per_s
        self._clock = clock
        self._buckets = buckets or OwnBuckets()

    @property
    def per_s(self) -> float:
        """The rate of a key; 0: unlimited."""
        return self._per_s

    def wait_s(self, key: Hashable) -> float:
        """How long a key must wait before it may take; 0: it may now."""
        if not self._per_s:
            return 0.0
        with self._buckets.locked(key):
            return self._wait_s(self._now(key)[0])

    def take(self, key: Hashable, amount: float = 1.0) -> None:
        """Take tokens, even more than there are: then the key must wait afterwards."""
        if not self._per_s:
            return
        with self._buckets.locked(key):
            left, now_s = self._now(key)
            self._buckets.set(key, left - amount, now_s)

    def ask(self, key: Hashable, amount: float = 1.0) -> float:
        """``take``, unless the key must wait; returns ``wait_s``."""
        if not self._per_s:
            return 0.0
        with self._buckets.locked(key):
            left, now_s = self._now(key)
            wait_s = self._wait_s(left)
            if not wait_s:
                self._buckets.set(key, left - amount, now_s)
        return wait_s

    def _wait_s(self, left: float) -> float:
        # A rounded clock may leave a tiny debt.
        return -left / self._per_s if left <= -1e-9 else 0.0

    def _now(self, key: Hashable) -> tuple[float, float]:
        now_s = self._clock()
        most = self._per_s * BURST_S
        left, then_s = self._buckets.read(key) or (most, now_s)
        return min(most, left + (now_s - then_s) * self._per_s), now_s
