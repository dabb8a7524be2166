"""Value types: knobs as text, weights, windows, registrations, and what counts as ours."""

from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model import decision, histogram, host, records, registration, window
from manager.model.cpus import MAX_CPU
from manager.model.histogram import Histogram
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, VcpuState, VmInstance, VmState, WeightScale
from manager.model.knob_text import knob_text, knob_value
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Application, HostSpec, Mode, Sla, Tier, VmClass, VmSpec
from manager.model.window import Window
from tests.unit.build import view

SCALES = [CPU_SHARES_V1, CPU_WEIGHT_V2]
cpu_sets = st.frozensets(st.integers(0, MAX_CPU), max_size=20)


@given(st.integers(0, 300_000))
def test_a_weight_survives_as_text(weight: int) -> None:
    assert knob_value(Knob.WEIGHT, knob_text(weight)) == weight


@given(cpu_sets, st.sampled_from([Knob.VCPU_PIN, Knob.EMULATOR_PIN]))
def test_a_pin_survives_as_text(cpus: frozenset[int], knob: Knob) -> None:
    assert knob_value(knob, knob_text(cpus)) == cpus


@pytest.mark.parametrize(
    ("knob", "text"), [(Knob.WEIGHT, "0-3,5"), (Knob.WEIGHT, ""), (Knob.VCPU_PIN, "all"), (Knob.EMULATOR_PIN, "3-1")]
)
def test_a_knob_of_another_shape_is_refused(knob: Knob, text: str) -> None:
    with pytest.raises(ValueError):
        knob_value(knob, text)


@pytest.mark.parametrize("scale", SCALES)
def test_weights_are_clamped_to_the_range(scale: WeightScale) -> None:
    assert scale.clamp(scale.minimum - 1) == scale.clamp(-5) == scale.minimum
    assert scale.clamp(scale.maximum + 1) == scale.clamp(10**9) == scale.maximum
    for weight in (scale.minimum, scale.default, scale.maximum):
        assert scale.clamp(weight) == weight


@pytest.mark.parametrize("scale", SCALES)
def test_customary_weights_are_legal_and_ordered(scale: WeightScale) -> None:
    assert scale.minimum <= scale.batch < scale.default <= scale.critical <= scale.maximum
    assert scale.batch < scale.critical_min <= scale.critical


def test_weights_are_those_of_the_design_and_the_kernel() -> None:
    v1, v2 = CPU_SHARES_V1, CPU_WEIGHT_V2
    assert (v1.minimum, v1.maximum, v1.default, v1.critical, v1.critical_min, v1.batch) == (
        2,
        262_144,
        1024,
        10_000,
        1024,
        2,
    )
    assert (v2.minimum, v2.maximum, v2.default, v2.critical, v2.critical_min, v2.batch) == (
        1,
        10_000,
        100,
        10_000,
        100,
        1,
    )


def test_the_knobs_of_a_vm() -> None:
    instance = VmInstance("u", "web", 1, 2)
    vcpus = (VcpuState(0, frozenset({0})), VcpuState(3, frozenset({1})))
    state = VmState(instance, 0, 1024, vcpus, frozenset({0, 1}))
    pins = {
        KnobKey("u", Knob.VCPU_PIN, 0): frozenset({0}),
        KnobKey("u", Knob.VCPU_PIN, 3): frozenset({1}),
        KnobKey("u", Knob.EMULATOR_PIN): frozenset({0, 1}),
    }
    assert state.knobs() == pins | {KnobKey("u", Knob.WEIGHT): 1024}
    assert state._replace(weight=None).knobs() == pins


def test_knob_keys_have_an_order() -> None:
    keys = [KnobKey(uuid, knob, index) for uuid in "ba" for knob in Knob for index in (1, 0)]
    ordered = sorted(keys)
    assert [key.uuid for key in ordered] == ["a"] * 2 * len(Knob) + ["b"] * 2 * len(Knob)
    assert [key.index for key in ordered[:2]] == [0, 1]


@pytest.mark.parametrize(
    ("start_s", "end_s", "rate_rps"), [(0.0, 5.0, 0.8), (5.0, 5.0, 0.0), (6.0, 5.0, 0.0), (0.0, 0.5, 8.0)]
)
def test_the_rate_of_a_window(start_s: float, end_s: float, rate_rps: float) -> None:
    assert Window("shop", start_s, end_s, Histogram({500: 3, 510: 1}), 4).rate_rps == pytest.approx(rate_rps)


def test_percentiles_of_a_window_are_milliseconds() -> None:
    times_us = [1000.0] * 94 + [50_000.0] * 6
    shown = Window("shop", 0.0, 1.0, Histogram.of(times_us))
    assert shown.percentile_ms(50) == pytest.approx(1.0, rel=0.01)
    assert shown.percentile_ms(95) == pytest.approx(50.0, rel=0.01)
    assert Window("shop", 0.0, 1.0, Histogram()).percentile_ms(95) is None


def test_the_age_of_a_window_is_never_negative() -> None:
    shown = Window("shop", 0.0, 10.0, Histogram())
    assert (shown.age_s(12.5), shown.age_s(10.0), shown.age_s(9.0)) == (2.5, 0.0, 0.0)


def test_the_vms_of_an_application_are_those_of_all_tiers() -> None:
    application = Application("shop", (Tier("web", ("w1", "w2")), Tier("cache", ("c1", "w1")), Tier("db")))
    assert application.vms == {"w1", "w2", "c1"}
    assert Application("empty").vms == frozenset()


def test_defaults_of_registrations() -> None:
    assert HostSpec("h") == HostSpec("h", Mode.ENFORCE, "priority", True)
    assert Sla(5.0) == Sla(5.0, 95.0, None)
    assert VmSpec("v", VmClass.BATCH).pin is None
    assert Application("a").mode is None


@pytest.mark.parametrize(("vm_class", "critical"), [(VmClass.CRITICAL, True), (VmClass.BATCH, False)])
def test_a_view_knows_its_name_and_class(vm_class: VmClass, critical: bool) -> None:
    shown = view("web", vm_class)
    assert (shown.name, shown.critical) == ("web", critical)


@pytest.mark.parametrize("module", [decision, histogram, host, records, registration, window])
def test_all_value_types_are_frozen_and_slotted(module: object) -> None:
    types = [one for one in vars(module).values() if isinstance(one, type) and dataclasses.is_dataclass(one)]
    assert types
    for one in types:
        assert one.__dataclass_params__.frozen, one
        assert "__slots__" in vars(one), one


@pytest.mark.parametrize("number", [math.pi, 5.0])
def test_equal_values_are_equal_and_can_be_keys(number: float) -> None:
    assert {Sla(number): 1}[Sla(number)] == 1
