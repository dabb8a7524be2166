"""What a run measured, and whether it is about the server or about the load generator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manager.load.spec import LoadSpec
from manager.model.histogram import GAMMA, RELATIVE_ERROR, Histogram
from manager.model.units import percent

PERCENTILES = (50, 95, 99)
MAX_CPU_SHARE = 0.8
MAX_LATENESS_US = 1000.0
MAX_LATENESS_OF_P95 = 0.1
GENERATED = 0.95
"""Part of the offered rate from which on it counts as generated."""
_NEVER_SENT = "queue_timeout"


@dataclass(frozen=True, slots=True)
class IntervalResult:
    """What happened between ``start_s`` and ``end_s``, in seconds since the schedule began (the warm-up's end).

    ``sent`` counts requests that fell due in the interval; the rest counts requests that ended in it. The histogram
    holds, in microseconds, answers and whatever LoadResult says it holds besides.
    """

    start_s: float
    end_s: float
    end_epoch_s: float
    sent: int
    answered: int
    errors: Mapping[str, int]
    histogram: Histogram
    lateness: Histogram

    @property
    def rate_rps(self) -> float:
        """Answers per second."""
        return self.answered / (self.end_s - self.start_s)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The whole run without its warm-up. ``sent == answered + sum(errors.values())``.

    * ``sent``: requests that fell due. ``answered``: good answers, including those after the schedule's end.
    * ``errors`` by kind: ``timeout`` (sent, no answer in time), ``queue_timeout`` (no connection was free in time),
      ``closed`` and ``reset`` (the connection was lost before the answer), ``bad_answer`` (not the protocol),
      ``interrupted`` (outstanding when the run was stopped), and the protocol's, such as ``http_503``.
    * ``histogram``: microseconds from the intended send time to the complete answer. Time-outs count at the time-out
      and interrupted requests at their age, since they took at least that long; other errors have no response time.
    * ``lateness``: microseconds from the intended send time until the request was handed to a connection, or to the
      queue when none was free. This is the load generator's own delay and part of every response time. In a closed
      loop, where a request is due when the one before it was answered, there is none.
    * ``duration_s``: from the schedule's begin to its end, or to the last answer if that came later.
    * ``sending_s``: from the schedule's begin to its end, or until the last request left the queue if that came later.
    * ``cpu_s``: CPU time of the thread, warm-up included, over ``cpu_share`` of one core.
    * ``waiting``: requests among the interrupted ones that no connection had taken.
    * ``events``: what else happened, warm-up included: ``reconnects``, ``connect_failures``, ``unsolicited`` (data
      nobody asked for), ``misses``.
    """

    spec: LoadSpec
    sent: int
    answered: int
    errors: Mapping[str, int]
    events: Mapping[str, int]
    duration_s: float
    sending_s: float
    histogram: Histogram
    mean_us: float | None
    max_us: float | None
    lateness: Histogram
    lateness_max_us: float | None
    intervals: tuple[IntervalResult, ...]
    cpu_s: float
    cpu_share: float
    waiting: int = 0

    @property
    def rate_rps(self) -> float:
        """Answers per second over ``duration_s``: what the server achieved, at most what was offered."""
        return self.answered / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def client_limits(self) -> tuple[str, ...]:
        """Why the numbers are about the load generator; empty when they are about the server.

        Lateness adds to response times, so it matters once its p99 exceeds a tenth of the measured p95; below 1 ms
        it is let pass, because SLAs are in milliseconds and waking up alone may cost a tenth of a fast answer. Above
        80 % of a core, requests queue in the load generator too often for either to be believed.
        """
        limits = []
        p95_us, late_us = self.histogram.percentile_us(95), self.lateness.percentile_us(99)
        if p95_us is not None and late_us is not None:
            allowed_us = max(MAX_LATENESS_US, MAX_LATENESS_OF_P95 * p95_us)
            if late_us > allowed_us:
                limits.append(f"its lateness p99 is {late_us:,.0f} us, above {allowed_us:,.0f} us")
        if self.busy:
            limits.append(f"it used {percent(self.cpu_share)} of a core, above {percent(MAX_CPU_SHARE)}")
        return tuple(limits)

    @property
    def requested_rps(self) -> float:
        """Requests per second that a connection took."""
        sent = self.sent - self.errors.get(_NEVER_SENT, 0) - self.waiting
        return sent / self.sending_s if self.sending_s > 0 else 0.0

    @property
    def shortfall(self) -> str:
        """Why fewer requests were sent than were to be; empty where all were, and in a closed loop."""
        if self.spec.closed_loop or not self.sent:
            return ""
        due_rps = self.sent / min(self.sending_s, self.spec.schedule_s)
        if self.requested_rps >= GENERATED * due_rps:
            return ""
        rates = f"of {due_rps:,.0f} req/s only {self.requested_rps:,.0f} req/s could be sent"
        if self.client_limits:
            return f"{rates}, as this load generator is too slow ({'; '.join(self.client_limits)})"
        return f"{rates}, as the server did not answer soon enough"

    @property
    def remedy(self) -> str:
        """What to do about a shortfall."""
        if self.client_limits:
            return "use a lower --rate, a CPU of its own (taskset), or several generators"
        return "use a lower --rate, or more --connections or --pipeline"

    @property
    def busy(self) -> bool:
        """More of a core was used than lets the numbers be believed."""
        return self.cpu_share > MAX_CPU_SHARE

    def to_json(self) -> dict[str, object]:
        """The result as JSON values; times in microseconds, buckets by number (value: 2 g^n / (g + 1), g = gamma)."""
        return {
            "target": self.spec.target_text,
            "loop": "closed" if self.spec.closed_loop else "open",
            "schedule": [
                {"rate_rps": None if self.spec.closed_loop else phase.rate_rps, "duration_s": phase.duration_s}
                for phase in self.spec.schedule
            ],
            "warmup_s": self.spec.warmup_s,
            "connections": self.spec.connections,
            "pipeline": self.spec.pipeline,
            "seed": self.spec.seed,
            "timeout_s": self.spec.timeout_s,
            "duration_s": self.duration_s,
            "offered_rps": self.spec.offered_rps,
            "requested_rps": self.requested_rps,
            "rate_rps": self.rate_rps,
            "sent": self.sent,
            "answered": self.answered,
            "errors": dict(sorted(self.errors.items())),
            "events": dict(sorted(self.events.items())),
            **percentiles_us(self.histogram),
            "mean_us": self.mean_us,
            "max_us": self.max_us,
            "lateness": {**percentiles_us(self.lateness), "max_us": self.lateness_max_us},
            "cpu_s": self.cpu_s,
            "cpu_share": self.cpu_share,
            "client_limited": bool(self.client_limits),
            "client_limits": list(self.client_limits),
            "shortfall": self.shortfall,
            "histogram": {"gamma": GAMMA, "relative_error": RELATIVE_ERROR, "buckets": _buckets(self.histogram)},
            "intervals": [_interval_json(interval) for interval in self.intervals],
        }


def percentiles_us(histogram: Histogram) -> dict[str, float | None]:
    """``p50_us``, ``p95_us`` and ``p99_us``, None without samples."""
    return {f"p{percentile}_us": histogram.percentile_us(percentile) for percentile in PERCENTILES}


def _buckets(histogram: Histogram) -> dict[str, int]:
    return {str(bucket): histogram.buckets[bucket] for bucket in sorted(histogram.buckets)}


def _interval_json(interval: IntervalResult) -> dict[str, object]:
    return {
        "start_s": interval.start_s,
        "end_s": interval.end_s,
        "end_epoch_s": interval.end_epoch_s,
        "rate_rps": interval.rate_rps,
        "sent": interval.sent,
        "answered": interval.answered,
        "errors": dict(sorted(interval.errors.items())),
        **percentiles_us(interval.histogram),
        "lateness": percentiles_us(interval.lateness),
        "buckets": _buckets(interval.histogram),
    }
