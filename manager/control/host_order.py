"""Which hosts a list shows, in which order and groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from manager.model.host_health import GlancedHost, HostHealth
from manager.model.registration import Mode

HostSort = Literal["worst", "name", "load"]
HostGroup = Literal["health", "policy", "mode"]

_WORST_FIRST = tuple(HostHealth)


@dataclass(frozen=True, slots=True)
class HostFilter:
    """Which hosts; None means any. ``search`` is a part of the name, in capitals or not."""

    search: str | None = None
    health: HostHealth | None = None
    policy: str | None = None
    mode: Mode | None = None

    def takes(self, host: GlancedHost) -> bool:
        """Whether a host is one of them."""
        return (
            (self.search is None or self.search.lower() in host.name.lower())
            and self.health in {None, host.health}
            and self.policy in {None, host.policy}
            and self.mode in {None, host.mode}
        )


def ordered(
    hosts: Iterable[GlancedHost], wanted: HostFilter, sort: HostSort = "worst", group: HostGroup | None = None
) -> list[GlancedHost]:
    """The hosts that are wanted: by group, then as sorted, then by name."""

    def place(host: GlancedHost) -> tuple[int | float | str, ...]:
        worst = _WORST_FIRST.index(host.health)
        groups: Mapping[HostGroup, int | str] = {"health": worst, "policy": host.policy, "mode": host.mode}
        load = 1.0 if host.load is None else -host.load  # the busiest first, and last of all those that never measured
        sorts: Mapping[HostSort, tuple[int | float, ...]] = {"worst": (worst,), "name": (), "load": (load,)}
        return (*([groups[group]] if group else ()), *sorts[sort], host.name)

    return sorted(filter(wanted.takes, hosts), key=place)


def count_health(hosts: Iterable[GlancedHost], wanted: HostFilter) -> dict[HostHealth, int]:
    """How many hosts are wanted, by health; that of ``wanted`` is disregarded."""
    others = replace(wanted, health=None)
    return dict.fromkeys(HostHealth, 0) | Counter(host.health for host in hosts if others.takes(host))


def count_groups(hosts: Sequence[GlancedHost], group: HostGroup) -> dict[str, dict[HostHealth, int]]:
    """How many of these are in each group, by health, the worst first; the groups in the order of the hosts."""
    groups: dict[str, Counter[HostHealth]] = {}
    for host in hosts:
        groups.setdefault(str(getattr(host, group)), Counter())[host.health] += 1
    return {value: {health: count[health] for health in HostHealth if count[health]} for value, count in groups.items()}
