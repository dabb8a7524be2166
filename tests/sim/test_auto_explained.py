"""What `auto` says in closed loop, beside what the simulated host was given."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from manager.loop.tick import TickResult
from manager.model.knobs import Knob
from manager.model.registration import Mode
from manager.sim.compare import installed
from manager.sim.generate import random_scenario
from manager.sim.simulation import Simulation

HAS_WEIGHT = re.compile(r"\b(?:Application )?(\S+) has weight ([\d,]+)")
LEAVES = re.compile(r"^Batch VMs leave (\d+) pCPU|\. Batch VMs leave (\d+) pCPU")


def run(mode: Mode = Mode.ENFORCE) -> Iterator[tuple[TickResult, Mapping[str, str]]]:
    """Two applications, of which one floods the host for a while: what each tick did and said."""
    simulation = Simulation(random_scenario(1), installed(), "auto")
    simulation.assignment = replace(simulation.assignment, host=replace(simulation.assignment.host, mode=mode))
    for _ in range(Simulation.count_intervals(simulation.scenario)):
        result = simulation.step()
        assert result is not None
        yield result, {each.application: each.text for each in result.explanations}


def weights(result: TickResult) -> dict[str, set[int]]:
    """Those of the critical VMs as the tick left them, by application."""
    applications = {view.name: view.application for view in result.snapshot.vms if view.critical}
    found: dict[str, set[int]] = {}
    for domain, spec in result.specs.items():
        held = [value for key, value in result.knobs(domain).items() if key.knob is Knob.WEIGHT]
        if spec.name in applications:
            found.setdefault(applications[spec.name] or "", set()).update(held)  # type: ignore[arg-type]
    return found


def pcpus_left(result: TickResult) -> int:
    """The pCPUs that no batch VM may use, as the tick left it."""
    batch = {view.name for view in result.snapshot.vms if not view.critical}
    used: set[int] = set()
    for domain, spec in result.specs.items():
        if spec.name in batch:
            for key, value in result.knobs(domain).items():
                used |= value if key.knob is Knob.VCPU_PIN and isinstance(value, frozenset) else set()
    return len(result.snapshot.capabilities.online_cpus - used)


def test_what_it_says_is_what_the_host_has() -> None:
    said: list[str] = []
    for result, texts in run():
        given, critical = weights(result), result.snapshot.capabilities.weights.critical
        for name, text in texts.items():
            told = {
                name if who == "It" else who: int(weight.replace(",", "")) for who, weight in HAS_WEIGHT.findall(text)
            }
            assert given == {app: {told.get(app, critical)} for app in given}, text
            [*left] = LEAVES.findall(text)
            assert pcpus_left(result) == (int("".join(left[0])) if left else 0), text
        said += texts.values()
    assert any("it is on trial, and taken back in" in text for text in said)
    assert any("its trial is passed" in text for text in said)
    assert any("Batch VMs leave 1 pCPU" in text for text in said)
    assert any(text.startswith("Nothing is needed") for text in said)


def test_the_example_of_the_documentation_was_said() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/policies.md").read_text()
    [quoted] = re.findall(r"> (Application app-2 .*?)\n\n", page, re.DOTALL)
    assert " ".join(quoted.replace("\n>", "").split()) in {texts["app-1"] for _, texts in run()}


def test_a_trial_is_followed_by_its_verdict() -> None:
    """Each ends as was announced: kept or taken back, and what is taken back is not tried before it was said to be."""
    courses: dict[str, list[str]] = {}
    for _, texts in run():
        for name, text in texts.items():
            courses.setdefault(name, []).append(text)
    for texts in courses.values():
        ends = [number for number, text in enumerate(texts) if "on trial" in text and "in 5 s unless" in text]
        assert ends
        assert all("trial is passed" in texts[end + 1] or "Taken back just now" in texts[end + 1] for end in ends)


def test_in_mode_observe_it_says_what_it_would_do_and_judges_nothing() -> None:
    said: list[str] = []
    for result, texts in run(Mode.OBSERVE):
        default = result.snapshot.capabilities.weights.default
        assert set().union(*weights(result).values()) == {default}
        assert pcpus_left(result) == 0
        said += texts.values()
    assert any(text.startswith("In mode enforce, ") and "would have weight" in text for text in said)
    assert any("In mode enforce, batch VMs would leave" in text for text in said)
    for words in (" has weight", "Batch VMs leave", "on trial", "Taken back"):
        assert not any(words in text for text in said), words
