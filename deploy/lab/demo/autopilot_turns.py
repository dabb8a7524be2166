"""What a turn of the autopilot's demonstration shows, and the turns of a phase as one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import mean
from typing import Any

from deploy.lab.demo.autopilot_scene import INTERVAL_S
from deploy.lab.demo.measure import DemoMeasurement
from deploy.lab.demo.stretches import p95_ms, stretches
from deploy.lab.demo.turns import merged
from manager.model.histogram import Histogram

PARTS = ("cure", "spike", "newcomer")
"""The thirds of a turn: what is violated is cured, the load of a service rises, a batch VM starts."""
ENDS = "newcomer"
"""The part in which a turn ends."""
MET_IN_A_ROW = 2
"""So many intervals in a row within the target end a violation."""
VIOLATED_S = 1.5
"""So long before the policy is set p95 is taken to see whether equal weights violate the SLA."""
DRAINED_S = 3.0
"""So long after the change what piled up at equal weights may still wait: it says nothing of the new setting."""
HEADROOM, LEAST_HEADROOM, MARGIN = 2.0, 1.5, 1.25
"""A target is ``HEADROOM`` times what the hand-made setting has, or less, down to ``LEAST_HEADROOM`` times, so that
equal weights miss it by ``MARGIN``."""


@dataclass(frozen=True, slots=True)
class CpuPlace:
    """Use of the CPUs in about a second: its length, the busy share of the managed pCPUs, and batch VMs' pCPUs."""

    length_s: float
    host_share: float
    batch_pcpus: float


@dataclass(frozen=True, slots=True)
class PlayedTurn:
    """What was seen in a turn. Times are seconds since the epoch but ``turn_s``, which begins at ``changed_s``.

    ``changed_s``: the policy was set; ``late_s``: the late batch VM was started. ``pushed`` are the load generators'
    intervals by service, those at equal weights before, too.
    """

    turn_s: float
    began_s: float
    changed_s: float
    late_s: float
    ended_s: float
    pushed: Mapping[str, Sequence[Mapping[str, Any]]]
    measured: DemoMeasurement
    cpu: tuple[CpuPlace, ...]

    def intervals(self, service: str) -> list[Histogram]:
        """Response times from the change of policy on, by interval."""
        return stretches(self.pushed.get(service, ()), self.changed_s, INTERVAL_S, int(self.turn_s / INTERVAL_S))

    def parts(self, service: str) -> list[Histogram]:
        """Response times of each part."""
        return stretches(self.pushed.get(service, ()), self.changed_s, self.turn_s / len(PARTS), len(PARTS))

    def settled(self, service: str) -> list[Histogram]:
        """The same, the first without what piled up before."""
        cure_s = self.turn_s / len(PARTS) - DRAINED_S
        first = stretches(self.pushed.get(service, ()), self.changed_s + DRAINED_S, cure_s, 1)
        return [*first, *self.parts(service)[1:]]

    def before(self, service: str) -> Histogram:
        """Response times just before the policy was set, at equal weights."""
        return stretches(self.pushed.get(service, ()), self.changed_s - VIOLATED_S, VIOLATED_S, 1)[0]

    def batch_at_end_pcpus(self) -> float:
        """CPU seconds a second that batch VMs had in the part that ends the turn."""
        places = self.cpu[int(len(self.cpu) * (1 - 1 / len(PARTS))) :]
        return sum(place.batch_pcpus * place.length_s for place in places) / sum(place.length_s for place in places)


@dataclass(frozen=True, slots=True)
class SeenViolation:
    """So long, from so many seconds after the change of policy on, p95 was above the target. ``met``: it ended."""

    start_s: float
    length_s: float
    met: bool


@dataclass(frozen=True, slots=True)
class CureTarget:
    """The SLA, None where none can be known, and why. ``violated``: equal weights clearly violate it."""

    sla_ms: float | None
    why: str
    violated: bool = False


def target_of(turn: PlayedTurn, service: str) -> CureTarget:
    """A target that the hand-made setting meets once it has settled, and that equal weights violate if that can be."""
    equal_ms = p95_ms(turn.before(service))
    by_hand = [p95_ms(part) for part in turn.settled(service)]
    known = [time_ms for time_ms in by_hand if time_ms is not None]
    if equal_ms is None or len(known) < len(by_hand):
        return CureTarget(None, "nothing was answered at equal weights, or in a part of the turn after it")
    measured = f"p95 {equal_ms:.1f} ms at equal weights, at most {max(known):.1f} ms by hand"
    violated = equal_ms / MARGIN >= LEAST_HEADROOM * max(known)
    sla_ms = round(min(HEADROOM * max(known), equal_ms / MARGIN) if violated else HEADROOM * max(known), 2)
    unclear = "" if violated else ", which equal weights do not clearly violate"
    return CureTarget(sla_ms, f"{measured}: SLA {sla_ms:g} ms{unclear}", violated)


def violations(times_ms: Sequence[float | None], sla_ms: float, interval_s: float) -> list[SeenViolation]:
    """The violations in a row of intervals' p95, one without answers counted as violated: requests are due in each."""
    found: list[SeenViolation] = []
    start: int | None = None
    met = 0
    for place, time_ms in enumerate(times_ms):
        held = time_ms is not None and time_ms <= sla_ms
        met = met + 1 if held else 0
        if start is None and not held:
            start = place
        elif start is not None and met == MET_IN_A_ROW:
            end = place + 1 - MET_IN_A_ROW
            found.append(SeenViolation(start * interval_s, (end - start) * interval_s, met=True))
            start = None
    if start is not None:
        found.append(SeenViolation(start * interval_s, (len(times_ms) - start) * interval_s, met=False))
    return found


def joined(
    turns: Sequence[PlayedTurn], slas_ms: Mapping[str, float], steps: Sequence[Mapping[str, int]]
) -> dict[str, Any]:
    """The turns of a phase, at least one, as JSON. ``steps`` are the changes of each turn by knob.

    p95 over time and by part is of all turns' response times together.
    """
    measured = merged([turn.measured for turn in turns])
    return {
        "services": {name: _service(turns, name, sla_ms, measured) for name, sla_ms in slas_ms.items()},
        "batch_pcpus": _over_turns([[place.batch_pcpus for place in turn.cpu] for turn in turns]),
        "batch_at_end_pcpus": round(mean(turn.batch_at_end_pcpus() for turn in turns), 4),
        "host_share": _over_turns([[place.host_share for place in turn.cpu] for turn in turns]),
        "host_cpu_share": round(measured.use.host_share, 4),
        "outside_cpu_share": round(measured.use.outside_share, 4),
        "stolen_cpu_share": round(measured.use.stolen_share, 4),
        "load_generators_cpu_share": round(sum(load["cpu_share"] for load in measured.loads.values()), 4),
        "late_after_s": [round(turn.late_s - turn.changed_s, 2) for turn in turns],
        "steps": [dict(counts) for counts in steps],
    }


def _service(turns: Sequence[PlayedTurn], name: str, sla_ms: float, measured: DemoMeasurement) -> dict[str, Any]:
    by_turn = [[p95_ms(histogram) for histogram in turn.intervals(name)] for turn in turns]
    pooled = [part[0].merge(*part[1:]) for part in zip(*(turn.intervals(name) for turn in turns), strict=True)]
    parts = [part[0].merge(*part[1:]) for part in zip(*(turn.parts(name) for turn in turns), strict=True)]
    load = measured.loads[name]
    return {
        "sla_ms": sla_ms,
        "before_p95_ms": [p95_ms(turn.before(name)) for turn in turns],
        "parts": {
            title: {"p95_ms": p95_ms(part), "count": part.count} for title, part in zip(PARTS, parts, strict=True)
        },
        "p95_ms": [p95_ms(histogram) for histogram in pooled],
        "turns_p95_ms": by_turn,
        "violated_share": round(_violated_share([time_ms for times_ms in by_turn for time_ms in times_ms], sla_ms), 4),
        "violations": [
            [
                {"start_s": violation.start_s, "length_s": violation.length_s, "met": violation.met}
                for violation in violations(times_ms, sla_ms, INTERVAL_S)
            ]
            for times_ms in by_turn
        ],
        "rate_rps": round(load["rate_rps"], 1),
        "client_limited": load["client_limited"],
        "errors": sum(load["errors"].values()),
    }


def _violated_share(times_ms: Sequence[float | None], sla_ms: float) -> float:
    return sum(time_ms is None or time_ms > sla_ms for time_ms in times_ms) / max(len(times_ms), 1)


def _over_turns(turns: Sequence[Sequence[float]]) -> list[float]:
    """The mean of all turns that have a value, place by place."""
    places = zip_longest(*turns)
    return [round(mean(value for value in place if value is not None), 4) for place in places]
