"""Prometheus metrics of an agent. Names, labels and meanings are listed in docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from manager.control.sla import watched_percentile
from manager.loop.status import warps_in_force, ways_in_force
from manager.loop.tick import TickResult
from manager.model.host import Discovery
from manager.model.knobs import UNLIMITED, Knob
from manager.model.scheduling import is_real_time
from manager.model.source import SourceState, SourceStatus
from manager.model.warp import Mechanism
from manager.model.window import SlaState

_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


_BORROWED = "borrowed_ns"
_COUNTS = ("accepted", "malformed", "refused", "late", "errors")


class AgentMetrics:
    """Counts what ticks do and shows the settings in force. One instance per agent, with a registry of its own."""

    def __init__(self) -> None:
        """Create all metrics."""
        self.registry = CollectorRegistry()
        reg = self.registry
        self.tick_seconds = Histogram(
            "equipoise_agent_tick_seconds", "Duration of a tick", buckets=_BUCKETS_S, registry=reg
        )
        self.overruns = Counter(
            "equipoise_agent_tick_overruns", "Ticks left out, the one before still ran", registry=reg
        )
        self.errors = Counter("equipoise_agent_errors", "Errors by kind", ["kind"], registry=reg)
        self.writes = Counter(
            "equipoise_agent_writes", "Changes of settings by knob and result", ["knob", "result"], registry=reg
        )
        self.tick_age = Gauge("equipoise_agent_tick_age_seconds", "Time since the last tick ended", registry=reg)
        self.stalled = Gauge(
            "equipoise_agent_loop_stalled", "1 while no tick has ended for three intervals", registry=reg
        )
        self.clock_jumps = Counter(
            "equipoise_agent_clock_jumps", "How often the wall clock was set, or the host suspended", registry=reg
        )
        self.manager_up = Gauge("equipoise_agent_manager_up", "1 when the manager answered last time", registry=reg)
        self.second = Gauge(
            "equipoise_agent_second", "1 while the manager refuses this agent, as another serves the host", registry=reg
        )
        self.rejected = Counter(
            "equipoise_agent_items_refused", "Items that the manager did not accept", ["kind"], registry=reg
        )
        for kind in ("decision", "event", "tick", "window"):
            self.rejected.labels(kind)
        self.aside = Gauge(
            "equipoise_agent_items_set_aside", "Items kept that the manager did not accept", registry=reg
        )
        self.clock_ahead = Gauge(
            "equipoise_agent_clock_ahead_seconds", "How far this clock is ahead of the manager's", registry=reg
        )
        self.libvirt_up = Gauge("equipoise_agent_libvirt_up", "1 when libvirt is connected", registry=reg)
        self.discovery_age = Gauge(
            "equipoise_agent_discovery_age_seconds", "Since libvirt last listed all running domains", registry=reg
        )
        self.discovery_late = Gauge(
            "equipoise_agent_discovery_late", "1 when that is longer than discovery_limit_s", registry=reg
        )
        self.hanging = Gauge(
            "equipoise_agent_hanging_domains", "Domains about which libvirt does not answer", registry=reg
        )
        self.owned = Gauge("equipoise_agent_owned_knobs", "Settings that differ from their original", registry=reg)
        self.host_cpu = Gauge("equipoise_agent_host_cpu_share", "Busy share of the host's pCPUs", registry=reg)
        self._objects = _Objects()
        reg.register(self._objects)
        self._sources = _SourceMetrics()
        reg.register(self._sources)

    def observe(self, result: TickResult, owned_knobs: int, connected: bool) -> None:
        """Take over what a tick saw and did; VMs and applications that are gone lose their lines."""
        self.tick_seconds.observe(result.duration_s)
        for problem in result.problems:
            self.errors.labels(problem.kind).inc()
        for outcome in result.outcomes:
            self.writes.labels(outcome.change.key.knob, outcome.kind).inc()
        self.owned.set(owned_knobs)
        self.libvirt_up.set(connected)
        self.host_cpu.set(result.use.busy)
        self._objects.latest = result

    def observe_discovery(self, discovery: Discovery) -> None:
        """Take over how fresh the list of domains is."""
        self.discovery_age.set(discovery.age_s)
        self.discovery_late.set(discovery.late)
        self.hanging.set(len(discovery.hanging))

    def observe_sources(self, statuses: Sequence[SourceStatus]) -> None:
        """Take over how the sources of response times are; sources that are gone lose their lines."""
        self._sources.statuses = tuple(statuses)


class _Objects(Collector):
    """A line for each VM and application of the last tick, made when the page is read: ticks are more frequent."""

    def __init__(self) -> None:
        self.latest: TickResult | None = None

    def collect(self) -> Iterator[Metric]:
        """All families, empty before the first tick."""
        result = self.latest
        yield from _vm_metrics(result)
        yield from _warp_metrics(result)
        yield from _cache_metrics(result)
        yield from _application_metrics(result)


def _vm_metrics(result: TickResult | None) -> Iterator[Metric]:
    weight = GaugeMetricFamily("equipoise_vm_cpu_weight", "CPU weight in force", None, ["vm"])
    idle = GaugeMetricFamily("equipoise_vm_idle_class", "1 in the kernel's idle class", None, ["vm"])
    quota = GaugeMetricFamily(
        "equipoise_vm_quota_us", "CPU time its group may use a period; absent: no limit", None, ["vm"]
    )
    pin = GaugeMetricFamily(
        "equipoise_vm_vcpu_pinned_pcpu", "pCPU a vCPU is pinned to; absent: it floats", None, ["vm", "vcpu"]
    )
    cpu = GaugeMetricFamily("equipoise_vm_cpu_share", "CPU time used, share of the host", None, ["vm"])
    delay = GaugeMetricFamily(
        "equipoise_vm_run_delay_share", "Seconds its vCPUs waited for a pCPU per second", None, ["vm"]
    )
    vcpu_use = GaugeMetricFamily(
        "equipoise_vm_vcpu_use_max", "CPU time that its busiest vCPU used, share of a pCPU", None, ["vm"]
    )
    vcpu_wait = GaugeMetricFamily(
        "equipoise_vm_vcpu_wait_max", "Seconds a second that the vCPU waited which waited most", None, ["vm"]
    )
    real_time = GaugeMetricFamily(
        "equipoise_vm_real_time_vcpus", "vCPU threads in SCHED_FIFO or SCHED_RR; absent: not asked", None, ["vm"]
    )
    if result is not None:
        for view in result.snapshot.vms:
            if view.vcpu_pcpus:
                vcpu_use.add_metric([view.name], max(view.vcpu_pcpus))
                vcpu_wait.add_metric([view.name], max(view.vcpu_waits))
            cpu.add_metric([view.name], view.cpu_share)
            delay.add_metric([view.name], view.run_delay_share)
        for domain, spec in result.specs.items():
            policies = [one for key, one in result.knobs(domain).items() if key.knob is Knob.SCHEDULING]
            if policies:
                real_time.add_metric(
                    [spec.name], sum(isinstance(policy, int) and is_real_time(policy) for policy in policies)
                )
            for key, value in result.knobs(domain).items():
                if not isinstance(value, int):
                    if key.knob is Knob.VCPU_PIN and len(value) == 1:
                        pin.add_metric([spec.name, str(key.index)], min(value))
                elif key.knob is Knob.WEIGHT:
                    weight.add_metric([spec.name], value)
                elif key.knob is Knob.IDLE:
                    idle.add_metric([spec.name], value)
                elif key.knob is Knob.QUOTA and value != UNLIMITED:
                    quota.add_metric([spec.name], value)
    yield from (weight, idle, quota, pin, cpu, delay, vcpu_use, vcpu_wait, real_time)


def _warp_metrics(result: TickResult | None) -> Iterator[Metric]:
    mechanism = GaugeMetricFamily(
        "equipoise_agent_warp_mechanism", "1 for the mechanism that gives warps", None, ["mechanism"]
    )
    warp = GaugeMetricFamily("equipoise_vm_warp_us", "Warp in force; absent: none", None, ["vm"])
    counts = CounterMetricFamily("equipoise_sched_ext_events", "What our scheduler did", None, ["event"])
    borrowed = CounterMetricFamily("equipoise_sched_ext_borrowed_seconds", "CPU time used ahead of a share", None, [])
    if result is not None:
        for one in Mechanism:
            mechanism.add_metric([one], one is result.warp.mechanism)
        for domain, warp_us in warps_in_force(result).items():
            warp.add_metric([result.specs[domain].name], warp_us)
        for name, count in result.warp_counters.items():
            if name == _BORROWED:
                borrowed.add_metric([], count / 1e9)
            else:
                counts.add_metric([name], count)
    yield from (mechanism, warp, counts, borrowed)


def _cache_metrics(result: TickResult | None) -> Iterator[Metric]:
    ways = GaugeMetricFamily(
        "equipoise_cache_ways", "Ways of the cache that an application has alone", None, ["application", "domain"]
    )
    if result is not None:
        masks = ways_in_force(result)
        for group in result.cache.groups:
            for application in group.apps:
                for domain, mask in masks[group.name].items():
                    ways.add_metric([application, str(domain)], mask.ways)
    yield from (ways, *_memory_metrics(result))


def _memory_metrics(result: TickResult | None) -> Iterator[Metric]:
    occupancy = GaugeMetricFamily(
        "equipoise_cache_occupancy_bytes", "Bytes of the last-level cache that a VM has", None, ["vm", "domain"]
    )
    traffic = GaugeMetricFamily(
        "equipoise_memory_bandwidth_bytes_per_second",
        "Memory traffic of a VM by domain of the cache; scope local: with the domain's own memory",
        None,
        ["vm", "domain", "scope"],
    )
    whole = GaugeMetricFamily(
        "equipoise_memory_traffic_bytes_per_second", "Memory traffic of all that runs", None, ["domain"]
    )
    most = GaugeMetricFamily(
        "equipoise_memory_traffic_max_bytes_per_second", "The most of it that lasted since boot", None, ["domain"]
    )
    if result is not None:
        for vm, parts in result.cache.measured.vms.items():
            for part in parts:
                domain = str(part.domain)
                if part.occupancy_bytes is not None:
                    occupancy.add_metric([vm, domain], part.occupancy_bytes)
                for scope, rate in (("total", part.total), ("local", part.local)):
                    if rate is not None:
                        traffic.add_metric([vm, domain, scope], rate)
        for memory in result.cache.measured.memories:
            for family, rate in ((whole, memory.rate), (most, memory.maximum)):
                if rate is not None:
                    family.add_metric([str(memory.domain)], rate)
    yield from (occupancy, traffic, whole, most)


def _application_metrics(result: TickResult | None) -> Iterator[Metric]:
    label = ["application"]
    measured = GaugeMetricFamily(
        "equipoise_application_response_time_seconds",
        "The SLA's percentile in the latest window, 95 without an SLA",
        None,
        [*label, "percentile"],
    )
    rate = GaugeMetricFamily("equipoise_application_rate_rps", "Requests per second of the latest window", None, label)
    samples = GaugeMetricFamily("equipoise_application_window_samples", "Samples in the latest window", None, label)
    age = GaugeMetricFamily("equipoise_application_window_age_seconds", "Age of the latest window", None, label)
    sla = GaugeMetricFamily("equipoise_application_sla_state", "1 for the state the SLA is in", None, [*label, "state"])
    cpu = GaugeMetricFamily(
        "equipoise_application_cpu_share", "CPU time its VMs here used, share of the host", None, label
    )
    shares = {view.name: view.cpu_share for view in result.snapshot.vms} if result is not None else {}
    for view in result.snapshot.applications if result is not None else ():
        name = view.application.name
        here = [shares[vm] for tier in view.application.tiers for vm in tier.vms if vm in shares]
        if here:
            cpu.add_metric([name], sum(here))
        for state in SlaState:
            sla.add_metric([name, state], state is view.sla_state)
        if result is None or view.window is None:
            continue
        percentile = watched_percentile(view.application.sla)
        measured_ms = view.window.percentile_ms(percentile)
        if measured_ms is not None:
            measured.add_metric([name, f"{percentile:g}"], measured_ms / 1000)
        if view.window.rate_rps is not None:
            rate.add_metric([name], view.window.rate_rps)
        samples.add_metric([name], view.window.histogram.count)
        age.add_metric([name], view.window.age_s(result.at_s))
    yield from (measured, rate, samples, age, sla, cpu)


class _SourceMetrics(Collector):
    """How the sources of response times are, as they count themselves."""

    def __init__(self) -> None:
        self.statuses: tuple[SourceStatus, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """One line for each count of each source, and one for each state."""
        label = ["application", "source"]
        counts = CounterMetricFamily(
            "equipoise_source_samples", "Response times of a source, by what became of them", None, [*label, "result"]
        )
        states = GaugeMetricFamily("equipoise_source_state", "1 for the state a source is in", None, [*label, "state"])
        for status in self.statuses:
            for name in _COUNTS:
                counts.add_metric([status.application, status.source, name], getattr(status, name))
            for state in SourceState:
                states.add_metric([status.application, status.source, state], state is status.state)
        yield counts
        yield states
