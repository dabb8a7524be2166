"""What `auto` believes of its host: a queueing model of each application, fitted to what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import NormalDist

from manager.control.contention import Contender, response_factor, slowdowns
from manager.control.feedback_law import LEAST_SAMPLES, average
from manager.control.judged_windows import enough, fresh
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import WeightScale
from manager.model.registration import Sharing, Sla
from manager.model.window import Window
from policies.cores import released_applications

STEP = 4
"""One level down divides the weight by it."""
SPREAD = 0.3
"""Percentiles of intervals differ by this much by chance, in logarithms."""
SMOOTHING = 0.3
FIT_SMOOTHING = 0.2
FIRST_FIT = 2.5
"""A percentile is about so many times the mean, until it was measured."""
BUSY = 0.85
"""A VM whose vCPUs run or wait for more than this of the time has a backlog, if its application violates its SLA."""
HORIZON_S = 40.0
"""Predictions are for so long."""
MORE = 1.1
"""They are made for this much more demand than was measured: it varies, and too little costs more than too much."""
AT_RISK = 0.8
"""Share of the target above which an SLA is at risk."""
LARGEST_EXCESS = 3.0
"""Slowdown above what is modelled counts as at most this much."""
STEEPEST = 0.75
"""Response times that grow by more than this a second say no more of the arrivals."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True)
class VmUse:
    """Averages of a VM: CPU seconds a second that it used, and that its vCPUs waited for a pCPU."""

    used_pcpus: float
    waited_pcpus: float

    @property
    def slowdown(self) -> float:
        """How many times as long its work took for waiting."""
        return 1.0 if self.used_pcpus <= 0 else 1 + self.waited_pcpus / self.used_pcpus


@dataclass(frozen=True, slots=True)
class AppFit:
    """Of an application: its rate of arrivals, averaged, and the logarithm of its percentile over the modelled mean."""

    arrivals_rps: float | None = None
    log_ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Fits:
    """What was learnt so far, by VM, by application, and of the pCPUs that VMs get in sum where they want all."""

    uses: Mapping[str, VmUse] = field(default_factory=dict)
    applications: Mapping[str, AppFit] = field(default_factory=dict)
    pcpus: float | None = None


@dataclass(frozen=True, slots=True)
class AppModel:
    """An application: positions of its VMs, CPU time of a request by VM, and how its percentile relates to the mean.

    ``over``: above its agreed load under `isolation`, so that its violations count for nothing. ``backlog_s``: how long
    a request waits that comes now, 0 where there is no backlog; ``bottleneck`` is the position of the VM that has it.
    """

    name: str
    sla: Sla
    vms: tuple[int, ...]
    request_s: tuple[float, ...]
    measured_ms: float
    ratio: float
    arrivals_rps: float
    over: bool = False
    backlog_s: float = 0.0
    bottleneck: int = -1

    @property
    def log_miss(self) -> float:
        """ln(percentile / target): above 0 where the SLA is violated."""
        return math.log(max(self.measured_ms, 1e-6) / self.sla.response_time_ms)

    @property
    def at_risk(self) -> bool:
        """Whether its SLA is violated or nearly so, and that counts."""
        return self.log_miss > math.log(AT_RISK) and not self.over


@dataclass(frozen=True, slots=True)
class WaitExcess:
    """By how much VMs were slower than modelled, under weights for which ``beside`` are the sums of ``_beside``."""

    slowdowns: tuple[float, ...]
    beside: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HostModel:
    """The critical VMs as contenders, with the application of each, and the weight that is registered for it.

    ``measured``: slowdowns of the VMs, () where they are not known. ``excess``: see ``anchored``.
    """

    contenders: tuple[Contender, ...]
    owners: tuple[str | None, ...]
    fixed: tuple[int | None, ...]
    applications: tuple[AppModel, ...]
    scale: WeightScale
    batch_weight: float
    pcpus: float
    measured: tuple[float, ...] = ()
    excess: WaitExcess | None = None

    def anchored(self, levels: Mapping[str, int]) -> HostModel:
        """The model with what was measured under ``levels``, which are in force, above what it says of them.

        It takes pCPUs as shared by all, and so knows no vCPU that waits for another although a pCPU beside them has
        only batch VMs. That excess is taken to be the waits of pairs on one pCPU, see ``_beside``.
        """
        if not self.measured:
            return self
        weights = self._weights(levels)
        modelled = self._slowdowns(weights, [app.bottleneck for app in self.applications if app.backlog_s > 0])
        above = (min(max(seen - said, 0.0), LARGEST_EXCESS) for seen, said in zip(self.measured, modelled, strict=True))
        return replace(self, excess=WaitExcess(tuple(above), self._beside(weights)))

    def violated(self, levels: Mapping[str, int]) -> float:
        """How many SLAs are expected to be violated in an interval, over the horizon, under these levels."""
        return sum(self.violations(levels).values())

    def violations(self, levels: Mapping[str, int]) -> dict[str, float]:
        """The same by application, each 0 to 1; 0 where violations count for nothing.

        While the backlog of an application drains, all vCPUs of its bottleneck are runnable beside the others.
        """
        weights = self._weights(levels)
        steady = self._violations(self._slowdowns(weights, ()))
        backlogged = [app for app in self.applications if app.backlog_s > 0]
        slower = self._slowdowns(weights, [app.bottleneck for app in backlogged]) if backlogged else ()
        meanwhile = self._violations(slower) if backlogged else steady
        drained = {app.name: self._drain_share(app, slower[app.bottleneck]) for app in backlogged}
        longest = max(drained.values(), default=0.0)
        expected: dict[str, float] = {}
        for app in self.applications:
            share, then = (drained[app.name], 1.0) if app.name in drained else (longest, meanwhile[app.name])
            expected[app.name] = 0.0 if app.over else share * then + (1 - share) * steady[app.name]
        return expected

    def _weights(self, levels: Mapping[str, int]) -> list[float]:
        return [
            float(weight_at(levels.get(owner or "", 0), self.scale) if fixed is None else fixed)
            for owner, fixed in zip(self.owners, self.fixed, strict=True)
        ]

    def _slowdowns(self, weights: Sequence[float], backlogged: Sequence[int]) -> tuple[float, ...]:
        modelled = slowdowns(self.contenders, weights, self.batch_weight, self.pcpus, frozenset(backlogged))
        if self.excess is None or not any(self.excess.slowdowns):
            return modelled
        found = zip(modelled, self.excess.slowdowns, self._beside(weights), self.excess.beside, strict=True)
        return tuple(slower + above * (now / then if then > 0 else 1.0) for slower, above, now, then in found)

    def _beside(self, weights: Sequence[float]) -> tuple[float, ...]:
        """What each VM has to wait for on pCPUs that it shares with one other: a part v / (v + w) of the other's work.

        ``w`` is its own weight, ``v`` that of the other.
        """
        return tuple(
            sum(
                other.needed_pcpus * weights[position] / (weights[position] + own)
                for position, other in enumerate(self.contenders)
                if position != index
            )
            for index, own in enumerate(weights)
        )

    def _violations(self, slower: Sequence[float]) -> dict[str, float]:
        return {
            app.name: probability(
                app.ratio
                * request_ms(
                    app.request_s,
                    [self.contenders[position] for position in app.vms],
                    [slower[position] for position in app.vms],
                ),
                app.sla.response_time_ms,
            )
            for app in self.applications
        }

    def _drain_share(self, app: AppModel, slowdown: float) -> float:
        """The part of the horizon until the backlog is small enough for the SLA."""
        contender = self.contenders[app.bottleneck]
        spare_pcpus = contender.vcpus / slowdown - contender.needed_pcpus
        work_s = contender.needed_pcpus * max(app.backlog_s - app.sla.response_time_ms / 2000, 0.0)
        if spare_pcpus <= 0 or work_s >= spare_pcpus * HORIZON_S:
            return 1.0
        return work_s / (spare_pcpus * HORIZON_S)


def request_ms(request_s: Sequence[float], contenders: Sequence[Contender], slower: Sequence[float]) -> float:
    """Mean time of a request over its VMs, in milliseconds."""
    return sum(
        1000 * cpu_s * response_factor(contender.needed_pcpus, contender.vcpus, slowdown)
        for cpu_s, contender, slowdown in zip(request_s, contenders, slower, strict=True)
    )


def probability(percentile_ms: float, target_ms: float) -> float:
    """That an interval's percentile is above the target where ``percentile_ms`` is expected."""
    return _NORMAL.cdf(math.log(max(percentile_ms, 1e-6) / target_ms) / SPREAD)


def weight_at(level: int, scale: WeightScale) -> int:
    """The weight at a level, above that of batch VMs in any case."""
    return max(scale.critical // int(STEP**level), scale.critical_min)


def fit_model(snapshot: Snapshot, scale: WeightScale, before: Fits) -> tuple[HostModel, Fits]:
    """The model as of now, and what was learnt."""
    uses = {vm.name: _use(vm, before.uses.get(vm.name), snapshot) for vm in snapshot.vms if vm.critical}
    critical = [vm for vm in snapshot.vms if vm.critical and vm.vcpus]
    needed = {vm.name: uses[vm.name].used_pcpus for vm in critical}
    fits = dict(before.applications)
    applications: list[AppModel] = []
    position = {vm.name: index for index, vm in enumerate(critical)}
    released = released_applications(snapshot)
    for view in snapshot.applications:
        if view.application.name in released:
            continue
        vms = [vm for vm in critical if vm.application == view.application.name]
        app, fit = _app_model(view, snapshot, vms, uses, position, fits.get(view.application.name, AppFit()))
        fits[view.application.name] = fit
        if app is not None:
            applications.append(app)
            needed |= {vm.name: app.arrivals_rps * cpu_s for vm, cpu_s in zip(vms, app.request_s, strict=True)}
    batch = [vm for vm in snapshot.vms if not vm.critical]
    pcpus = _pcpus(snapshot, batch, before.pcpus)
    model = HostModel(
        tuple(Contender(MORE * needed[vm.name], vm.vcpus) for vm in critical),
        tuple(vm.application for vm in critical),
        tuple(vm.spec.weight for vm in critical),
        tuple(applications),
        scale,
        float(sum(vm.spec.weight or scale.batch for vm in batch)),
        pcpus,
        tuple(uses[vm.name].slowdown for vm in critical),
    )
    return model, Fits(uses, fits, pcpus)


def _use(vm: VmView, before: VmUse | None, snapshot: Snapshot) -> VmUse:
    """Averages that begin with the first interval of which CPU time is known: in that before, all of it is 0."""
    used = sum(vm.vcpu_pcpus) if vm.vcpu_pcpus else vm.cpu_share * len(snapshot.capabilities.online_cpus)
    if before is None or not before.used_pcpus:
        return VmUse(used, vm.run_delay_share)
    return VmUse(
        average(before.used_pcpus, used, SMOOTHING), average(before.waited_pcpus, vm.run_delay_share, SMOOTHING)
    )


def _pcpus(snapshot: Snapshot, batch: Sequence[VmView], before: float | None) -> float:
    """What all VMs together get while batch VMs wait: something outside them has the rest."""
    online = len(snapshot.capabilities.online_cpus)
    if not any(vm.run_delay_share > 0 for vm in batch):
        return online if before is None else before
    got = min(max(sum(vm.cpu_share for vm in snapshot.vms) * online, 0.5 * online), online)
    return average(before, got, SMOOTHING)


@dataclass(frozen=True, slots=True)
class _Measured:
    """An application in the last interval: the percentile of its SLA, answers a second, and how fast that grows."""

    percentile_ms: float
    answered_rps: float
    slope: float


def _measure(view: ApplicationView, sla: Sla, snapshot: Snapshot) -> _Measured | None:
    law = snapshot.host.law
    window = enough(view.slots, snapshot.now_s, law.max_age_s, law.min_samples, LEAST_SAMPLES)
    percentile_ms = window.percentile_ms(sla.percentile) if window else None
    recent = _whole(fresh(view.slots, snapshot.now_s, law.max_age_s))[:2]
    if percentile_ms is None or not recent or not recent[0].rate_rps:
        return None
    return _Measured(percentile_ms, recent[0].rate_rps, _slope(recent, sla.percentile))


def _whole(slots: Sequence[Window]) -> list[Window]:
    """Those that are not much shorter than others: a slot that began just before the tick has no rate and no slope."""
    longest_s = max((slot.end_s - slot.start_s for slot in slots), default=0.0)
    return [slot for slot in slots if slot.end_s - slot.start_s >= longest_s / 2]


def _app_model(
    view: ApplicationView,
    snapshot: Snapshot,
    vms: Sequence[VmView],
    uses: Mapping[str, VmUse],
    position: Mapping[str, int],
    fit: AppFit,
) -> tuple[AppModel | None, AppFit]:
    sla = view.application.sla
    measured = _measure(view, sla, snapshot) if sla and vms else None
    if sla is None or measured is None:
        return None, fit
    used = [uses[vm.name] for vm in vms]
    arrivals_rps = average(fit.arrivals_rps, measured.answered_rps / (1 - min(measured.slope, STEEPEST)), SMOOTHING)
    usual_rps = average(fit.arrivals_rps, measured.answered_rps, 0.5)
    request_s = tuple(use.used_pcpus / usual_rps for use in used)
    busy = [(use.used_pcpus + use.waited_pcpus) / vm.vcpus for use, vm in zip(used, vms, strict=True)]
    fullest = max(range(len(vms)), key=busy.__getitem__)
    log_ratio = fit.log_ratio
    if busy[fullest] < BUSY and all(request_s):
        contenders = [Contender(use.used_pcpus, vm.vcpus) for use, vm in zip(used, vms, strict=True)]
        mean_ms = request_ms(request_s, contenders, [use.slowdown for use in used])
        log_ratio = average(log_ratio, math.log(max(measured.percentile_ms, 1e-6) / max(mean_ms, 1e-6)), FIT_SMOOTHING)
    backlogged = busy[fullest] > BUSY and measured.percentile_ms > sla.response_time_ms
    isolated = view.application.sharing is Sharing.ISOLATION and sla.max_rate_rps is not None
    app = AppModel(
        view.application.name,
        sla,
        tuple(position[vm.name] for vm in vms),
        request_s,
        measured.percentile_ms,
        FIRST_FIT if log_ratio is None else math.exp(log_ratio),
        arrivals_rps,
        isolated and arrivals_rps > (sla.max_rate_rps or math.inf),
        measured.percentile_ms / 1000 if backlogged else 0.0,
        position[vms[fullest].name],
    )
    return app, AppFit(arrivals_rps, log_ratio)


def _slope(recent: Sequence[Window], percentile: float) -> float:
    """By how many seconds a second response times grow: a queue that gets longer, as more comes than is answered.

    Requests that are answered in turn after R seconds came R seconds ago, so that of rate answered A and arrivals L
    follows A = L (1 - dR/dt).
    """
    if len(recent) < 2:
        return 0.0
    now, before = (window.percentile_ms(50) or window.percentile_ms(percentile) for window in recent)
    elapsed_s = recent[0].end_s - recent[1].end_s
    if now is None or before is None or elapsed_s <= 0:
        return 0.0
    return (now - before) / 1000 / elapsed_s
