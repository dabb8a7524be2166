"""What interference tables are made of: minutes of an application, with what batch VMs beside it wanted and got. Pure.

Of each class of batch VMs and each rate of requests, in steps of 10 %, the newest minutes are kept: so a load that is
rare does not get lost among nights.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from manager.control.batch_progress import LEAST_PCPUS
from manager.control.budget import Period
from manager.control.interference_table import MeasuredMinute, batch_class
from manager.control.series import VmLines
from manager.model.registration import VmClass

MAX_AGE_S = 30 * 86_400.0
"""Older minutes do not count."""
MOST_ALIKE = 40
"""Minutes that are kept of one class of batch VMs and one rate."""
MOST_MINUTES = 4000
"""And in all."""
_RATE_STEP = math.log(1.1)


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """What a batch VM can use at most: all its vCPUs, and ``alone_pcpus`` where it is known what it uses alone."""

    vcpus: int
    alone_pcpus: float | None = None


class _Used(NamedTuple):
    """CPU seconds a second that batch VMs got, and that they would use if each were alone."""

    got: float
    wanted: float


@dataclass(frozen=True, slots=True)
class HostPast:
    """A host of ``pcpus`` over the minutes of a history: lines of all its VMs, and limits of its batch VMs by name.

    ``used``: by its batch VMs together, in each minute.
    """

    host_type: str
    pcpus: int
    lines: Sequence[VmLines]
    limits: Mapping[str, BatchLimit]
    used: Sequence[_Used] = field(init=False)

    def __post_init__(self) -> None:
        # Once for all applications that ran there.
        count = max((len(line.cpu_share) for line in self.lines), default=0)
        object.__setattr__(self, "used", [_sum(_batch_vms(self, place)) for place in range(count)])


@dataclass(frozen=True, slots=True)
class SortedMinutes:
    """The minutes that count by type of host, and how many do not, by the reason."""

    by_type: Mapping[str, Sequence[MeasuredMinute]]
    left_out: Mapping[str, int]


def measured_minutes(
    periods: Sequence[Period], hosts: Sequence[HostPast], vms: frozenset[str], percentile: float, unmeasured: int = 0
) -> SortedMinutes:
    """The minutes of an application that ``vms`` serve: of ``periods``, one a minute, and of hosts where it may run.

    ``unmeasured`` is how many minutes without a response time there were before. A minute counts where all hosts on
    which it ran are of one type. Of several hosts the one with the most batch load
    counts, and batch VMs of all of them lose together.
    """
    by_type: dict[str, list[MeasuredMinute]] = defaultdict(list)
    left_out: Counter[str] = Counter({"too few response times": unmeasured} if unmeasured else {})
    for place, period in enumerate(periods):
        rate_rps, percentile_ms = period.window.rate_rps, period.window.percentile_ms(percentile)
        if not period.judged or percentile_ms is None:
            left_out["too few response times"] += 1
            continue
        if not rate_rps:
            left_out["no request rate"] += 1
            continue
        serving = [host for host in hosts if any(_ran(line, place) for line in host.lines if line.vm in vms)]
        types = {host.host_type for host in serving}
        if len(types) != 1:
            left_out["its VMs ran on hosts of several types" if types else "no reports of its VMs"] += 1
            continue
        wanted, lost = _batch(serving, place)
        by_type[types.pop()].append(MeasuredMinute(period.start_s, rate_rps, percentile_ms, wanted, lost))
    return SortedMinutes(by_type, left_out)


def kept_minutes(minutes: Iterable[MeasuredMinute], now_s: float) -> list[MeasuredMinute]:
    """Those that are kept, oldest first. Of several of the same time the last one given counts."""
    newest_first = sorted({minute.start_s: minute for minute in minutes}.values(), reverse=True)
    alike: Counter[tuple[str, int]] = Counter()
    kept: list[MeasuredMinute] = []
    for minute in newest_first:
        cell = batch_class(minute.batch_wanted), math.floor(math.log(minute.rate_rps) / _RATE_STEP)
        if now_s - minute.start_s <= MAX_AGE_S and alike[cell] < MOST_ALIKE:
            alike[cell] += 1
            kept.append(minute)
    return kept[:MOST_MINUTES][::-1]


def _ran(line: VmLines, place: int) -> bool:
    return line.cpu_share[place] is not None


def _batch(hosts: Sequence[HostPast], place: int) -> tuple[float, float]:
    """The most that batch VMs want of a host, and the part of what all of them want that they lose."""
    most, all_got, all_wanted = 0.0, 0.0, 0.0
    for host in hosts:
        got, wanted = host.used[place]
        most = max(most, wanted / host.pcpus)
        all_got, all_wanted = all_got + got, all_wanted + wanted
    return most, max(1 - all_got / all_wanted, 0.0) if all_wanted >= LEAST_PCPUS else 0.0


def _sum(used: Iterable[_Used]) -> _Used:
    of_all = list(used)
    return _Used(sum(each.got for each in of_all), sum(each.wanted for each in of_all))


def _batch_vms(host: HostPast, place: int) -> Iterator[_Used]:
    for line in host.lines:
        share, waited = line.cpu_share[place], line.run_delay_share[place]
        if line.vm_class is not VmClass.BATCH or share is None:
            continue
        got, limit = share * host.pcpus, host.limits.get(line.vm)
        wanted = got + (waited or 0.0)
        if limit is not None:
            wanted = min(wanted, limit.vcpus, limit.alone_pcpus or math.inf)
        yield _Used(got, max(got, wanted))
