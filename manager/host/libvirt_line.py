"""A thread that follows libvirt over one connection after another, and how long its answers are waited for."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import libvirt

from manager.errors import DomainHangs
from manager.host.domain_calls import DomainCalls

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


class Line:
    """The thread, and what it waits for. ``left``: another has taken its place, it ends as soon as it can."""

    def __init__(self, follow: Callable[[Line], None]) -> None:
        """``follow`` is run in the thread, once that is started."""
        self.thread = threading.Thread(target=follow, args=(self,), name="libvirt-watch", daemon=True)
        self.left = False
        self.broken = threading.Event()
        self.connection: libvirt.virConnect | None = None
        self.calls: DomainCalls | None = None
        self.asked_s: float | None = None
        """Since when it waits for an answer that is not about one domain (monotonic), None: it does not."""

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """While such an answer is waited for."""
        self.asked_s = time.monotonic()
        try:
            yield
        finally:
            self.asked_s = None


def find_hanging(line: Line, domains: Mapping[str, str]) -> None:
    """Ask for the state of each of these domains (names by UUID), so that those are set apart that hold up the line.

    None is, where libvirtd does not even tell its version: then it is not the domains. Blocks for several
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
        while self._wait():
            self._look_up(self._take())

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closed)
            return not self._closed

    def _take(self) -> list[libvirt.virDomain]:
        """Kept by the caller alone: a domain that is held keeps its connection open."""
        with self._changed:
            wanted, self._wanted = self._wanted, {}
            return list(wanted.values())
