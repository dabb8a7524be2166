"""The lines of the agent's metrics page that stand for VMs: made when the page is read, of the last tick."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.loop.agent_metrics import AgentMetrics
from manager.model.histogram import Histogram
from manager.model.host import Quota
from manager.model.registration import Application, Sla
from manager.model.window import Window
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig


def page(rig: Rig) -> dict[tuple[str, str], float]:
    """What a tick leaves of VMs, by metric and VM; a pin by its vCPU, too."""
    metrics = AgentMetrics()
    assert not any(family.samples for family in metrics.registry.collect() if family.name.startswith("equipoise_vm_"))
    metrics.observe(rig.tick(), 0, True)
    return {
        (one.name.removeprefix("equipoise_vm_"), " ".join(one.labels.values())): one.value
        for family in metrics.registry.collect()
        for one in family.samples
        if one.name.startswith("equipoise_vm_")
    }


def test_settings_in_force(rig: Rig) -> None:
    rig.host.boot("web", 2)
    rig.host.boot("hog")
    rig.host.boot("stranger")
    rig.register("web")
    rig.register("hog", "batch", max_pcpus=1.5)
    seen = page(rig)
    assert seen["cpu_weight", "web"] == 10_000
    assert seen["cpu_weight", "hog"] == 2
    assert {seen["vcpu_pinned_pcpu", "web 0"], seen["vcpu_pinned_pcpu", "web 1"]} == {0, 1}
    assert ("vcpu_pinned_pcpu", "hog 0") not in seen, "it floats"
    assert (seen["idle_class", "web"], seen["idle_class", "hog"]) == (0, 0)
    assert seen["quota_us", "hog"] == 150_000
    assert ("quota_us", "web") not in seen, "it has no limit"
    assert not any("stranger" in name for _, name in seen)


def test_a_vm_in_the_idle_class_has_no_weight(rig: Rig) -> None:
    rig.host.boot("hog")
    rig.register("hog", "batch")
    vm = rig.host.vms[domain_uuid("hog")]
    vm.idle, vm.weight = True, None
    vm.quota = Quota(20_000, 100_000)
    rig.control(policy="unknown")  # leaves it as it is
    seen = page(rig)
    assert seen["idle_class", "hog"] == 1
    assert ("cpu_weight", "hog") not in seen
    assert seen["quota_us", "hog"] == 20_000


def test_a_vm_that_ended_loses_its_lines(rig: Rig) -> None:
    metrics = AgentMetrics()
    rig.host.boot("web")
    rig.register("web")
    metrics.observe(rig.tick(), 0, True)
    assert metrics.registry.get_sample_value("equipoise_vm_cpu_weight", {"vm": "web"}) == 10_000
    rig.host.stop("web")
    metrics.observe(rig.tick(), 0, True)
    assert metrics.registry.get_sample_value("equipoise_vm_cpu_weight", {"vm": "web"}) is None


@pytest.mark.parametrize(("sla", "percentile"), [(Sla(50.0, 99.0), "99"), (Sla(50.0, 90.0), "90"), (None, "95")])
def test_the_response_time_is_that_of_the_slas_percentile(rig: Rig, sla: Sla | None, percentile: str) -> None:
    shop = Application("shop", (), sla)
    rig.assignment = replace(rig.assignment, applications=(shop,))
    times = Histogram.of(1000.0 * ms for ms in range(1, 101))
    metrics = AgentMetrics()
    metrics.observe(rig.loop.tick(rig.assignment, {"shop": [Window("shop", 999.0, 1000.0, times)]}), 0, True)
    labels = {"application": "shop", "percentile": percentile}
    found = metrics.registry.get_sample_value("equipoise_application_response_time_seconds", labels)
    assert found == pytest.approx(float(percentile) / 1000, rel=0.02)


def test_what_an_alert_is_to_see_the_first_time_is_counted_from_nothing(rig: Rig) -> None:
    """Prometheus sees no increase in a series that begins with 1, and an external change counts once."""
    metrics = AgentMetrics()
    rig.host.boot("web")
    rig.register("web")
    metrics.observe(rig.tick(), 0, True)

    def written(result: str) -> float | None:
        labels = {"knob": "weight", "result": result}
        return metrics.registry.get_sample_value("equipoise_agent_writes_total", labels)

    assert [written(result) for result in ("applied", "external", "failed", "ignored")] == [1, 0, 0, 0]


def test_what_was_changed_while_the_agent_was_down_is_an_increase_from_nothing(rig: Rig) -> None:
    rig.host.boot("web")
    rig.register("web")
    rig.tick()
    rig.crash()
    rig.host.vms[domain_uuid("web")].weight = 77
    metrics, labels = AgentMetrics(), {"knob": "weight", "result": "external"}
    assert metrics.registry.get_sample_value("equipoise_agent_writes_total", labels) == 0
    metrics.observe(rig.tick(), 0, True)
    assert metrics.registry.get_sample_value("equipoise_agent_writes_total", labels) == 1
