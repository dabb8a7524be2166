"""Prometheus metrics of an agent. Names, labels and meanings are listed in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from manager.control.power_shares import vm_watts
from manager.control.sla import watched_percentile
from manager.loop.outbox import ItemKind
from manager.loop.resource_metrics import FAMILIES, resource_samples
from manager.loop.status import warps_in_force
from manager.loop.tick import TickResult
from manager.model.host import Discovery
from manager.model.job import JobState
from manager.model.knobs import UNLIMITED, Knob
from manager.model.records import OutcomeKind
from manager.model.scheduling import is_real_time
from manager.model.source import SourceState, SourceStatus
from manager.model.warp import Mechanism
from manager.model.window import SlaState

_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_BORROWED = "borrowed_ns"
_COUNTS = ("accepted", "malformed", "refused", "late", "errors")

_Sample = tuple[str, tuple[str, ...], float | None]
"""Name of a family without ``equipoise_``, values of its labels, and the value; None: there is none."""

_ALERTED = OutcomeKind.IGNORED, OutcomeKind.FAILED, OutcomeKind.EXTERNAL
"""What came of a change that alerts are about."""

_PER_TICK = {
    "vm_cpu_weight": ("CPU weight in force", ["vm"]),
    "vm_idle_class": ("1 in the kernel's idle class", ["vm"]),
    "vm_quota_us": ("CPU time its group may use per period; absent: no limit", ["vm"]),
    "vm_vcpu_pinned_pcpu": ("pCPU a vCPU is pinned to; absent: it floats", ["vm", "vcpu"]),
    "vm_cpu_share": ("CPU time used, share of the host", ["vm"]),
    "vm_run_delay_share": ("Seconds its vCPUs waited for a pCPU per second", ["vm"]),
    "batch_vm_got_pcpus": ("CPU seconds a second that a batch VM got, mean of a minute", ["vm"]),
    "batch_vm_would_pcpus": ("CPU seconds a second that it would use if it were alone, mean of a minute", ["vm"]),
    "batch_vm_slowdown": ("So many times slower than alone it runs; absent: it has no work", ["vm"]),
    "batch_vm_too_slow": ("1 while a batch VM with a max_slowdown is slower than that", ["vm"]),
    "job_done_cpu_seconds": ("CPU time of a job that is done", ["vm"]),
    "job_needed_pcpus": ("CPU seconds a second that a job needs until its deadline", ["vm"]),
    "job_state": ("1 for the state a job with a deadline is in", ["vm", "state"]),
    "vm_vcpu_use_max": ("CPU time that its busiest vCPU used, share of a pCPU", ["vm"]),
    "vm_vcpu_wait_max": ("Seconds per second that the vCPU waited which waited most", ["vm"]),
    "vm_real_time_vcpus": ("vCPU threads in SCHED_FIFO or SCHED_RR; absent: not read", ["vm"]),
    "agent_warp_mechanism": ("1 for the mechanism that gives warps", ["mechanism"]),
    "vm_warp_us": ("Warp in force; absent: none", ["vm"]),
    "sched_ext_events_total": ("What our scheduler did", ["event"]),
    "sched_ext_borrowed_seconds_total": ("CPU time used ahead of a share", []),
    "cache_ways": ("Ways of the cache that an application has alone", ["application", "domain"]),
    "cache_occupancy_bytes": ("Bytes of the last-level cache that a VM has", ["vm", "domain"]),
    "memory_bandwidth_bytes_per_second": (
        "Memory traffic of a VM by domain of the cache; scope local: with the domain's own memory",
        ["vm", "domain", "scope"],
    ),
    "host_energy_joules_total": (
        "Energy that RAPL counted of processors (package) and their memory (dram), since the agent started",
        ["domain"],
    ),
    "vm_power_watts": ("Its part of the host's power by CPU time, without the idle part", ["vm"]),
    "memory_traffic_bytes_per_second": ("Memory traffic of all that runs", ["domain"]),
    "memory_traffic_max_bytes_per_second": ("The most of it that lasted since boot", ["domain"]),
    "application_response_time_seconds": (
        "The SLA's percentile in the latest window, 95 without an SLA",
        ["application", "percentile"],
    ),
    "application_rate_rps": ("Requests per second of the latest window", ["application"]),
    "application_window_samples": ("Samples in the latest window", ["application"]),
    "application_window_age_seconds": ("Age of the latest window", ["application"]),
    "application_sla_state": ("1 for the state the SLA is in", ["application", "state"]),
    "application_cpu_share": ("CPU time its VMs here used, share of the host", ["application"]),
}
_PER_SOURCE = {
    "source_samples_total": ("Response times of a source, by what became of them", ["application", "source", "result"]),
    "source_state": ("1 for the state a source is in", ["application", "source", "state"]),
}


class AgentMetrics:
    """Counts what ticks do and shows the settings in force. One instance per agent, with a registry of its own."""

    def __init__(self) -> None:
        """Create all metrics."""
        self.registry = CollectorRegistry()
        self.tick_seconds = Histogram(
            "equipoise_agent_tick_seconds", "Duration of a tick", buckets=_BUCKETS_S, registry=self.registry
        )
        self.overruns = self._counter("tick_overruns", "Ticks left out because the one before still ran")
        self.errors = self._counter("errors", "Errors by kind", "kind")
        self.writes = self._counter("writes", "Changes of settings by knob and result", "knob", "result")
        for knob, alerted in product(Knob, _ALERTED):  # an alert sees no increase from nothing to 1
            self.writes.labels(knob, alerted)
        self.tick_age = self._gauge("tick_age_seconds", "Time since the last tick ended")
        self.stalled = self._gauge("loop_stalled", "1 while no tick has ended for three intervals")
        self.clock_jumps = self._counter("clock_jumps", "How often the wall clock was set, or the host suspended")
        self.manager_up = self._gauge("manager_up", "1 when the manager answered last time")
        self.second = self._gauge("second", "1 while the manager refuses this agent, as another serves the host")
        self.rejected = self._counter("items_refused", "Items that the manager did not accept", "kind")
        for kind in ItemKind:
            self.rejected.labels(kind)
        self.waiting = self._gauge("items_waiting", "Items that wait for the manager")
        self.aside = self._gauge("items_set_aside", "Items kept that the manager did not accept")
        self.clock_ahead = self._gauge("clock_ahead_seconds", "How far this clock is ahead of the manager's")
        self.libvirt_up = self._gauge("libvirt_up", "1 when libvirt is connected")
        self.discovery_age = self._gauge("discovery_age_seconds", "Since libvirt last listed all running domains")
        self.discovery_late = self._gauge("discovery_late", "1 when that is longer than discovery_limit_s")
        self.hanging = self._gauge("hanging_domains", "Domains about which libvirt does not answer")
        self.owned = self._gauge("owned_knobs", "Settings that differ from their original")
        self.host_cpu = self._gauge("host_cpu_share", "Busy share of the host's pCPUs")
        self.guard_episodes = self._counter("guard_episodes", "Episodes of the guard by how they ended", "end")
        self.guard_held = self._counter("guard_held_seconds", "Time for which the guard held batch VMs")
        self.guard_holding = self._gauge("guard_holding", "1 while the guard holds batch VMs")
        self._latest: TickResult | None = None
        self._sources: tuple[SourceStatus, ...] = ()
        self.registry.register(_Families(_PER_TICK, lambda: _of_tick(self._latest) if self._latest else ()))
        self.registry.register(
            _Families(FAMILIES, lambda: resource_samples(self._latest.snapshot.resources) if self._latest else ())
        )
        self.registry.register(_Families(_PER_SOURCE, lambda: _of_sources(self._sources)))

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"equipoise_agent_{name}", text, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"equipoise_agent_{name}", text, labels, registry=self.registry)

    def observe(self, result: TickResult, owned_knobs: int, connected: bool) -> None:
        """Take over what a tick saw and did; VMs and applications that are gone lose their lines."""
        self.tick_seconds.observe(result.duration_s)
        for problem in result.problems:
            self.errors.labels(problem.kind).inc()
        for outcome in (*result.outcomes, *result.cache.outcomes):
            self.writes.labels(outcome.key.knob, outcome.kind).inc()
        self.owned.set(owned_knobs)
        self.libvirt_up.set(connected)
        self.host_cpu.set(result.busy or 0.0)
        self._latest = result

    def observe_discovery(self, discovery: Discovery) -> None:
        """Take over how fresh the list of domains is."""
        self.discovery_age.set(discovery.age_s)
        self.discovery_late.set(discovery.late)
        self.hanging.set(len(discovery.hanging))

    def observe_sources(self, statuses: Sequence[SourceStatus]) -> None:
        """Take over the state of the sources of response times; sources that are gone lose their lines."""
        self._sources = tuple(statuses)


class _Families(Collector):
    """Families whose samples are made when the page is read: ticks are more frequent."""

    def __init__(
        self, families: Mapping[str, tuple[str, list[str]]], samples: Callable[[], Iterator[_Sample] | tuple[()]]
    ) -> None:
        self._families = families
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """All families, empty where there is no sample."""
        made: dict[str, GaugeMetricFamily | CounterMetricFamily] = {
            name: (CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily)(
                f"equipoise_{name}", text, labels=labels
            )
            for name, (text, labels) in self._families.items()
        }
        for name, labels, value in self._samples():
            if value is not None:
                made[name].add_metric(labels, value)
        yield from made.values()


def _of_tick(result: TickResult) -> Iterator[_Sample]:
    for vm in result.snapshot.vms:
        yield "vm_vcpu_use_max", (vm.name,), max(vm.vcpu_pcpus, default=None)
        yield "vm_vcpu_wait_max", (vm.name,), max(vm.vcpu_waits, default=None)
        yield "vm_cpu_share", (vm.name,), vm.cpu_share
        yield "vm_run_delay_share", (vm.name,), vm.run_delay_share
    yield from _of_energy(result)
    yield from _of_batch(result)
    yield from _of_knobs(result)
    for mechanism in Mechanism:
        yield "agent_warp_mechanism", (mechanism,), mechanism is result.warp.mechanism
    for domain, warp_us in warps_in_force(result).items():
        yield "vm_warp_us", (result.specs[domain].name,), warp_us
    for name, count in result.warp_counters.items():
        if name == _BORROWED:
            yield "sched_ext_borrowed_seconds_total", (), count / 1e9
        else:
            yield "sched_ext_events_total", (name,), count
    yield from _of_cache(result)
    yield from _of_applications(result)


def _of_energy(result: TickResult) -> Iterator[_Sample]:
    for part, joules in result.energy_j.items():
        yield "host_energy_joules_total", (part,), joules
    if result.power is not None and result.busy is not None:
        idle_part = result.snapshot.host.costs.idle_part
        for vm in result.snapshot.vms:
            yield "vm_power_watts", (vm.name,), vm_watts(result.power.watts, idle_part, result.busy, vm.cpu_share)


def _of_batch(result: TickResult) -> Iterator[_Sample]:
    for vm in result.batch_vms:
        yield "batch_vm_got_pcpus", (vm.vm,), vm.got_pcpus
        yield "batch_vm_would_pcpus", (vm.vm,), vm.would_pcpus
        yield "batch_vm_slowdown", (vm.vm,), vm.slowdown
        yield "batch_vm_too_slow", (vm.vm,), vm.too_slow
        yield "job_done_cpu_seconds", (vm.vm,), vm.done_cpu_s
        yield "job_needed_pcpus", (vm.vm,), vm.needed_pcpus
        if vm.state is not None:
            for state in JobState:
                yield "job_state", (vm.vm, state), state is vm.state


def _of_knobs(result: TickResult) -> Iterator[_Sample]:
    for domain, spec in result.specs.items():
        knobs = result.knobs(domain)
        policies = [value for key, value in knobs.items() if key.knob is Knob.SCHEDULING]
        if policies:
            real_time = sum(isinstance(policy, int) and is_real_time(policy) for policy in policies)
            yield "vm_real_time_vcpus", (spec.name,), real_time
        for key, value in knobs.items():
            if not isinstance(value, int):
                if key.knob is Knob.VCPU_PIN and len(value) == 1:
                    yield "vm_vcpu_pinned_pcpu", (spec.name, str(key.index)), min(value)
            elif key.knob is Knob.WEIGHT:
                yield "vm_cpu_weight", (spec.name,), value
            elif key.knob is Knob.IDLE:
                yield "vm_idle_class", (spec.name,), value
            elif key.knob is Knob.QUOTA and value != UNLIMITED:
                yield "vm_quota_us", (spec.name,), value


def _of_cache(result: TickResult) -> Iterator[_Sample]:
    for group in result.cache.groups:
        for application in group.applications:
            for part in group.parts:
                yield "cache_ways", (application, str(part.domain)), part.ways
    for vm, traffics in result.cache.measured.vms.items():
        for traffic in traffics:
            domain = str(traffic.domain)
            yield "cache_occupancy_bytes", (vm, domain), traffic.occupancy_bytes
            yield "memory_bandwidth_bytes_per_second", (vm, domain, "total"), traffic.total
            yield "memory_bandwidth_bytes_per_second", (vm, domain, "local"), traffic.local
    for memory in result.cache.measured.memories:
        yield "memory_traffic_bytes_per_second", (str(memory.domain),), memory.rate
        yield "memory_traffic_max_bytes_per_second", (str(memory.domain),), memory.maximum


def _of_applications(result: TickResult) -> Iterator[_Sample]:
    shares = {vm.name: vm.cpu_share for vm in result.snapshot.vms}
    for view in result.snapshot.applications:
        name, window = view.application.name, view.window
        here = [shares[vm] for tier in view.application.tiers for vm in tier.vms if vm in shares]
        yield "application_cpu_share", (name,), sum(here) if here else None
        for state in SlaState:
            yield "application_sla_state", (name, state), state is view.sla_state
        if window is None:
            continue
        percentile = watched_percentile(view.application.sla)
        measured_ms = window.percentile_ms(percentile)
        measured_s = None if measured_ms is None else measured_ms / 1000
        yield "application_response_time_seconds", (name, f"{percentile:g}"), measured_s
        yield "application_rate_rps", (name,), window.rate_rps
        yield "application_window_samples", (name,), window.histogram.count
        yield "application_window_age_seconds", (name,), window.age_s(result.at_s)


def _of_sources(statuses: Sequence[SourceStatus]) -> Iterator[_Sample]:
    for status in statuses:
        source = status.application, status.source
        for name in _COUNTS:
            yield "source_samples_total", (*source, name), getattr(status, name)
        for state in SourceState:
            yield "source_state", (*source, state), state is status.state
