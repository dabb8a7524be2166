"""resctrl as the kernel's: the tree, its errors and last_cmd_status, those of Linux 6.1, 6.12, 7.2 and 7.3 each.

Written after what those kernels answered to the operations in tests/host/resctrl, and run against these by
tests/host/test_resctrl_fake.py. A cache behind it there is not: it shows what the kernel accepts, never an effect.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from manager.model.cache import BandwidthResource, CacheResource, Mask, Slot, is_cache, union
from manager.model.cpus import CpuSet, format_cpus
from tests.fakes.resctrl_rules import Refused, parse_cpu_list, parse_cpu_mask, parse_number, parse_tasks, stage
from tests.fakes.resctrl_texts import COUNTERS, FakeGroup, info, lines

PAGE_BYTES = 4096
_WRITABLE = frozenset({"schemata", "mode", "tasks", "cpus", "cpus_list"})


def refuse(number: int) -> NoReturn:
    raise OSError(number, os.strerror(number))


@dataclass
class FakeFile:
    """A file that is held."""

    tree: FakeResctrl
    group: FakeGroup | None
    leaf: str
    writes: bool
    closed: bool = False

    def read(self) -> str:
        if self.closed or self.writes:
            refuse(errno.EBADF)
        if self.group is not None and self.group.removed:
            refuse(errno.ENODEV)
        return self.tree.text(self.group, self.leaf)

    def write(self, text: str) -> None:
        if self.closed or not self.writes:
            refuse(errno.EBADF)
        if self.group is None or self.group.removed:
            refuse(errno.ENODEV)
        self.tree.command(self.group, self.leaf, text)

    def close(self) -> None:
        self.closed = True
        self.tree.held.discard(id(self))


@dataclass
class FakeResctrl:
    """The file system of a machine with these resources.

    ``kernel``: 6.1, 6.12, 7.2, 7.3. ``cdp``: the L3 can be divided for code and data. ``rmids`` 0: no monitoring.
    ``tasks``: the group of each living thread; one is in the default group from its start.
    """

    caches: tuple[CacheResource, ...]
    bandwidths: tuple[BandwidthResource, ...] = ()
    kernel: str = "7.2"
    cdp: bool = False
    rmids: int = 0
    online: CpuSet = frozenset(range(4))
    mounted: frozenset[str] | None = frozenset({"rw"})
    tasks: dict[int, FakeGroup] = field(default_factory=dict)
    myself: int = 1
    status: str = "ok\n"
    held: set[int] = field(default_factory=set)
    before_command: Callable[[FakeGroup, str, str], None] = lambda group, leaf, text: None

    def __post_init__(self) -> None:
        self.root = FakeGroup("", self._fresh(), cpus=self.online)
        self.groups: dict[str, FakeGroup] = {"": self.root}

    # What a test does to the machine

    def start(self, *tids: int, by: int | None = None) -> None:
        """Threads start, in the default group or in that of the thread that started them."""
        for tid in tids:
            self.tasks[tid] = self.root if by is None else self.tasks[by]

    def use(self, tid: int, domain: int, **counters: int) -> None:
        """Memory traffic of a thread, in bytes by counter; ``llc_occupancy`` is what it has then."""
        held = self.tasks[tid].counters
        for name, amount in counters.items():
            before = held.get((domain, name), "0") if name != "llc_occupancy" else "0"
            held[domain, name] = str(int(before) + amount)

    def end(self, *tids: int) -> None:
        """Threads die."""
        for tid in tids:
            self.tasks.pop(tid, None)

    def group_of(self, tid: int) -> str:
        """The name of a thread's control group."""
        return self.tasks[tid].control.name

    # ResctrlTree

    def options(self) -> frozenset[str] | None:
        return self.mounted

    def mount(self, options: frozenset[str]) -> None:
        in_megabytes = "mba_MBps" in options
        if options - {"cdp", "cdpl2", "mba_MBps"} or (in_megabytes and not (self.bandwidths and self.rmids)):
            refuse(errno.EINVAL)
        if self.mounted is not None:
            refuse(errno.EBUSY)
        if "cdpl2" in options or ("cdp" in options and not self.cdp):
            refuse(errno.EINVAL)
        self.mounted = frozenset({"rw", *options})
        self.root.values = self._fresh()

    def unmount(self) -> None:
        if self.mounted is None:
            refuse(errno.EINVAL)
        if self.held:
            refuse(errno.EBUSY)
        for group in [group for group in self.groups.values() if group is not self.root]:
            self._drop(group)
        self.mounted, self.status = None, "ok\n"
        self.root.mode, self.root.monitored = "shareable", {}

    def open(self, path: str, *, write: bool = False) -> FakeFile:
        group, leaf = self._place(path)
        if leaf not in (info(self) if group is None else self._leaves(group)):
            refuse(errno.ENOENT)
        if write and (group is None or leaf not in _WRITABLE):
            refuse(errno.EACCES)
        file = FakeFile(self, group, leaf, write)
        self.held.add(id(file))
        return file

    def folders(self, path: str) -> list[str]:
        return sorted({name for name, is_folder in self.entries(path) if is_folder})

    def entries(self, path: str) -> Iterator[tuple[str, bool]]:
        """Names in a folder, and whether they are folders."""
        group, inside = self._place(f"{path}/" if path else "")
        files = info(self) if group is None else self._leaves(group)
        for file in files:
            if file.startswith(inside):
                name, slash, _ = file.removeprefix(inside).partition("/")
                yield name, bool(slash)
        if group is not None and self.rmids and group.above is None:
            yield from [("mon_groups", True)] if not inside else []
            yield from ((name, True) for name in group.monitored if inside == "mon_groups/")
        if group is self.root and not inside:
            yield "info", True
            yield from ((name, True) for name in self.groups if name)

    def _place(self, path: str) -> tuple[FakeGroup | None, str]:
        """The group that a path leads into, None for ``info``, and the path from there."""
        if self.mounted is None:
            refuse(errno.ENOENT)
        if path.startswith("info/"):
            return None, path
        first, slash, rest = path.partition("/")
        group = self.groups[first] if slash and first in self.groups else self.root
        inside = rest if group is not self.root else path
        kind, name, below = ([*inside.split("/", 2), "", ""])[:3]
        if kind == "mon_groups" and name:
            if name not in group.monitored:
                refuse(errno.ENOENT)
            return group.monitored[name], below
        if slash and group is self.root and first not in {"mon_data", "mon_groups"}:
            refuse(errno.ENOENT)
        if kind in {"mon_data", "mon_groups"} and not self.rmids:
            refuse(errno.ENOENT)
        return group, inside

    def _group(self, path: str) -> FakeGroup:
        group, inside = self._place(f"{path}/" if path else "")
        if group is None or inside:
            refuse(errno.ENOENT)
        return group

    def _leaves(self, group: FakeGroup) -> list[str]:
        domains = self.caches[0].domains if self.rmids else ()
        counters = [f"mon_data/mon_L3_{domain:02}/{name}" for domain in domains for name in COUNTERS]
        control = ["schemata", "size", "mode"] if group.above is None else []
        return ["tasks", "cpus", "cpus_list", *control, *counters]

    def make(self, path: str) -> None:
        self._place("")
        *above, name = path.split("/")
        if above[-1:] == ["mon_groups"] and self.rmids:
            self._make_monitored(self._group("/".join(above[:-1])), name)
        elif above == ["info"] and self.rmids and self.kernel == "7.3":
            refuse(errno.ENODEV)
        elif above:
            refuse(errno.EPERM if above[0] == "info" or above == [self._group(above[0]).name] else errno.ENOENT)
        elif name in dict(self.entries("")):
            refuse(errno.EEXIST)
        elif "\n" in name:
            refuse(errno.EINVAL)
        else:
            self._make_control(name)

    def remove(self, path: str) -> None:
        if path.rsplit("/", maxsplit=1)[-1] in {"info", "mon_data", "mon_groups"} or path.startswith("info/"):
            refuse(errno.EPERM)
        self._drop(self._group(path))
        self.status = "ok\n" if self.kernel >= "7.3" else self.status

    # Groups

    def _make_control(self, name: str) -> None:
        if self.kernel >= "7":
            self.status = "ok\n"
        if len(self.groups) >= min(self._closids()):
            self._say("Out of CLOSIDs\n")
            refuse(errno.ENOSPC)
        self._take_rmid()
        values = {slot: self._initial(slot) for slot in self._fresh()}
        for slot, value in values.items():
            cache = self.cache(slot.resource)
            if cache is not None and value.bit_count() < cache.minimum:
                self._say(f"No space on {slot.resource}:{slot.domain}\n")
                refuse(errno.ENOSPC)
        self.groups[name] = FakeGroup(name, values)

    def _make_monitored(self, above: FakeGroup, name: str) -> None:
        if name in above.monitored:
            refuse(errno.EEXIST)
        if self.kernel >= "7":
            self.status = "ok\n"
        self._take_rmid()
        above.monitored[name] = FakeGroup(name, above=above)

    def _take_rmid(self) -> None:
        used = sum(1 + len(group.monitored) for group in self.groups.values())
        if self.rmids and used >= self.rmids:
            self._say("Out of RMIDs\n")
            refuse(errno.ENOSPC)

    def _drop(self, group: FakeGroup) -> None:
        for below in list(group.monitored.values()):
            self._drop(below)
        goes_to = group.above or self.root
        self.tasks = {tid: goes_to if held is group else held for tid, held in self.tasks.items()}
        group.removed = True
        if group.above is not None:
            del group.above.monitored[group.name]
        else:
            del self.groups[group.name]
            self.root.cpus |= group.cpus

    def _initial(self, slot: Slot) -> int:
        """The value of a new group (__init_one_rdt_domain): for a mask the lowest run of what is shared or unused."""
        cache = self.cache(slot.resource)
        if cache is None:
            return self._fresh()[slot]
        shared = [Mask(group.values[slot]) for group in self.groups.values() if group.mode == "shareable"]
        used = [Mask(group.values[slot]) for group in self.groups.values()]
        free = union([cache.shareable, *shared]) | (cache.ways - union([cache.shareable, *used]))
        return next((run.bits for run in free.runs()), 0)

    def overlaps(self, group: FakeGroup, slot: Slot, mask: Mask, *, exclusive: bool) -> bool:
        """rdtgroup_cbm_overlaps: with other groups, only exclusive ones or any, then with other hardware too."""
        cache = self.cache(slot.resource)
        if not exclusive and cache is not None and not mask.disjoint(cache.shareable):
            return True
        others = [other for other in self.groups.values() if other is not group]
        return any(
            not mask.disjoint(Mask(other.values[slot]))
            for other in others
            if not exclusive or other.mode == "exclusive"
        )

    # Files

    def text(self, group: FakeGroup | None, leaf: str) -> str:
        if group is None:
            return info(self)[leaf]
        if leaf.startswith("mon_data/"):
            _, folder, counter = leaf.split("/")
            return group.counted(int(folder.rpartition("_")[2]), counter) + "\n"
        if leaf in {"schemata", "size"}:
            return lines(self, group, sizes=leaf == "size")
        if leaf == "tasks":
            tasks = sorted(self.tasks.items())
            return "".join(f"{tid}\n" for tid, held in tasks if held is group or held.above is group)
        cpus = f"{sum(1 << cpu for cpu in group.cpus):x}" if leaf == "cpus" else format_cpus(group.cpus)
        return (group.mode if leaf == "mode" else cpus) + "\n"

    def command(self, group: FakeGroup, leaf: str, text: str) -> None:
        """One system call write(2)."""
        self.before_command(group, leaf, text)
        if len(text) >= PAGE_BYTES:
            self.status = "ok\n" if self.kernel >= "7.3" else self.status
            refuse(errno.E2BIG)
        try:
            getattr(self, f"_write_{leaf}")(group, text)
        except Refused as refused:
            self._say(refused.status)
            refuse(refused.errno)

    def _write_schemata(self, group: FakeGroup, text: str) -> None:
        self._begin("schemata", text)
        group.values |= stage(
            lambda name: self.cache(name) or next((one for one in self.bandwidths if one.name == name), None),
            group.values.__contains__,
            lambda slot, mask, exclusive: self.overlaps(group, slot, mask, exclusive=exclusive),
            text[:-1],
            exclusive=group.mode == "exclusive",
        )

    def _write_mode(self, group: FakeGroup, text: str) -> None:
        self._begin("mode", text)
        wanted = text[:-1]
        if wanted == group.mode:
            return
        if wanted == "exclusive":
            if not any(is_cache(slot.resource) for slot in group.values):
                raise Refused("Cannot be exclusive without CAT/CDP\n")
            masks = {slot: Mask(value) for slot, value in group.values.items() if is_cache(slot.resource)}
            if any(self.overlaps(group, slot, mask, exclusive=False) for slot, mask in masks.items()):
                raise Refused("Schemata overlaps\n")
        elif wanted == "pseudo-locksetup":
            raise Refused("Pseudo-locking not supported\n")
        elif wanted != "shareable":
            raise Refused("Unknown or unsupported mode\n")
        group.mode = wanted

    def _write_tasks(self, group: FakeGroup, text: str) -> None:
        if self.kernel == "6.1":  # one thread, and no reason for what is none
            pid = parse_number(text.strip(), 0)
            if pid is None or not 0 <= pid < 1 << 31:
                refuse(errno.EINVAL)
            self.status = "ok\n"
            self._move(pid, group, "")
            return
        self.status = "ok\n"
        for pid in parse_tasks(text):
            self._move(pid, group, f"Error while processing task {pid}\n")

    def _move(self, pid: int, group: FakeGroup, after: str) -> None:
        tid = pid or self.myself
        if tid not in self.tasks:
            raise Refused(f"No task {pid}\n{after}", errno.ESRCH)
        if group.above is not None and self.tasks[tid].control is not group.above:
            raise Refused(f"Can't move task to different control group\n{after}")
        self.tasks[tid] = group

    def _set_cpus(self, group: FakeGroup, text: str, parse: Callable[[str], CpuSet]) -> None:
        if self.kernel >= "7":
            self.status = "ok\n"
        cpus = parse(text)
        if cpus - self.online:
            raise Refused("Can only assign online CPUs\n")
        for other in self.groups.values():
            other.cpus -= cpus
        self.root.cpus |= group.cpus - cpus
        group.cpus = cpus

    _write_cpus = functools.partialmethod(_set_cpus, parse=parse_cpu_mask)
    _write_cpus_list = functools.partialmethod(_set_cpus, parse=parse_cpu_list)

    def _begin(self, leaf: str, text: str) -> None:
        if not text.endswith("\n"):
            if self.kernel >= "7.3":  # before, nothing is said
                self.status = f"{leaf}: Invalid input\n"
            refuse(errno.EINVAL)
        self.status = "ok\n"

    def _say(self, text: str) -> None:
        if text:
            self.status = text if self.status == "ok\n" else self.status + text

    # What there is

    @property
    def divided(self) -> tuple[CacheResource, ...]:
        """The caches as they are mounted."""
        return tuple(itertools.chain.from_iterable(map(self._as_mounted, self.caches)))

    def _as_mounted(self, cache: CacheResource) -> Iterator[CacheResource]:
        if self.mounted is None or "cdp" not in self.mounted or cache.level != 3:
            yield cache
            return
        for kind in ("DATA", "CODE"):
            yield CacheResource(
                cache.name + kind,
                cache.ways,
                cache.minimum,
                cache.shareable,
                cache.closids // 2,
                cache.sparse,
                cache.domains,
                cache.way_bytes,
            )

    def cache(self, name: str) -> CacheResource | None:
        return next((cache for cache in self.divided if cache.name == name), None)

    def _closids(self) -> list[int]:
        return [one.closids for one in self.divided] + [one.closids for one in self.bandwidths]

    def _fresh(self) -> dict[Slot, int]:
        values = {Slot(one.name, domain): one.most for one in self.bandwidths for domain in one.domains}
        return values | {Slot(one.name, domain): one.ways.bits for one in self.divided for domain in one.domains}
