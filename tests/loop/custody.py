"""Every setting of the host is its original, or what a plan wanted, or somebody else's, and the journal knows which."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from manager.loop.tick import TickResult
from manager.model.decision import Owned
from manager.model.knob_spec import KnobValue
from manager.model.knob_text import knob_text
from manager.model.knobs import BATCH_GROUPS, HOST_UUID, IDLE_CLASSES, PARTLY, SCHEDULINGS, Knob, KnobKey
from manager.model.records import OutcomeKind
from manager.model.warp import EJECTED
from tests.loop.stage import Stage, is_pin
from tests.loop.walk import ERRNOS, Kind, Op, Walk

_UNDONE = frozenset({OutcomeKind.FAILED, OutcomeKind.VANISHED, OutcomeKind.IGNORED})


@dataclass(frozen=True, slots=True)
class Moment:
    """The host's settings after a tick, and the journal's originals and intentions."""

    settings: Mapping[KnobKey, KnobValue]
    ledger: Mapping[KnobKey, tuple[KnobValue, KnobValue, bool]]

    @classmethod
    def of(cls, walk: Walk) -> Moment:
        ledger = {key: (one.original, one.intended, one.external) for key, one in ledger_of(walk).items()}
        return cls(walk.stage.host.settings(), ledger)


def name(key: KnobKey, value: KnobValue | None) -> str:
    """A setting in the words of a message."""
    text = "nothing" if value is None else knob_text(value) or "no pCPU"
    return f"{key.knob} {key.index} of {key.uuid} is {text}"


def ledger_of(walk: Walk) -> dict[KnobKey, Owned]:
    return {key: entry.owned for key, entry in walk.journal.entries.items()}


def violations(walk: Walk) -> list[str]:
    """What nobody accounts for on the host, whenever the agent may have died."""
    stage, ledger = walk.stage, ledger_of(walk)
    stage.follow_uplinks()
    settings = stage.host.settings()
    default = stage.host.scale.default if stage.host.scale else None  # what whoever leaves the idle class gets anyway
    found: list[str] = []
    for key, value in settings.items():
        original = stage.originals.get(key)
        if key in stage.others:
            if value != stage.others[key]:
                found.append(f"{name(key, value)}, which overwrites somebody else's")
            continue
        idle = IDLE_CLASSES.get(key.knob)
        if original is None and idle and stage.originals[KnobKey(key.uuid, idle)] == 1:
            continue  # it had none in the operator's idle class, and is to lose it again with that
        if stage.is_original(key, value):
            continue
        if not _is_wanted(walk, ledger, key, value):
            found.append(f"{name(key, value)}: neither its original nor wanted by any plan")
        owned = ledger.get(key) or _heritage(walk, ledger, key, value)
        if owned is None:
            found.append(f"{name(key, value)}, and the journal knows no original")
        elif not stage.is_original(key, owned.original):
            found.append(f"{name(key, value)}, and the journal's original is {knob_text(owned.original)}")
    for key, value in settings.items():
        if key.knob in IDLE_CLASSES.values() and value == 1 and stage.originals[key] == 0:
            weight = KnobKey(key.uuid, next(knob for knob, idle in IDLE_CLASSES.items() if idle is key.knob))
            owned = ledger.get(weight)
            original = stage.originals[weight]
            if original != default and (owned is None or owned.original != original):
                found.append(f"{name(key, value)}, and the journal does not know the weight before")
    return found


def _is_wanted(walk: Walk, ledger: Mapping[KnobKey, Owned], key: KnobKey, value: KnobValue) -> bool:
    """Whether a plan wanted that, or the kernel made it of what a plan wanted."""
    wanted = walk.wanted.get(key, set()) | ({EJECTED} if key.knob is Knob.SCHEDULER else set())
    wanted |= {PARTLY} if key.knob is Knob.BATCH_GROUP else set()
    if key.knob in IDLE_CLASSES:  # leaving the idle class, before the weight is written
        return value in wanted or (value == walk.host.capabilities.weights.default and key in ledger)  # type: ignore[union-attr]
    if value == walk.stage.inherited.get(key) or _heritage(walk, ledger, key, value):
        return True
    if any(walk.stage.alike(value, one) for one in wanted):
        return True
    if not isinstance(value, frozenset):
        return False
    written = {*wanted, walk.stage.originals.get(key)}
    part = any(kind is Kind.KEPT for _, kind in walk.director.hits)
    if part and any(isinstance(one, frozenset) and value < one for one in written):
        return True
    return bool(walk.stage.lost) and any(  # all it may use went offline: the kernel lets it run anywhere
        isinstance(one, frozenset) and one <= walk.stage.lost for one in wanted
    )


def _heritage(walk: Walk, ledger: Mapping[KnobKey, Owned], key: KnobKey, value: KnobValue) -> Owned | None:
    """The emulator's entry, where a thread that was started since the last tick has its pin from that."""
    emulator_key = KnobKey(key.uuid, Knob.EMULATOR_PIN)
    emulator = ledger.get(emulator_key)
    if emulator is None or not is_pin(key):
        return None
    now = walk.stage.host.held(emulator_key)
    return emulator if value in {emulator.intended, emulator.previous, now} else None


def misconduct(walk: Walk, result: TickResult) -> list[str]:
    """What a tick said or left undone that it must not have."""
    stage, director = walk.stage, walk.director
    found = [
        f"{one.key.knob} {one.key.index} of {one.key.uuid} is {one.after}: claimed to be external, which it is not"
        for one in result.outcomes
        if one.kind is OutcomeKind.EXTERNAL and one.key not in stage.meddled
    ]
    undone = {one.key for one in result.outcomes if one.kind in _UNDONE}
    for step, kind in director.hits_now:
        if kind is Kind.FULL and not any(problem.kind == "journal" for problem in result.problems):
            found.append(f"{kind} is not told")
        if step.op is Op.WRITE and kind in ERRNOS and step.key not in undone:
            found.append(f"{kind} of {step.key} is not told")
        if step.op is Op.READ and kind is Kind.EIO and not any(one.kind == "read" for one in result.problems):
            found.append(f"{kind} is not told")
    if not any(step.op is Op.COMMIT for step, _ in director.hits_now):
        steps = [step for step, _ in director.hits_now]
        unlimited = any(
            one.op in {Op.READ, Op.SCHEDULING} or (one.key and one.key.knob in SCHEDULINGS) for one in steps
        )
        found += violated(walk, {step.uuid for step in steps}, SCHEDULINGS if unlimited else ())
    return found


def violated(walk: Walk, but: Collection[str] = (), without: Collection[Knob] = ()) -> list[str]:
    """Goals of the last plan that the host does not have, but for those of some domains, or of the host itself.

    And ``without`` knobs that depend on each other, of whatever domain: what a VM that cannot be read has of a limit
    no other can be given.
    """
    stage, settings = walk.stage, walk.stage.host.settings()
    return [
        f"{name(goal.key, settings.get(goal.key))}, but {knob_text(goal.value)} was wanted ({goal.reason})"
        for goal in walk.loop.goals
        if goal.key.uuid not in but
        and goal.key.knob not in without
        and (goal.key.uuid in stage.host.vms or goal.key.uuid == HOST_UUID)
        and goal.key not in stage.meddled
        and not (goal.key.knob in IDLE_CLASSES and goal.key not in settings)
        and not stage.alike(settings.get(goal.key), goal.value)
    ]


def strayed(walk: Walk, calm: Moment, *, free: bool) -> list[str]:
    """Where the host is not as it would be had nothing gone wrong; ``free``: pins may well be others."""
    now = walk.stage.host.settings()
    return [
        f"{name(key, now.get(key))}, but {name(key, calm.settings.get(key))} had nothing gone wrong"
        for key in sorted(now.keys() | calm.settings.keys())
        if key not in walk.stage.meddled
        and not (free and (is_pin(key) or key.knob is Knob.IRQ_AFFINITY))
        and not walk.stage.alike(now.get(key), calm.settings.get(key))
    ]


def left_behind(stage: Stage, walk: Walk) -> list[str]:
    """What a release did not undo."""
    stage.follow_uplinks()
    settings = stage.host.settings()
    expected = {key: stage.others.get(key, original) for key, original in stage.originals.items()} | stage.others
    expected = {key: value for key, value in expected.items() if key.knob not in BATCH_GROUPS}  # of a group of ours
    found = [
        f"{name(key, settings.get(key))} after the release, {knob_text(value)} before we came"
        for key, value in sorted(expected.items())
        if not (
            stage.alike(settings.get(key), value) if key in stage.others else stage.is_original(key, settings.get(key))
        )
    ]
    found += [f"{name(key, value)} after the release" for key, value in settings.items() if key not in expected]
    return found + [f"the journal still has {key}" for key in walk.journal.entries]
