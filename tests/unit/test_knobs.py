"""Every knob of the table is known wherever one may occur: adding a row is enough."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from manager.control.diff import HostValues, diff
from manager.control.story import StoryChange, sentence
from manager.host.doctor.checks import CHECKS
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.loop.journal import Entry, Journal
from manager.model.decision import Action, Goal, Owned, Plan
from manager.model.host import VmInstance
from manager.model.knob_spec import Control, Cpus, Family, KnobValue, Number, Scope
from manager.model.knob_text import knob_name, knob_text, knob_value, settings_shown
from manager.model.knobs import HOST_UUID, KNOBS, Knob, KnobKey, of_family
from manager.model.limits import EVERYTHING, AgentLimits
from manager.model.records import OutcomeKind
from manager.model.registration import Mode
from manager.protocol.report import KnobStatus
from webui.words import FILTERS

JOURNALLED = sorted(set(Knob) - of_family(Family.CACHE))
ONLINE = frozenset(range(8))
PAGE = (Path(__file__).parents[2] / "docs/reference/knobs.md").read_text()
every_knob = pytest.mark.parametrize("knob", Knob)
every_journalled_knob = pytest.mark.parametrize("knob", JOURNALLED)


def key_of(knob: Knob) -> KnobKey:
    spec = knob.spec
    uuid = HOST_UUID if spec.scope in {Scope.HOST, Scope.INTERRUPT, Scope.PCPU} else "u1"
    return KnobKey(uuid, knob, 3 if spec.scope.numbered else 0)


def values_of(knob: Knob) -> tuple[KnobValue, KnobValue]:
    """Two that differ and may be written."""
    value = knob.spec.value
    if isinstance(value, Number):
        least = 1 if value.least is None else max(value.least, 0)
        return least, least + 1
    return ONLINE, frozenset({1})


@every_knob
def test_its_row_is_whole(knob: Knob) -> None:
    spec = KNOBS[knob]
    assert all((spec.label, spec.description.endswith("."), spec.interface, spec.document, spec.value.shape))
    assert not spec.probe or spec.probe in {check.id for check in CHECKS}
    assert sum(knob_name(other, 0) == knob_name(knob, 0) for other in Knob) == 1


@every_knob
def test_reports_decisions_and_pages_have_it(knob: Knob) -> None:
    status = {"knob": knob, "index": 3, "value": "1", "original": "0", "owned": True, "external": False}
    assert KnobStatus.model_validate(status).knob == knob
    name = FILTERS["setting"](status)
    assert name == knob_name(knob, 3)
    assert name in sentence("kvm1", "web", [StoryChange("", knob, 3, "0", "1", "why", OutcomeKind.APPLIED)], None)
    assert settings_shown([status], {knob})[0].startswith(f"{name}: ")
    assert settings_shown([status], set(Knob) - {knob}) == []
    assert f"| **{knob.spec.label}**: {knob.spec.description} | `{knob}` |" in PAGE
    assert f"\n| `{knob}` | {knob.spec.interface} |" in PAGE


@every_journalled_knob
def test_values_are_written_as_text_checked_and_allowed(knob: Knob) -> None:
    value = knob.spec.value
    for number in values_of(knob):
        assert knob_value(knob, knob_text(number)) == number
        assert not value.objection(number)
        assert not EVERYTHING.refusal(key_of(knob), number)
        control = knob.spec.control_for(number)
        denied = AgentLimits(allowed=frozenset(Control) - {control})
        assert str(control) in denied.refusal(key_of(knob), number)
    assert value.objection(frozenset({1}) if isinstance(value, Number) else 1)
    assert isinstance(value, Cpus) or value.least is None or value.objection(value.least - 1)


@every_journalled_knob
def test_the_journal_keeps_it_over_a_restart(knob: Knob, tmp_path: Path) -> None:
    key, (before, after) = key_of(knob), values_of(knob)
    entry = Entry(VmInstance(key.uuid, "web", 7, 8), "web", Owned(before, before, after))
    with closing(Journal(tmp_path / "journal.db", "boot")) as journal:
        journal.update({key: entry})
    with closing(Journal(tmp_path / "journal.db", "boot")) as journal:
        assert journal.entries == {key: entry}


@every_journalled_knob
def test_the_difference_writes_it_restores_it_and_leaves_external_changes_alone(knob: Knob) -> None:
    key, (before, after) = key_of(knob), values_of(knob)
    plan = Plan((Goal(key, after, "why", Mode.ENFORCE),))
    found = {value: HostValues({key: value}, ONLINE) for value in (before, after)}
    owned = {key: Owned(before, before, after, settled=True)}
    assert [(one.action, one.after) for one in diff(plan, found[before], {})] == [(Action.WRITE, after)]
    assert diff(plan, found[after], owned) == ()
    assert [(one.action, one.after) for one in diff(Plan(), found[after], owned)] == [(Action.RESTORE, before)]
    if knob.spec.resets or isinstance(before, frozenset):
        return  # what the kernel makes of these may pass for ours
    external = next(number for number in range(10) if number not in {before, after} | knob.spec.resets)
    [given_up] = diff(plan, HostValues({key: external}, ONLINE), owned)
    assert given_up.action is Action.LEAVE


@every_knob
def test_the_host_has_a_file_for_it(knob: Knob) -> None:
    """Each family is registered with the real host; a knob that is read apart is found by its family."""
    host = KernelHost(HostPaths(Path("/")), None)
    registered = {family for family in Family if not family.apart} | set(host.files)
    assert knob.spec.family in registered
    assert (knob.spec.family in host.files) == knob.spec.family.apart
