"""Processes that are killed and cut off at random moments, under load: nothing acknowledged is lost or there twice.

    EQUIPOISE_CHAOS_MINUTES=20 EQUIPOISE_CHAOS_SEED=7 pytest tests/chaos

or `tests/run chaos --minutes 20`: half of the time for this, on a simulated host, and half for ``test_vms``. The seed
of a run is printed; the same one chooses the same troubles.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.chaos.checks import (
    MINUTES,
    SEED,
    Flood,
    Memory,
    Trouble,
    chosen,
    cut_off,
    end,
    finds_what_is_lost,
    kill_agent,
    kill_database,
    kill_manager,
    lost,
    ticked,
    twice,
)
from tests.chaos.relay import DOWN
from tests.chaos.site import INTERVAL_S, Site, running_site


def lose_link(site: Site, chance: random.Random) -> None:
    if site.network:
        site.network.link(up=False)
        time.sleep(chance.uniform(1, 4))
        site.network.link(up=True)


def lose_names(site: Site, chance: random.Random) -> None:
    if site.network:
        site.network.names(known=False)
        site.relay.trouble = DOWN  # or the connection that there is would go on
        time.sleep(chance.uniform(1, 4))
        site.network.names(known=True)
        site.relay.trouble = ""


TROUBLES: tuple[Trouble[Site], ...] = (kill_manager, kill_agent, kill_database, cut_off, lose_link, lose_names)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("chaos")) as made:
        yield made


def test_nothing_acknowledged_is_lost(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(SEED)
    with capsys.disabled():
        print(f"\nchaos: seed {SEED}, {MINUTES:g} minutes, {'with' if site.network else 'WITHOUT'} a network namespace")
    site.start("agent")
    ticked(site)
    [application, *_] = site.until(lambda client: client.get("/applications")["items"])
    flood, memory = Flood(site, application["name"]), Memory(site)
    flood.start()
    done: list[str] = []
    for trouble in chosen(TROUBLES, chance):
        done.append(trouble.__name__)
        print(f"{time.monotonic():.1f} {done[-1]}")
        time.sleep(chance.uniform(0.2, 3))
        memory.look()
        trouble(site, chance)
    flood.end()
    told = f"seed {SEED}: {', '.join(done)}\n"
    ticked(site)
    memory.look()
    end(site)
    assert not lost(site), told
    assert not twice(site), told
    flood.check()
    memory.check()
    finds_what_is_lost(site)
    with capsys.disabled():
        print(f"chaos: {len(done)} troubles, {len(site.relay.acknowledged)} reports, {flood}, at most {memory}")


def test_the_agent_controlled_on_while_it_was_cut_off(site: Site) -> None:
    """After all that: what it does without its manager is told when that is back."""
    site.start("agent")
    ticked(site, 3)
    site.relay.trouble = DOWN
    begin = site.rows("SELECT now()")[0][0]
    time.sleep(8 * INTERVAL_S)
    end = site.rows("SELECT now()")[0][0]
    site.relay.trouble = ""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and sum(begin < at < end for at in site.ticks()) < 4:
        time.sleep(0.2)
    assert sum(begin < at < end for at in site.ticks()) >= 4
    assert site.stop("agent") == 0
    assert site.stop("manager") == 0
