"""What the keeper of the cache knows of a host at a tick, and what it reports of it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from manager.control.cache_demand import Placed, domains_of
from manager.control.cache_plan import HELD_GROUP, CachePlan, PlannedGroup
from manager.control.monitoring import UNMEASURED, Measured
from manager.errors import HostError, VmVanished
from manager.host.port import CachePort
from manager.loop.apply import Outcome
from manager.loop.observer import Observation
from manager.model.cache import DEFAULT, BandwidthResource, Group, Mask, Resctrl, Schemata, format_schemata, is_ours
from manager.model.cpus import CpuSet
from manager.model.decision import BandwidthGoal, Snapshot, WaysGoal
from manager.model.fields import as_text
from manager.model.host import VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import CacheControl, HostSpec, Mode, VmSpec
from manager.protocol.report import CachePart


def wants_cache(host: HostSpec) -> bool:
    """Whether the cache of a host is to be divided, if only in mode observe."""
    return host.cache is CacheControl.ON and host.mode is not Mode.RELEASED


@dataclass(frozen=True, slots=True)
class CacheDecided:
    """What a policy decided of cache and memory bandwidth, see ``Decision``."""

    ways: tuple[WaysGoal, ...] = ()
    bandwidths: tuple[BandwidthGoal, ...] | None = None
    on_trial: bool = False


NOTHING_DECIDED = CacheDecided()


@dataclass(frozen=True, slots=True)
class CacheSeen:
    """What a tick knows. By domain UUID: all that ``running``, those managed, and where their vCPUs may run.

    ``unread``: some managed VM could not be read. ``only``: nothing but the VM of that name is taken out of our groups.
    The applications of the snapshot ask for what the policy gives them; ``whys`` says why, by application. ``held``:
    whose memory bandwidth it limits; None: it leaves that to the agent. ``on_trial``: it judges a change of its own.
    """

    snapshot: Snapshot
    running: Mapping[str, VmInstance]
    specs: Mapping[str, VmSpec]
    names: Mapping[str, str | None]
    cpus: Mapping[str, CpuSet]
    undo_reason: str
    unread: bool = False
    only: str | None = None
    whys: Mapping[str, str] = field(default_factory=dict)
    held: tuple[BandwidthGoal, ...] | None = None
    on_trial: bool = False

    @property
    def wanted(self) -> bool:
        """Whether the cache is to be divided here."""
        return wants_cache(self.snapshot.host)


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """A group of ours, or the default one, after the tick: see ``CacheGroup``, which it is reported as."""

    name: str
    applications: tuple[str, ...]
    vms: tuple[str, ...]
    values: Schemata
    parts: tuple[CachePart, ...] = ()
    external: bool = False
    bandwidth: str = ""


@dataclass(frozen=True, slots=True)
class CacheResult:
    """What a tick did about the cache. ``offered`` None: it cannot be divided. ``groups_of_others`` counts them."""

    outcomes: tuple[Outcome, ...] = ()
    offered: Resctrl | None = None
    groups: tuple[GroupSeen, ...] = ()
    notes: tuple[str, ...] = ()
    groups_of_others: int = 0
    owned: int = 0
    measured: Measured = UNMEASURED
    problems: tuple[Problem, ...] = ()


NOTHING = CacheResult()
_MORE_THAN_ANY = 1000
"""No cache has so many ways; who asks for more than there are gets all that there are to give."""
_EMPTY = PlannedGroup(DEFAULT, (), frozenset(), {})


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The groups as they are, and in which of them the threads of each domain are."""

    seen: CacheSeen
    offered: Resctrl
    present: Mapping[str, Group]
    homes: Mapping[str, frozenset[str]]
    external: Mapping[str, int]
    domains: Mapping[int, CpuSet]

    @property
    def of_others(self) -> int:
        """How many groups are of others."""
        return sum(group.of_others for group in self.present.values())

    @property
    def changed(self) -> dict[str, Group]:
        """The groups that steps may be about."""
        return {name: group for name, group in self.present.items() if name == DEFAULT or name not in self.external}

    @property
    def avoided(self) -> dict[str, Group]:
        """The same with those that another tool changed among the groups of others, whose ways are avoided."""
        changed = self.changed
        others = {f"?{name}": group for name, group in self.present.items() if name not in changed}
        return changed | {name: replace(group, name=name) for name, group in others.items()}

    @property
    def bandwidth(self) -> BandwidthResource | None:
        """By which VMs are held back; None where they cannot be."""
        return next((resource for resource in self.offered.bandwidths if HELD_GROUP not in self.external), None)

    @property
    def placed(self) -> dict[str, Placed]:
        """The managed VMs that may be moved, by name."""
        caches = self.offered.divided[:1]
        none = frozenset[int]()
        return {
            spec.name: Placed(
                uuid, none.union(*(domains_of(self.seen.cpus[uuid], self.domains, cache) for cache in caches))
            )
            for uuid, spec in self.seen.specs.items()
            if uuid in self.homes and not self.stays(uuid)
        }

    def stays(self, uuid: str) -> bool:
        """Whether a VM is in a group of others, or of one that another tool changed."""
        return any(name != DEFAULT and (name in self.external or not is_ours(name)) for name in self.homes[uuid])

    def left_there(self) -> Iterator[str]:
        """Managed VMs that are in groups of others."""
        for uuid, spec in self.seen.specs.items():
            others = sorted(name for name in self.homes.get(uuid, ()) if name != DEFAULT and not is_ours(name))
            if others:
                yield f"{spec.name} is in resctrl group {others[0]}, which another tool made: it is left there"

    def groups(self, plan: CachePlan, present: Mapping[str, Group]) -> Iterator[GroupSeen]:
        """Ours and the default one among those that are ``present`` after the steps of a plan."""
        divided = self.offered.divided[0].name if self.offered.caches else ""
        for name, group in present.items():
            if group.of_others:
                continue
            planned = plan.groups.get(name, _EMPTY)
            external = name in self.external
            uuids = {uuid for uuid, names in self.homes.items() if name in names} if external else planned.vms
            vms = sorted(self.seen.specs[uuid].name for uuid in uuids if uuid in self.seen.specs)
            masks = {slot.domain: Mask(value) for slot, value in group.values.items() if slot.resource == divided}
            yield GroupSeen(
                as_text(name),
                planned.apps,
                tuple(vms) if name else (),
                group.values,
                # Data and code have the same ways.
                tuple(CachePart(domain=of, ways=mask.ways, mask=str(mask)) for of, mask in sorted(masks.items())),
                external,
                _bandwidth_text(group.values, self.offered),
            )


def _bandwidth_text(values: Schemata, offered: Resctrl) -> str:
    """To which least of its domains' limits the memory traffic of a group is held; empty where it is not."""
    for resource in offered.bandwidths[:1]:
        held = [value for slot, value in values.items() if slot.resource == resource.name and value < resource.most]
        if held:
            return resource.unit.in_words(min(held))
    return ""


def cache_seen(
    seen: Observation,
    written: Mapping[str, Mapping[KnobKey, KnobValue]],
    undo_reason: str,
    only: str | None = None,
    decided: CacheDecided = NOTHING_DECIDED,
) -> CacheSeen:
    """What a tick knows, after it wrote ``written`` (by domain UUID), with what the policy ``decided``."""
    ways = decided.ways
    reading, specs = seen.reading, seen.specs
    unread = reading.errors.keys()
    readable = {uuid: instance for uuid, instance in seen.running.items() if uuid not in unread}
    readable |= {uuid: reading.states[uuid].instance for uuid in specs}
    cpus = {uuid: _cpus({**reading.knobs[uuid], **written.get(uuid, {})}) for uuid in specs}
    whys = {goal.application: goal.reason for goal in ways}
    snapshot = _asking(seen.snapshot, ways) if ways else seen.snapshot
    unread_vm = bool(unread - {"host"})
    held, on_trial = decided.bandwidths, decided.on_trial
    return CacheSeen(snapshot, readable, specs, seen.names, cpus, undo_reason, unread_vm, only, whys, held, on_trial)


def _asking(snapshot: Snapshot, ways: Collection[WaysGoal]) -> Snapshot:
    """Each application that the policy gives ways asks for these in place of what is registered for it."""
    wishes = {goal.application: f"{min(goal.ways, _MORE_THAN_ANY)} ways" for goal in ways}
    applications = tuple(
        replace(view, application=replace(view.application, cache=wishes.get(view.application.name)))
        if view.application.name in wishes
        else view
        for view in snapshot.applications
    )
    return replace(snapshot, applications=applications)


def _cpus(knobs: Mapping[KnobKey, KnobValue]) -> CpuSet:
    """Those that vCPUs may run on."""
    pinned = (value for key, value in knobs.items() if key.knob is Knob.VCPU_PIN)
    return frozenset(cpu for cpus in pinned if isinstance(cpus, frozenset) for cpu in cpus)


def group_text(name: str, values: Schemata) -> str:
    """A group as records write it."""
    return f"{name or 'default group'} {'; '.join(format_schemata(values).splitlines())}".strip()


def homes_of(
    port: CachePort, seen: CacheSeen, present: Mapping[str, Group]
) -> tuple[dict[str, frozenset[str]], tuple[Problem, ...]]:
    """The groups in which each managed VM has threads, and each other VM that has some in ours; and who is unread."""
    tasks = {name: port.tasks(name) for name in present if name != DEFAULT}
    strays = frozenset().union(*(tids for name, tids in tasks.items() if is_ours(name)))
    others = (uuid for uuid in seen.running if uuid not in seen.specs)
    homes: dict[str, frozenset[str]] = {}
    problems: list[Problem] = []
    for uuid in (*seen.specs, *others):
        if uuid not in seen.specs and not strays:
            break
        instance = seen.running[uuid]
        try:
            threads = port.threads(instance)
            names = _names(threads, tasks)
            if len(names) > 1:  # some may have ended
                threads = port.threads(instance, afresh=True)
                names = _names(threads, tasks)
        except VmVanished:
            continue
        except HostError as error:
            problems.append(Problem(ProblemKind.CACHE, f"{seen.names.get(uuid) or instance.libvirt_name}: {error}"))
            continue
        strays -= threads
        if uuid in seen.specs or any(map(is_ours, names)):
            homes[uuid] = names
    return homes, tuple(problems)


def _names(threads: frozenset[int], tasks: Mapping[str, frozenset[int]]) -> frozenset[str]:
    names = {name for name, tids in tasks.items() if not threads.isdisjoint(tids)}
    return frozenset(names | ({DEFAULT} if threads.difference(*tasks.values()) else set()))
