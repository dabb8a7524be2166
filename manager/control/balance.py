"""Balance: which VM should leave a host whose SLAs are violated persistently, and where may it go? Pure.

Nothing moves because hosts are unequally full: a migration needs a violation that lasts and that other VMs on the host
cause, room at the destination, and a prediction that it helps. Of VMs whose demand is near the excess one is drawn at
random, as Katalyst does (katalyst-core#873): the largest would be the same service again and again. The cool-down
doubles with each migration of a day, as that of OpenShift's descheduler does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from manager.control.consolidation import Consolidation
from manager.model.migration import MigrationUse, MovePrediction
from manager.model.numbers import digits
from manager.model.registration import Mode, VmClass
from manager.model.verdict import VerdictKind

CAUSED_BY_OTHERS = frozenset({VerdictKind.HOST_FULL, VerdictKind.NEIGHBOUR})
"""Causes that go away with a VM; of others a migration changes nothing, or nothing that can be predicted."""
WORSE_BY = 1.05
"""A percentile that is so many times what it was is worse."""
_LEAST_EXCESS_PCPUS = 0.1


@dataclass(frozen=True, slots=True)
class BalanceRules:
    """When a migration is proposed.

    A violation lasts when ``violated_share`` of the judged intervals of ``lasting_s`` seconds were violated. A
    destination keeps the part ``margin`` of its pCPUs free of critical VMs' demand, and stays as much emptier than the
    source. The percentile has to fall below its target, or by the part ``better_by``. VMs whose demand differs from
    the excess by up to the part ``near`` more than the nearest one does are alike. After a migration, also one that
    failed or was dismissed, its VM and hosts rest for ``cooldown_s``, or for as long as it took, doubled for each
    further one within ``remembered_s``, at most ``most_cooldown_s``.
    """

    lasting_s: float = 600.0
    violated_share: float = 0.5
    margin: float = 0.1
    better_by: float = 0.2
    near: float = 0.5
    cooldown_s: float = 900.0
    most_cooldown_s: float = 21_600.0
    remembered_s: float = 86_400.0
    candidates: int = 3
    destinations: int = 2


@dataclass(frozen=True, slots=True)
class MovableVm:
    """A VM on a host; it wants ``wants_pcpus`` (CPU seconds a second). ``bound``: why it cannot move, empty: it can."""

    name: str
    vm_class: VmClass
    vcpus: int
    wants_pcpus: float
    application: str | None = None
    bound: str = ""


@dataclass(frozen=True, slots=True)
class BalancedHost:
    """A host with its VMs. ``reports``: its agent does; ``violated``: an SLA of an application there is."""

    name: str
    pcpus: int
    mode: Mode
    use: MigrationUse
    reports: bool
    violated: bool
    vms: tuple[MovableVm, ...] = ()

    @property
    def load(self) -> Consolidation:
        """What its VMs want."""
        wanted = {kind: sum(vm.wants_pcpus for vm in self.vms if vm.vm_class is kind) for kind in VmClass}
        return Consolidation(self.pcpus, wanted[VmClass.CRITICAL], wanted[VmClass.BATCH])


@dataclass(frozen=True, slots=True)
class LastingViolation:
    """An application that violates its SLA on ``host`` since ``since_s`` (epoch). ``neighbour``: what causes it."""

    application: str
    host: str
    since_s: float
    verdict: VerdictKind
    neighbour: str | None = None


@dataclass(frozen=True, slots=True)
class PastMigration:
    """A proposal that is over at ``ended_s`` (epoch), and how many seconds the migration took; 0: it never began."""

    vm: str
    source: str
    destination: str
    ended_s: float
    took_s: float = 0.0

    @property
    def of(self) -> frozenset[str]:
        """What rests afterwards."""
        return frozenset({f"vm {self.vm}", f"host {self.source}", f"host {self.destination}"})


def lasts(judged: int, violated: int, rules: BalanceRules) -> bool:
    """Whether so many violated of so many judged intervals of ``lasting_s`` seconds are a violation that lasts."""
    return judged > 0 and violated >= rules.violated_share * judged


def resting(past: Sequence[PastMigration], now_s: float, rules: BalanceRules) -> frozenset[str]:
    """What still rests: `vm NAME` and `host NAME`.

    What ended further ahead than a cool-down does not count: the clock was set back since.
    """
    recent = [each for each in past if -rules.cooldown_s < now_s - each.ended_s < rules.remembered_s]
    subjects = frozenset().union(*(each.of for each in recent))
    return frozenset(
        subject for subject in subjects if now_s < _rests_until_s([e for e in recent if subject in e.of], rules)
    )


def _rests_until_s(past: Sequence[PastMigration], rules: BalanceRules) -> float:
    last = max(past, key=lambda each: each.ended_s)
    cooldown_s = max(rules.cooldown_s, last.took_s) * 2.0 ** (len(past) - 1)
    return last.ended_s + min(cooldown_s, rules.most_cooldown_s)


def excess_pcpus(host: BalancedHost, violation: LastingViolation, rules: BalanceRules) -> float:
    """The demand (CPU seconds a second) that should leave: the neighbour's, or what is beyond the margin."""
    load = host.load
    beyond = load.critical_pcpus + load.batch_pcpus - host.pcpus * (1 - rules.margin)
    excess = next((vm.wants_pcpus for vm in host.vms if vm.name == violation.neighbour), beyond)
    return max(excess, _LEAST_EXCESS_PCPUS)


def candidates(
    host: BalancedHost,
    violation: LastingViolation,
    rest: Collection[str],
    rules: BalanceRules,
    draw: Random,
) -> tuple[MovableVm, ...]:
    """VMs that may leave, in the order in which they are tried: near the excess by chance, then the next nearest."""
    excess = excess_pcpus(host, violation, rules)
    movable = [vm for vm in host.vms if not vm.bound and vm.wants_pcpus > 0 and f"vm {vm.name}" not in rest]
    if not movable or f"host {host.name}" in rest:
        return ()

    def distance(vm: MovableVm) -> float:
        return abs(vm.wants_pcpus - excess) / excess

    nearest = min(map(distance, movable))
    near = sorted((vm for vm in movable if distance(vm) <= nearest + rules.near), key=lambda vm: vm.name)
    draw.shuffle(near)
    others = sorted((vm for vm in movable if vm not in near), key=lambda vm: (distance(vm), vm.name))
    return (*near, *others)[: rules.candidates]


def destinations(
    vm: MovableVm, source: BalancedHost, hosts: Sequence[BalancedHost], rest: Collection[str], rules: BalanceRules
) -> tuple[BalancedHost, ...]:
    """Hosts with room for a VM, the emptiest first."""
    critical = vm.vm_class is VmClass.CRITICAL
    most = source.load.total - rules.margin
    found = []
    for host in hosts:
        after = host.load.with_vm(critical, vm.wants_pcpus) if host.pcpus else None
        if (
            host.name != source.name
            and after is not None
            and host.reports
            and host.mode is Mode.ENFORCE
            and host.use is not MigrationUse.OFF
            and not host.violated
            and f"host {host.name}" not in rest
            and vm.vcpus <= host.pcpus
            and after.critical <= 1 - rules.margin
            and after.total <= most
        ):
            found.append((after.total, host.name, host))
    return tuple(host for *_, host in sorted(found, key=lambda each: each[:2]))[: rules.destinations]


def objections(predictions: Sequence[MovePrediction], application: str, rules: BalanceRules) -> Iterator[str]:
    """Why a migration for an application should not be, none where it should."""
    helped = [each for each in predictions if each.application == application]
    for each in predictions:
        what, after, before = f"p{each.percentile:g} of {each.application} on {each.host}", each.after, each.before
        if after is None:
            yield f"{each.application} would answer nothing"
        elif each in helped:
            enough_ms = max(each.target_ms, (1 - rules.better_by) * before.ms if before else 0.0)
            if after.high_ms > each.target_ms and after.ms > enough_ms:
                yield f"{what} would be {digits(after.ms)} ms, above {each.target_ms:g} ms, which helps too little"
        elif after.high_ms > each.target_ms and (before is None or after.ms > WORSE_BY * before.ms):
            yield f"{what} would be up to {digits(after.high_ms)} ms, above {each.target_ms:g} ms"


def sources_of(
    violations: Sequence[LastingViolation], hosts: Mapping[str, BalancedHost], busy: Collection[str]
) -> tuple[LastingViolation, ...]:
    """The violations for which a migration is looked for: the longest of each host; none of hosts that are ``busy``."""
    longest: dict[str, LastingViolation] = {}
    for violation in sorted(violations, key=lambda each: (each.since_s, each.application)):
        host = hosts.get(violation.host)
        if (
            host is not None
            and host.reports
            and host.use is not MigrationUse.OFF
            and host.name not in busy
            and violation.verdict in CAUSED_BY_OTHERS
        ):
            longest.setdefault(host.name, violation)
    return tuple(longest.values())
