"""Scenarios made up at random, for comparing policies over many of them."""

from __future__ import annotations

from random import Random

from manager.model.registration import Sla
from manager.sim.scenario import (
    AppSpec,
    BatchSpec,
    Constant,
    Fault,
    FaultKind,
    Noise,
    Ramp,
    Scenario,
    Segment,
    ServiceTime,
    Shape,
    Sine,
    TierSpec,
    tier_vms,
)
from manager.sim.services import random_stream

DURATION_S = 600.0


def random_scenario(seed: int) -> Scenario:
    """A plausible scenario, always the same for a seed.

    2 to 6 applications of 1 or 2 tiers on 2 to 16 pCPUs, with 8 to 50 requests/s each, whose mean demand together is 35
    to 80 % of the host and varies by steps, ramps and swings; SLAs of 4 to 15 times the mean CPU time of a request;
    batch VMs that fill the rest; in some noise, pinning, cgroup v1, and a fault.
    """
    random = random_stream(f"scenario/{seed}")
    pcpus = random.choice((2, 4, 4, 8, 8, 16))
    count = random.randint(2, 3 if pcpus == 2 else 6)
    fill = random.uniform(0.35, 0.8)
    portions = [random.uniform(0.5, 2.0) for _ in range(count)]
    applications = tuple(
        _application(random, f"app-{number}", pcpus, fill * pcpus * portion / sum(portions))
        for number, portion in enumerate(portions, start=1)
    )
    return Scenario(
        name=f"random-{seed}",
        summary="made up at random",
        pcpus=pcpus,
        applications=applications,
        batch=_batch(random, pcpus),
        cgroup=random.choice((1, 2, 2)),
        duration_s=DURATION_S,
        seed=seed,
        pinning=random.random() < 0.2,
        noise=_noise(random),
        faults=_faults(random, applications),
    )


def _application(random: Random, name: str, pcpus: int, cores: float) -> AppSpec:
    """An application that needs ``cores`` pCPUs on average."""
    tiers = random.choice((1, 1, 2))
    rate_rps = random.uniform(8, 50)
    parts = [random.uniform(0.3, 1.0) for _ in range(tiers)]
    means_ms = [cores * 1000 / rate_rps * part / sum(parts) for part in parts]
    specs = tuple(
        TierSpec(tier, _service(random, mean_ms), vms=1, vcpus=_vcpus(random, pcpus, rate_rps * mean_ms / 1000))
        for tier, mean_ms in zip(("web", "db"), means_ms, strict=False)
    )
    sla_ms = round(sum(means_ms) * random.uniform(4, 15), 1)
    load = _load(random, rate_rps)
    max_rate_rps = round(rate_rps * 1.3, 1) if random.random() < 0.5 else None
    return AppSpec(name, Sla(sla_ms, random.choice((95.0, 95.0, 90.0)), max_rate_rps), specs, load)


def _service(random: Random, mean_ms: float) -> ServiceTime:
    shape = random.choice((Shape.EXPONENTIAL, Shape.LOGNORMAL, Shape.DETERMINISTIC))
    return ServiceTime(mean_ms, shape, random.uniform(0.3, 2.0) if shape is Shape.LOGNORMAL else 1.0)


def _vcpus(random: Random, pcpus: int, cores: float) -> int:
    """vCPUs enough for twice the mean demand, but no more than there are pCPUs."""
    return min(pcpus, max(1, round(cores * 2 + random.uniform(0.5, 2))))


def _load(random: Random, rate_rps: float) -> tuple[Segment, ...]:
    """Segments whose mean is about ``rate_rps``."""
    kind = random.choice(("constant", "step", "step", "ramp", "sine", "flapping"))
    high = random.uniform(1.2, 1.8)
    if kind == "constant":
        return (Constant(rate_rps),)
    if kind == "sine":
        return (Sine(rate_rps, rate_rps * random.uniform(0.2, 0.8), random.uniform(120, 600)),)
    if kind == "ramp":
        half_s = random.uniform(100, 300)
        low = 2 - high
        return (Ramp(rate_rps * low, rate_rps * high, half_s), Ramp(rate_rps * high, rate_rps * low, half_s))
    at_s, for_s = (random.uniform(15, 60), 30.0) if kind == "flapping" else (random.uniform(100, 300), 120.0)
    total_s = at_s + for_s if kind == "flapping" else DURATION_S
    low = (total_s - for_s * high) / (total_s - for_s)
    rest_s = total_s - at_s - for_s
    segments = [Constant(rate_rps * max(low, 0.1), at_s), Constant(rate_rps * high, for_s)]
    return (*segments, Constant(rate_rps * max(low, 0.1), rest_s)) if rest_s > 0 else tuple(segments)


def _batch(random: Random, pcpus: int) -> tuple[BatchSpec, ...]:
    groups = [BatchSpec("batch", vms=random.choice((pcpus, pcpus, max(1, pcpus // 2), 2 * pcpus)))]
    if random.random() < 0.3:
        on_ms = random.choice((6.0, 50.0, 500.0))
        groups.append(BatchSpec("wave", vms=random.randint(1, 2), on_ms=on_ms, off_ms=on_ms * random.choice((1, 3, 7))))
    return tuple(groups)


def _noise(random: Random) -> Noise | None:
    if random.random() < 0.6:
        return None
    return Noise(random.uniform(0.05, 0.25), random.uniform(100, 5000), random.uniform(1000, 30_000))


def _faults(random: Random, applications: tuple[AppSpec, ...]) -> tuple[Fault, ...]:
    if random.random() < 0.7:
        return ()
    kind = random.choice((FaultKind.SOURCE_SILENT, FaultKind.VM_RESTART, FaultKind.AGENT_RESTART))
    app = random.choice(applications)
    target = {FaultKind.SOURCE_SILENT: app.name, FaultKind.VM_RESTART: tier_vms(app, app.tiers[0])[0]}.get(kind, "")
    lasts_s = random.uniform(5, 20) if kind is FaultKind.VM_RESTART else random.uniform(20, 180)
    return (Fault(kind, random.uniform(60, 400), lasts_s, target),)
