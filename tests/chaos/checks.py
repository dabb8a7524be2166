"""What both kinds of hosts have in common: chance, load, troubles, and what must hold after them."""

from __future__ import annotations

import collections
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime
from typing import TypeVar

import psycopg

from manager.errors import ManagerUnavailable
from manager.protocol.client import ManagerClient
from tests.chaos.relay import DOWN, MUTE
from tests.chaos.site import HOST, Site
from tests.reported import ticks_in

MINUTES = float(os.environ.get("EQUIPOISE_CHAOS_MINUTES", "1")) / 2
"""Of each of the two tests: that on a simulated host and that on real VMs."""
SEED = int(
    os.environ.get("EQUIPOISE_CHAOS_SEED") or (1 if "CI" in os.environ else random.SystemRandom().randrange(10**6))
)
FLOOD_PER_S, POSTS_PER_S = 10_000, 20
MOST_MIB = 300.0
"""Of a process; what leaks under a flood is beyond that soon."""
MOST_GROWTH_MIB = 30.0
"""Of the most that a process had in the second half of a run, beside that in the first."""
_LONG_SAMPLES = 40

SomeSite = TypeVar("SomeSite", bound=Site)
Trouble = Callable[[SomeSite, random.Random], None]


class Flood(threading.Thread):
    """Posts response times of an application; counts those that were acknowledged, and those that may be stored."""

    def __init__(self, site: Site, application: str) -> None:
        super().__init__(name="flood", daemon=True)
        self._site, self._path = site, f"/applications/{application}/samples"
        self._ended = threading.Event()
        self.acknowledged = self.unanswered = 0

    def run(self) -> None:
        times = [5.0] * (FLOOD_PER_S // POSTS_PER_S)
        with closing(self._site.client()) as client:
            while not self._ended.wait(1 / POSTS_PER_S):
                try:
                    client.request("POST", self._path, body={"times_ms": times})
                    self.acknowledged += len(times)
                except ManagerUnavailable:
                    self.unanswered += len(times)

    def end(self) -> None:
        self._ended.set()
        self.join()

    def check(self) -> None:
        """What was acknowledged is stored, once."""
        query = "SELECT coalesce(sum(count), 0) FROM windows WHERE origin = ''"
        stored = int(self._site.rows(query)[0][0])
        assert self.acknowledged > 0
        assert self.acknowledged <= stored <= self.acknowledged + self.unanswered

    def __str__(self) -> str:
        return f"{self.acknowledged} samples acknowledged, {self.unanswered} not"


class Memory:
    """What manager and agent have in memory, in MiB, from time to time."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._seen: dict[str, list[float]] = {"manager": [], "agent": []}

    def look(self) -> None:
        for name, seen in self._seen.items():
            if self._site.lives(name):
                seen.append(self._site.resident_mib(name))

    def check(self) -> None:
        """It is bounded, and in a long run it does not grow."""
        for name, seen in self._seen.items():
            assert max(seen) < MOST_MIB, f"{name}: {seen}"
            if len(seen) >= _LONG_SAMPLES:
                halves = seen[: len(seen) // 2], seen[len(seen) // 2 :]
                assert max(halves[1]) < max(halves[0]) + MOST_GROWTH_MIB, f"{name}: {seen}"

    def __str__(self) -> str:
        return ", ".join(f"{name} {max(seen):.0f} MiB" for name, seen in self._seen.items() if seen)


def chosen(troubles: Sequence[Trouble[SomeSite]], chance: random.Random) -> Iterator[Trouble[SomeSite]]:
    """Troubles for ``MINUTES``, each of them once before any of them again, and once in any case."""
    end_s = time.monotonic() + 60 * MINUTES
    bag: list[Trouble[SomeSite]] = []
    count = 0
    while time.monotonic() < end_s or count < len(troubles):
        bag = bag or chance.sample(troubles, len(troubles))
        yield bag.pop()
        count += 1


def kill_manager(site: Site, _chance: random.Random) -> None:
    site.kill("manager")
    site.start("manager")


def kill_agent(site: Site, _chance: random.Random) -> None:
    site.kill("agent")
    site.start("agent")


def kill_database(site: Site, _chance: random.Random) -> None:
    site.crash_database()


def cut_off(site: Site, chance: random.Random) -> None:
    """Requests, or only answers, get lost; the agent may be killed meanwhile."""
    site.relay.trouble = chance.choice((DOWN, MUTE))
    time.sleep(chance.uniform(1, 4))
    if chance.random() < 0.5:
        kill_agent(site, chance)
    site.relay.trouble = ""


def ticked(site: Site, after: int = 0) -> None:
    """Wait until the manager knows of a tick of the agent that runs now: what ends sooner ends as it began."""

    def has_ticked(client: ManagerClient) -> bool:
        tick = client.get(f"/hosts/{HOST}")["tick"]
        return bool(tick) and tick["number"] > after and datetime.fromisoformat(tick["at"]) > site.started["agent"]

    site.until(has_ticked)


def end(site: Site) -> None:
    """End the agent as systemd does: all is told, and put back."""
    ticked(site)
    deadline_s = time.monotonic() + 60
    while site.waiting() and time.monotonic() < deadline_s:
        time.sleep(0.2)
    status = site.stop("agent")
    assert status == 0, f"{status}\n{site.log[-3000:]}"
    assert (site.journalled(), site.waiting()) == (0, 0), "everything is put back and told"


def lost(site: Site) -> list[str]:
    """What the manager said it had, and the database has not."""
    known = {name for [name] in site.rows("SELECT record_id FROM events")}.union(site.decisions())
    ticks = set(site.ticks())
    missing = []
    for report in site.relay.acknowledged:
        missing += [one["id"] for one in (*report["decisions"], *report["events"]) if one["id"] not in known]
        missing += [one["at"] for one in ticks_in(report) if datetime.fromisoformat(one["at"]) not in ticks]
    return missing


def twice(site: Site) -> list[str]:
    """What is there more than once."""
    found: list[str] = []
    events = [name for [name] in site.rows("SELECT record_id FROM events")]
    for kind, names in (("decisions", site.decisions()), ("events", events), ("ticks", site.ticks())):
        found += [f"{kind} {name}" for name, count in collections.Counter(names).items() if count > 1]
    return found


def finds_what_is_lost(site: Site) -> None:
    """That a test could have failed."""
    event = next(one["id"] for report in site.relay.acknowledged for one in report["events"])
    with psycopg.connect(site.url) as connection:
        connection.execute("DELETE FROM events WHERE record_id = %s", (event,))
    assert lost(site) == [event]
