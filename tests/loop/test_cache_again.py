"""What an agent knows of the cache that begins where another was killed, and a command that begins without any."""

from __future__ import annotations

from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop
from manager.model.cache import DEFAULT, Slot
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Mode, Sla
from manager.model.window import Window
from tests.loop.test_cache import BATCH_GROUP, SHOP, CacheRig, masks, rig

__all__ = ["rig"]


def miss(rig: CacheRig, ticks: int) -> list[str]:
    """The shop is three times slower than promised; why its group changed."""
    reasons = []
    for _ in range(ticks):
        rig.now_s += 5.0
        window = Window("shop", rig.now_s - 5.0, rig.now_s, Histogram.of([300_000.0] * 50), 50.0)
        result = rig.loop.tick(rig.assignment, {"shop": (window,)})
        reasons += [one.reason for one in result.cache.outcomes if one.group == SHOP]
    return reasons


def test_auto_goes_on_after_a_crash(rig: CacheRig) -> None:
    """Killed while more ways are tried: the next agent leaves them, and judges them by what was measured before."""
    rig.serve("shop", "auto", "web", sla=Sla(100.0))
    rig.tick()
    begun = rig.host.resctrl.groups[SHOP].values[Slot("L3", 0)].bit_count()
    assert any(any(", target" in reason for reason in miss(rig, 1)) for _ in range(30))
    known = rig.journal.cache_memory
    rig.crash()
    rig.tick()
    assert rig.host.resctrl.groups[SHOP].values[Slot("L3", 0)].bit_count() > begun
    assert rig.journal.cache_memory == known
    assert any(f"300 ms with {begun} ways" in reason for reason in miss(rig, 15))
    rig.loop.release("VM released", "hog")
    assert rig.journal.cache_memory
    rig.control(mode=Mode.RELEASED)
    rig.tick()
    assert rig.journal.cache_memory == ""


def test_the_ways_of_threads_that_nobody_knows_are_not_taken_before_they_have_others(rig: CacheRig) -> None:
    """A thread of the shop's old VM stays in its group, of which the bar is to have ways."""
    rig.host.boot("beer", 2)
    rig.register("beer", "critical")
    rig.serve("bar", "2 ways", "beer")
    rig.serve("shop", "6 ways", "web")
    rig.tick()
    stray = rig.host.started[rig.host.vm("web").instance][0]
    rig.host.resctrl.start(4711, by=stray)
    rig.host.stop("web")
    rig.host.boot("web", 2)
    rig.serve("bar", "6 ways", "beer")
    rig.serve("shop", "2 ways", "web")
    before = masks(rig)

    def look(_group: object, _leaf: str, _text: str) -> None:
        """The shop's ways are nobody's else who has threads."""
        used = {group.control.name for group in rig.host.resctrl.tasks.values()} - {SHOP}
        ways = {name: one.values[Slot("L3", 0)] for name, one in rig.host.resctrl.groups.items()}
        assert not [name for name in used if ways[name] & ways[SHOP]]

    rig.host.resctrl.before_command = look
    rig.tick()
    look(None, "", "")
    assert rig.host.resctrl.group_of(4711) == SHOP
    assert before[SHOP] != masks(rig)[SHOP]


def test_one_vm_is_released_without_an_agent(rig: CacheRig) -> None:
    """By the journal alone, which knows a VM by a knob of it: the others and all groups stay."""
    rig.control(policy="priority")
    rig.tick()
    before = masks(rig)
    rig.journal.close()
    rig.host.port = None
    rig.host.listed = {}  # libvirt is not asked
    journal = Journal(rig.folder / "journal.db", rig.host.boot_id)
    loop = ControlLoop(rig.host, journal, {}, LoopSettings("h1", 1.0, 1.0, 1), rig.clock, limits=EVERYTHING)
    result = loop.release("VM released", "web")
    assert not result.problems
    moved = [(one.key.knob, one.before, one.after, one.kind) for one in result.cache.outcomes]
    assert moved == [(Knob.CACHE_GROUP, SHOP, DEFAULT, OutcomeKind.RESTORED)]
    assert (rig.host.group_of("web"), rig.host.group_of("hog")) == (DEFAULT, BATCH_GROUP)
    assert masks(rig) == before
    loop.release("host released")
    assert masks(rig) == {DEFAULT: "fff"}
    assert journal.cache is None
    journal.close()
