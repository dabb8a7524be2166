"""``CachePort`` on resctrl: its mount, what is offered, groups with VMs in them, and their counters."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Collection, Mapping
from typing import ParamSpec, TypeVar

from manager.errors import HostError
from manager.host.port import CachePort
from manager.host.resctrl.groups import Groups, failure, move
from manager.host.resctrl.tree import ResctrlFile, ResctrlTree, discover
from manager.model.cache import CacheUse, Group, Resctrl, Schemata
from manager.model.cpus import CpuSet
from manager.model.host import VmInstance

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Threads = Callable[[VmInstance, bool], frozenset[int]]
"""Ids of a VM's threads as last listed, or afresh. Raises VmVanished, HostError."""

_DOMAIN = "mon_L3_"
_COUNTERS = {
    "occupancy_bytes": "llc_occupancy",
    "total_bytes": "mbm_total_bytes",
    "local_bytes": "mbm_local_bytes",
}
# A counter that was just given to the group, one that the group has none of, and a faulty reading.
_NO_NUMBER = frozenset({"Unavailable", "Unassigned", "Error"})
_NOT_NOW = frozenset({errno.EIO, errno.EINVAL, errno.EAGAIN})


def ensure_mounted(tree: ResctrlTree) -> bool:
    """Mount resctrl unless it is. Returns whether this call did it, which is for the caller to keep. Raises HostError:
    ENODEV where the kernel has no resctrl, EBUSY where it is mounted and cannot be seen here.
    """
    try:
        if tree.options() is not None:
            return False
        tree.mount(frozenset())
    except OSError as error:
        if error.errno == errno.EBUSY and tree.options() is not None:  # another was quicker
            return False
        raise failure("mount resctrl", error) from error
    return True


def unmount_ours(tree: ResctrlTree, groups: Groups) -> None:
    """Unmount what ``ensure_mounted`` mounted, after our groups were removed; all files of ``groups`` are closed.

    Unmounting would remove the groups of others, so it stays while there are any. Raises HostError: EBUSY then.
    """
    try:
        if tree.options() is None:
            return
        if others := groups.of_others():
            raise HostError(f"resctrl stays mounted: it has groups of others, such as {others[0]}", errno.EBUSY)
        groups.close()
        tree.unmount()
    except OSError as error:
        raise failure("unmount resctrl", error) from error


class Monitor:
    """The counters of one group, or monitoring group inside it, held open."""

    def __init__(self, tree: ResctrlTree, group: str) -> None:
        """Open those that there are. Raises HostError: ENODEV when the group is gone."""
        self._files: dict[int, dict[str, ResctrlFile]] = {}
        folder = f"{group}/mon_data" if group else "mon_data"
        try:
            for name in tree.folders(folder):
                if name.startswith(_DOMAIN):
                    held = self._files[int(name.removeprefix(_DOMAIN))] = {}
                    for field, file in _COUNTERS.items():
                        with contextlib.suppress(FileNotFoundError):
                            held[field] = tree.open(f"{folder}/{name}/{file}")
        except OSError as error:
            self.close()
            raise HostError(f"open the counters of resctrl group {group}: {error.strerror}", errno.ENODEV) from error

    def read(self) -> tuple[CacheUse, ...]:
        """By domain, ascending. Raises HostError: ENODEV when the group is gone."""
        return tuple(
            CacheUse(domain, **{field: _count(file) for field, file in held.items()})
            for domain, held in sorted(self._files.items())
        )

    def close(self) -> None:
        """Close all files; may be called twice."""
        while self._files:
            for file in self._files.popitem()[1].values():
                file.close()


def _count(file: ResctrlFile) -> int | None:
    try:
        text = file.read().strip()
    except OSError as error:
        if error.errno in _NOT_NOW:
            return None
        raise failure("read counters of resctrl", error) from error
    return None if text in _NO_NUMBER else int(text)


class ResctrlCache(CachePort):
    """What is read at every tick is held open, which keeps resctrl from being unmounted."""

    def __init__(self, tree: ResctrlTree, threads: Threads, domains: Callable[[int], Mapping[int, CpuSet]]) -> None:
        """``domains`` returns the pCPUs of each cache of a level by its id. Nothing is read yet."""
        self._tree = tree
        self._groups = Groups(tree)
        self._monitors: dict[str, Monitor] = {}
        self._threads = threads
        self._domains_of = domains
        self._known: tuple[CpuSet, Resctrl, Mapping[int, CpuSet]] | None = None

    def offered(self, online: CpuSet) -> Resctrl | None:
        if self._known is None or self._known[0] != online:
            resctrl = self._understood(discover, self._tree)
            if resctrl is None:
                self.close()
                return None
            level = resctrl.divided[0].level if resctrl.divided else 0
            self._keep_monitors(())  # a domain that came back has counters anew
            self._known = online, resctrl, self._domains_of(level)
        return self._known[1]

    def domains(self) -> Mapping[int, CpuSet]:
        return self._known[2] if self._known else {}

    def mount(self) -> bool:
        return ensure_mounted(self._tree)

    def unmount(self) -> None:
        self._keep_monitors(())
        unmount_ours(self._tree, self._groups)
        self.close()

    def groups(self) -> Mapping[str, Group]:
        return self._understood(self._groups.read)

    def tasks(self, group: str) -> frozenset[int]:
        return self._understood(self._groups.tasks, group)

    def monitored(self, groups: Collection[str]) -> Mapping[str, frozenset[str]]:
        return self._understood(self._groups.monitored, groups)

    def uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        return self._understood(self._uses, groups)

    def _uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        self._keep_monitors(groups)
        uses = {}
        for path in groups:
            try:
                if path not in self._monitors:
                    self._monitors[path] = Monitor(self._tree, path)
                uses[path] = self._monitors[path].read()
            except HostError as error:
                if path in self._monitors:  # removed, and maybe made again: opened anew next time
                    self._monitors.pop(path).close()
                if error.errno != errno.ENODEV:
                    raise
        return uses

    def _keep_monitors(self, groups: Collection[str]) -> None:
        for path in self._monitors.keys() - set(groups):
            self._monitors.pop(path).close()

    def threads(self, instance: VmInstance, *, afresh: bool = False) -> frozenset[int]:
        return self._threads(instance, afresh)

    def create(self, group: str) -> None:
        self._groups.create(group)

    def remove(self, group: str) -> None:
        self._groups.remove(group)

    def write(self, group: str, values: Schemata) -> Schemata:
        return self._understood(self._groups.write, group, values)

    def move(self, group: str, instance: VmInstance) -> int:
        return move(self._groups, group, lambda: self._threads(instance, True)).threads

    def close(self) -> None:
        self._known = None
        self._groups.close()
        self._keep_monitors(())

    def _understood(
        self, read: Callable[Parameters, Result], *arguments: Parameters.args, **options: Parameters.kwargs
    ) -> Result:
        """Whatever goes wrong is read anew next time: another tool may have unmounted it."""
        try:
            return read(*arguments, **options)
        except HostError:
            self.close()
            raise
        except ValueError as error:  # never seen from a kernel, but one file must not stop the loop
            self.close()
            raise HostError(f"resctrl: {error}") from error
