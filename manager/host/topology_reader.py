"""Reads a host's topology from sysfs and procfs.

Every file but the list of online CPUs may be missing, as in containers, guests and odd kernels, and a malformed one
counts as missing: then that one field is what ``Topology.flat`` makes of it. It costs some hundred reads, so it
belongs to the start and to changes of the online list, not to each tick.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from manager.errors import HostError
from manager.host.knob_files import AFFINITY_FILE
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, parse_cpus
from manager.model.topology import NicQueue, Pcpu, Topology

_INDEX = re.compile(r"^index\d+$")
_NODE = re.compile(r"^node(\d{1,9})$")
_VIRTIO = re.compile(r"^virtio\d+$")
# Vectors for a device's own affairs, by drivers' names: virtio2-config, mlx5_async0@pci:0000:3b:00.0,
# i40e-0000:60:00.0:misc, iavf-0000:60:02.0:mbx, ena-mgmnt@pci:0000:00:05.0, enp3s0-event-8, ens4np0-lsc, mana_hwc@pci:…
_CONTROL = re.compile(
    r"(?<![a-z])(config|control|ctrl|async|cmd|pages|misc|mbx|mailbox|mgmnt|mgmt|event|fweventq|lsc|exn|err|notify|hwc)"
    r"(?![a-z])",
    re.IGNORECASE,
)
# Capacities count as equal up to the factor by which the scheduler does: kernel/sched/fair.c, capacity_greater()
_MARGIN_NUMERATOR, _MARGIN_DENOMINATOR = 1078, 1024


def discover(paths: HostPaths) -> Topology:
    """The online CPUs and the interrupts of network interfaces, as they are now.

    Raises HostError when the list of online CPUs cannot be read or is empty.

    The last-level cache is the L3. Without one it is the outermost cache that several cores share, such as the L2 of a
    cluster; where none is, or none is known, the CPUs of one socket and memory node stand for it.

    Isolated are the CPUs of isolcpus=. Those of nohz_full= alone are not: the kernel still balances load onto them.
    Nor does this file tell of cpusets that became isolated partitions later.
    """
    online = _online(paths)
    cores = _cores(paths, online)
    packages = {core: _number(paths.cpu(core) / "topology/physical_package_id") or 0 for core in set(cores.values())}
    nodes = _nodes(paths)
    places = {cpu: (packages[cores[cpu]], nodes.get(cpu, 0)) for cpu in online}
    caches = _caches(paths, cores, places)
    capacities = _capacities(paths, online)
    isolated = _cpus(paths.isolated_cpus) or frozenset()
    cpus = tuple(
        Pcpu(cpu, cores[cpu], *places[cpu], caches[cpu], capacities.get(cpu, 1.0), cpu in isolated)
        for cpu in sorted(online)
    )
    return Topology(cpus, _queues(paths, online))


def _online(paths: HostPaths) -> CpuSet:
    """Raises HostError when it cannot be read or is empty."""
    try:
        online = parse_cpus(paths.online_cpus.read_text("ascii"))
    except (OSError, ValueError) as error:
        raise HostError(f"the online CPUs cannot be read: {error}") from error
    if not online:
        raise HostError(f"{paths.online_cpus} names no CPU")
    return online


def _cores(paths: HostPaths, online: CpuSet) -> dict[int, int]:
    def siblings(cpu: int) -> CpuSet | None:
        folder = paths.cpu(cpu) / "topology"
        threads = _cpus(folder / "core_cpus_list")
        return threads if threads is not None else _cpus(folder / "thread_siblings_list")  # before Linux 5.3

    return {cpu: cpu for cpu in online} | _domains(online, siblings)


def _domains(online: CpuSet, sharing: Callable[[int], CpuSet | None]) -> dict[int, int]:
    """The lowest CPU of the domain that each CPU is in; ``sharing`` names a CPU's domain, None where it is not known.

    Asked for one CPU of each domain only. CPUs that no domain names are left out.
    """
    lowest: dict[int, int] = {}
    for cpu in sorted(online):
        members = None if cpu in lowest else sharing(cpu)
        if members is not None and cpu in members:
            first = min(members & online)
            lowest = dict.fromkeys(members & online, lowest.get(first, first)) | lowest
    return lowest


def _nodes(paths: HostPaths) -> dict[int, int]:
    numbers = sorted((int(match[1]) for match in map(_NODE.match, _names(paths.nodes)) if match), reverse=True)
    return {cpu: number for number in numbers for cpu in _cpus(paths.nodes / f"node{number}" / "cpulist") or ()}


def _caches(paths: HostPaths, cores: Mapping[int, int], places: Mapping[int, tuple[int, int]]) -> dict[int, int]:
    online = frozenset(cores)

    def sharing(cpu: int) -> CpuSet | None:
        levels = {level: folder for level, folder in _cache_folders(paths, cpu) if level >= 2}
        for level in sorted(levels, key=lambda level: (level == 3, level), reverse=True):
            shared = _cpus(levels[level] / "shared_cpu_list") or frozenset()
            if cpu in shared and (level >= 3 or len({cores[sharer] for sharer in shared & online}) > 1):
                return shared
        return None

    caches = _domains(online, sharing)
    rest: dict[tuple[int, int], int] = {}
    for cpu in sorted(online - caches.keys()):
        caches[cpu] = rest.setdefault(places[cpu], cpu)
    return caches


def _cache_folders(paths: HostPaths, cpu: int) -> Iterator[tuple[int, Path]]:
    """Level and folder of each cache of a CPU that is not for instructions alone."""
    folder = paths.cpu(cpu) / "cache"
    for name in filter(_INDEX.match, _names(folder)):
        level = _number(folder / name / "level")
        if level is not None and _text(folder / name / "type") != "Instruction":
            yield level, folder / name


def cache_domains(paths: HostPaths, level: int) -> dict[int, CpuSet]:
    """The online CPUs that share each cache of a level, by its id, as resctrl's domains are called.

    Of those CPUs only that have one, Documentation/ABI/testing/sysfs-devices-system-cpu. Raises HostError.
    """
    domains: dict[int, CpuSet] = {}
    for cpu in sorted(_online(paths)):
        for at, folder in _cache_folders(paths, cpu):
            identity = _number(folder / "id") if at == level else None
            if identity is not None:
                domains[identity] = domains.get(identity, frozenset()) | {cpu}
    return domains


def _capacities(paths: HostPaths, online: CpuSet) -> dict[int, float]:
    """What is known of CPUs' speed relative to the fastest.

    The kernel's cpu_capacity where it makes a difference, else the maximum frequency, and that only between the core
    types of hybrid processors: it tells nothing of the work per cycle, and a processor's equal cores have different
    ones as well (favoured cores). All CPUs of a type are as fast as the fastest of them.
    """
    types = [cpus & online for cpus in map(_cpus, paths.core_types) if cpus]
    speeds = {cpu: _number(paths.cpu(cpu) / "cpu_capacity") for cpu in online}
    # hybrid x86 processors with SMT have 1024 everywhere as well: drivers/cpufreq/intel_pstate.c
    if len({speed for speed in speeds.values() if speed}) < 2:
        speeds = {cpu: _number(paths.cpu(cpu) / "cpufreq/cpuinfo_max_freq") for kind in types for cpu in kind}
    known = {cpu: speed for cpu, speed in speeds.items() if speed}
    for kind in types:
        alike = kind & known.keys()
        known.update(dict.fromkeys(alike, max((known[cpu] for cpu in alike), default=0)))
    if not known:
        return {}
    steps: dict[int, int] = {}
    fastest = step = max(known.values())
    for speed in sorted(set(known.values()), reverse=True):
        if speed * _MARGIN_NUMERATOR < step * _MARGIN_DENOMINATOR:
            step = speed
        steps[speed] = step
    return {cpu: steps[speed] / fastest for cpu, speed in known.items()}


def _queues(paths: HostPaths, online: CpuSet) -> tuple[NicQueue, ...]:
    """Interrupts of interfaces that have hardware, without those that carry no packets as far as their names tell.

    One that several interfaces share is listed once. ``managed`` follows from the mode of smp_affinity_list, which
    recent kernels make read-only then (kernel/irq/proc.c, register_irq_proc(); seen with 6.18). Older ones do not
    tell: there only a write shows it, failing with EIO or EPERM. An interrupt of which no affinity can be read is left
    out.
    """
    sharers: dict[Path, list[str]] = defaultdict(list)
    for name in sorted(_names(paths.interfaces)):
        link = paths.interfaces / name / "device"
        if os.path.exists(link):  # noqa: PTH110, Path.exists raises for some errors
            device = Path(os.path.realpath(link))
            sharers[device.parent if _VIRTIO.match(device.name) else device].append(name)
    queues: dict[int, NicQueue] = {}
    for device, names in sharers.items():
        for irq, actions in _vectors(paths, device, names).items():
            parts = [f"-{action}-" for action in actions]
            interface = next((name for name in names if any(f"-{name}-" in part for part in parts)), names[0])
            queue = _queue(paths, irq, interface, online)
            if queue is not None:
                queues.setdefault(irq, queue)
    return tuple(queues[irq] for irq in sorted(queues))


def _vectors(paths: HostPaths, device: Path, interfaces: Sequence[str]) -> dict[int, list[str]]:
    """Interrupts of a device that seem to be queues, with the names of their handlers ([]: not known).

    Names come from sysfs: /proc/interrupts has them, too, but a column for each CPU as well, megabytes on large hosts.
    """
    vectors = {int(name) for name in _names(device / "msi_irqs") if name.isascii() and name.isdecimal()}
    if not vectors:
        vectors = {irq for irq in [_number(device / "irq")] if irq}
    actions_of = {irq: _text(paths.irq_actions(irq)) for irq in sorted(vectors)}
    handled = {irq: text.split(",") if text else [] for irq, text in actions_of.items() if text != ""}
    names = [name for actions in handled.values() for name in actions]
    beginnings = {name[: dash.start()] for name in names for dash in re.finditer("-", name)}

    def carries_packets(name: str) -> bool:
        bare = name in beginnings  # eth0 beside eth0-TxRx-0: link changes and such
        for interface in interfaces:
            name = name.replace(interface, "")
        return not bare and not _CONTROL.search(name)

    return {irq: actions for irq, actions in handled.items() if not actions or any(map(carries_packets, actions))}


def _queue(paths: HostPaths, irq: int, interface: str, online: CpuSet) -> NicQueue | None:
    file = paths.irq(irq) / AFFINITY_FILE
    allowed = _cpus(file)
    # empty where the interrupt controller does not keep it
    serving = _cpus(paths.irq(irq) / "effective_affinity_list") or allowed
    if serving is None:
        return None
    try:
        managed = not file.stat().st_mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)
    except OSError:
        managed = False
    return NicQueue(interface, irq, (serving if allowed is None else allowed) & online, serving & online, managed)


def _names(folder: Path) -> Iterable[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208, names are all that is needed
    except OSError:
        return ()


def _text(path: Path) -> str | None:
    try:
        with path.open("rb", buffering=0) as file:  # half the time of read_text, and there are many
            return file.read().decode("ascii").strip()
    except (OSError, ValueError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text and text.isdecimal() and len(text) < 10 else None


def _cpus(path: Path) -> CpuSet | None:
    text = _text(path)
    try:
        return None if text is None else parse_cpus(text)
    except ValueError:
        return None
