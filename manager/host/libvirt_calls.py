"""Calls of libvirt, which has no time limit for one: those about a single domain have a deadline, and one that does not
return sets that domain apart. A call cannot be taken back: its thread waits for as long as it takes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

import libvirt

from manager.errors import DomainHangs
from manager.host.addresses import Interfaces
from manager.host.vm_interfaces import interfaces_below
from manager.model.resource_use import VirtualDiskCounters, VirtualDisksSeen

T = TypeVar("T")

MOST_HANGING = 3
"""libvirtd answers five calls of a connection at once (max_client_requests): one stays free beside a listing."""
_COUNTED = "reqs", "times"
MOST_DISKS_HANGING = 1
"""Of the calls that QEMU itself has to answer, beside the others: one that hangs keeps no other from its addresses."""
_ROUND_S = 0.1
"""Whoever asks about many domains lets others ask in between after so long."""
ITSELF = ""
"""libvirtd among the domains that are set apart."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Patience:
    """For how long answers are waited for, in seconds.

    ``listing_s``: one about all domains; from then on they are found without libvirt. ``domain_s``: one about a single
    domain. ``renew_s``: one about all domains, before another connection is tried; ``most_left`` connections at most
    are left behind with calls that do not return.
    """

    listing_s: float = 2.0
    domain_s: float = 5.0
    renew_s: float = 30.0
    most_left: int = 3


class _Worker:
    """A thread that makes calls, one after the other, and holds on to none."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="libvirt-domain", daemon=True).start()

    def make(self, call: Callable[[], None]) -> None:
        """Make this call next. Returns at once."""
        self._calls.put(call)

    def end(self) -> None:
        """End after the calls that are under way. Returns at once."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # it holds a domain, and so a connection


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A call about one domain."""

    uuid: str
    name: str
    action: Callable[[], T]


class _CallRound(Generic[T]):
    """Calls that a worker makes one after the other, as many as begin within ``_ROUND_S``. Under ``DomainCalls``' lock.

    ``waiting``: what is still to be asked, from which the worker takes the next one. ``asking``: what it waits for an
    answer to, since ``since_s`` (monotonic). ``left``: it is not waited for any more.
    """

    def __init__(self, waiting: deque[Question[T]], answers: dict[str, T]) -> None:
        self.waiting, self.answers = waiting, answers
        self.asking: Question[T] | None = None
        self.since_s = self.begun_s = time.monotonic()
        self.failure: Exception | None = None
        self.left = False
        self.ended = threading.Event()


class DomainCalls:
    """Makes one call at a time, in a thread that is left behind where it does not return in ``answer_s`` seconds.

    That domain is set apart until the call returns. At most ``most`` threads are left behind.
    """

    def __init__(self, answer_s: float, most: int = MOST_HANGING) -> None:
        self._answer_s = answer_s
        self._most = most
        self._turn = threading.Lock()
        self._lock = threading.Lock()  # never held while libvirt is asked
        self._hanging: dict[str, str] = {}
        self._worker: _Worker | None = None
        self._closed = False

    @property
    def hanging(self) -> dict[str, str]:
        """The domains that are set apart: names by UUID. Never blocks for long."""
        with self._lock:
            return dict(self._hanging)

    def ask(self, uuid: str, name: str, action: Callable[[], T]) -> T:
        """What ``action`` returns, or raises. Raises DomainHangs where it does not return in time, or is not tried."""
        answers = self.ask_each([Question(uuid, name, action)])
        if uuid not in answers:
            raise DomainHangs(f"libvirt does not answer about domain {name}")
        return answers[uuid]

    def ask_each(self, questions: Iterable[Question[T]]) -> dict[str, T]:
        """The answers by UUID, without those that do not come in time, or are not tried. Raises what an action raises.

        Others have their turn in between. Handing a call to another thread costs more than most calls, so many of them
        are handed over at once.
        """
        answers: dict[str, T] = {}
        waiting = deque(questions)
        while waiting:
            with self._turn:
                made = _CallRound(waiting, answers)
                if not self._begin(made):
                    break
                self._wait(made)
            failure, made.failure = made.failure, None
            if failure is not None:
                try:
                    raise failure
                finally:
                    del failure  # its traceback has this frame: a domain that is held keeps its connection open
        return answers

    def _begin(self, made: _CallRound[T]) -> bool:
        """Let a worker make these calls; False: none of them may be made."""
        with self._lock:
            if not any(map(self._may_ask, made.waiting)):
                return False
            self._worker = self._worker or _Worker()
            self._worker.make(partial(self._make_calls, made))
            return True

    def _may_ask(self, question: Question[T]) -> bool:
        return not self._closed and len(self._hanging) < self._most and question.uuid not in self._hanging

    def _make_calls(self, made: _CallRound[T]) -> None:
        """In the thread of a worker."""
        while (question := self._next(made)) is not None:
            try:
                answer = question.action()
            except Exception as error:  # noqa: BLE001 - whoever asked gets it
                made.failure = error
            with self._lock:
                self._hanging.pop(question.uuid, None)
                if made.left:
                    return
                made.asking = None
                if made.failure is None:
                    made.answers[question.uuid] = answer
        made.ended.set()

    def _next(self, made: _CallRound[T]) -> Question[T] | None:
        """What the worker asks now; None: no more in this round."""
        with self._lock:
            now_s = time.monotonic()
            while made.waiting and made.failure is None and now_s - made.begun_s < _ROUND_S:
                question = made.waiting.popleft()
                if self._may_ask(question):
                    made.asking, made.since_s = question, now_s
                    return question
            return None

    def _wait(self, made: _CallRound[T]) -> None:
        """Wait until the round has ended, or one of its calls does not return in time, whose domain is set apart."""
        left_s = self._answer_s
        while not made.ended.wait(left_s):
            with self._lock:
                asking = made.asking
                left_s = self._answer_s if asking is None else made.since_s + self._answer_s - time.monotonic()
                if asking is not None and left_s <= 0:
                    made.left = True
                    self._hanging[asking.uuid] = asking.name
                    self._leave_worker()
                    log.debug("libvirt has not answered about domain %s for %g s", asking.name, self._answer_s)
                    return

    def close(self) -> None:
        """Make no more calls."""
        with self._lock:
            self._closed = True
            self._leave_worker()

    def _leave_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None


class Line:
    """A thread that follows libvirt over one connection after another, and what it waits for.

    ``left``: another has taken its place, it ends as soon as it can. ``asked_s``: since when it waits for an answer
    that is not about one domain (monotonic), None: it does not.
    """

    def __init__(self, follow: Callable[[Line], None], on_ask: Callable[[], object]) -> None:
        """``follow`` is run in the thread, once that is started; ``on_ask`` is called before it waits for an answer."""
        self.thread = threading.Thread(target=follow, args=(self,), name="libvirt-watch", daemon=True)
        self.left = False
        self.broken = threading.Event()
        self.connection: libvirt.virConnect | None = None
        self.calls: DomainCalls | None = None
        self.asked_s: float | None = None
        self._on_ask = on_ask

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While such an answer is waited for."""
        self.asked_s = time.monotonic()
        self._on_ask()
        try:
            yield
        finally:
            self.asked_s = None


def find_hanging(line: Line, domains: Mapping[str, str]) -> None:
    """Ask for the state of each of these domains (names by UUID), so that those are set apart that hold up the line.

    None is, where libvirtd does not even answer with its version: then it is not the domains. Blocks for several
    ``Patience.domain_s``.
    """
    connection, calls, asked_s = line.connection, line.calls, line.asked_s
    if connection is None or calls is None or asked_s is None:
        return
    try:
        calls.ask(ITSELF, "libvirtd", connection.getLibVersion)
        for uuid, name in domains.items():
            if line.asked_s != asked_s:
                return
            with contextlib.suppress(DomainHangs):
                calls.ask(uuid, name, lambda uuid=uuid: _state(connection, uuid))  # type: ignore[misc]
    except (DomainHangs, libvirt.libvirtError) as error:
        log.warning("libvirtd itself does not answer: %s", error)


def _state(connection: libvirt.virConnect, uuid: str) -> None:
    with contextlib.suppress(libvirt.libvirtError):  # it ended meanwhile
        connection.lookupByUUIDString(uuid).state()


class Lookups:
    """Looks things up about domains in a thread of its own, one batch after another."""

    def __init__(self, look_up: Callable[[list[libvirt.virDomain]], None]) -> None:
        """``look_up`` is called with the domains that were asked for since its last call."""
        self._look_up = look_up
        self._wanted: dict[str, libvirt.virDomain] = {}
        self._changed = threading.Condition()
        self._closed = False
        threading.Thread(target=self._run, name="libvirt-addresses", daemon=True).start()

    def ask(self, domains: Iterable[libvirt.virDomain]) -> None:
        """Look these up soon. Returns at once."""
        with self._changed:
            self._wanted |= {domain.UUIDString(): domain for domain in domains}
            self._changed.notify()

    def close(self) -> None:
        """Look up no more. Returns at once."""
        with self._changed:
            self._closed = True
            self._wanted.clear()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._wanted or self._closed)
                if self._closed:
                    return
                domains, self._wanted = list(self._wanted.values()), {}
            self._look_up(domains)
            del domains  # one that is held keeps its connection open


def set_up(connection: libvirt.virConnect, domains: list[libvirt.virDomain]) -> frozenset[str]:
    """UUIDs of those that libvirt does not still set up: it would undo what is written. An event says when it is done.

    One call about all of them, which waits for no QEMU. Those that ended meanwhile are not among them.
    """
    starting = libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP
    answers = connection.domainListGetStats(
        domains, libvirt.VIR_DOMAIN_STATS_STATE, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
    )
    return frozenset(
        domain.UUIDString()
        for domain, stats in answers
        if (stats.get("state.state"), stats.get("state.reason")) != starting
    )


def interfaces_of(domain: libvirt.virDomain) -> Interfaces:
    """What libvirt knows of a domain's interfaces."""
    leased: frozenset[str] | None = None
    hardware: frozenset[str] | None = None
    taps: frozenset[int] | None = None
    try:
        leases = domain.interfaceAddresses(libvirt.VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_LEASE, 0)
        leased = frozenset(str(lease["addr"]) for interface in leases.values() for lease in interface["addrs"] or ())
    except libvirt.libvirtError as error:  # it ended meanwhile, or its network is none of libvirt's
        log.debug("leases of domain %s: %s", domain.name(), error)
    try:
        description = ET.fromstring(domain.XMLDesc())  # noqa: S314 - libvirt's own
    except (libvirt.libvirtError, ET.ParseError, ValueError) as error:  # ValueError: it is not UTF-8
        log.debug("interfaces of domain %s: %s", domain.name(), error)
    else:
        hardware = frozenset(mac.get("address", "").lower() for mac in description.iterfind("devices/interface/mac"))
        found = interfaces_below(domain.name(), description)
        taps = frozenset(interface.index for interface in found if interface.index is not None)
    return Interfaces(leased, hardware, taps)


def virtual_disks_of(connection: libvirt.virConnect, domain: libvirt.virDomain) -> VirtualDisksSeen | None:
    """What a domain's guest asked of its disks, as QEMU counts it; None: libvirt does not say, as in another job."""
    try:
        answers = connection.domainListGetStats(
            [domain], libvirt.VIR_DOMAIN_STATS_BLOCK, libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        )
    except libvirt.libvirtError as error:
        log.debug("disks of domain %s: %s", domain.name(), error)
        return None
    disks = virtual_disks_in(answers[0][1]) if answers else {}
    return VirtualDisksSeen(time.monotonic(), disks) if disks else None


def virtual_disks_in(stats: Mapping[str, object]) -> dict[str, VirtualDiskCounters]:
    """By name, from libvirt's statistics (virConnectGetAllDomainStats, VIR_DOMAIN_STATS_BLOCK): times are nanoseconds.

    Without those of which requests or their times are not counted, as while a VM starts.
    """
    disks: dict[str, VirtualDiskCounters] = {}
    count = stats.get("block.count", 0)
    for number in range(count if isinstance(count, int) else 0):
        name = stats.get(f"block.{number}.name")
        parts = [[stats.get(f"block.{number}.{kind}.{what}") for kind in ("rd", "wr", "fl")] for what in _COUNTED]
        requests, wait_ns = ([value for value in values if isinstance(value, int)] for values in parts)
        if isinstance(name, str) and len(requests) == len(wait_ns) == len(parts[0]):
            disks[name] = VirtualDiskCounters(sum(requests), sum(wait_ns))
    return disks


def close(connection: libvirt.virConnect) -> None:
    """Close a connection for good: one that still has a callback registered would stay open."""
    with contextlib.suppress(libvirt.libvirtError):
        connection.unregisterCloseCallback()
    try:
        connection.close()
    except libvirt.libvirtError as error:
        log.debug("closing a broken libvirt connection: %s", error)


def version_text(number: int) -> str:
    """A version as libvirt encodes it: 9000000 is 9.0.0."""
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"
