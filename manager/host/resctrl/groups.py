"""Groups of resctrl: which there are, their values, commands with what the kernel says to them, and VMs moved."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from manager.errors import HostError
from manager.host.resctrl.tree import ResctrlFile, ResctrlTree, read_text
from manager.model.cache import DEFAULT, Group, Schemata, format_schemata, is_ours, parse_schemata

MOST_ROUNDS = 20
"""So often a VM's threads are listed while new ones keep appearing outside the group."""
_MONITORING = "mon_groups"
_NOT_GROUPS = frozenset({"info", "mon_data", _MONITORING})
# mkdir(2) that ends with one of these never came as far as the kernel's own reasons
_WITHOUT_REASON = frozenset({errno.EEXIST, errno.EPERM, errno.ENOENT, errno.EACCES, errno.E2BIG})
_GONE = frozenset({errno.ENODEV, errno.ENOENT})


def failure(action: str, error: OSError, reason: str = "") -> HostError:
    """With the errno, and the kernel's ``reason`` where it gave one."""
    number = error.errno or 0
    words = error.strerror or os.strerror(number)
    return HostError(f"{action}: {words}" + (f": {reason}" if reason else ""), number)


class Groups:
    """The groups of one mount. What is read at every tick is held open. Every method raises HostError."""

    def __init__(self, tree: ResctrlTree) -> None:
        self._tree = tree
        self._held: dict[str, ResctrlFile] = {}

    def names(self) -> tuple[str, ...]:
        """All of them, the default group first."""
        try:
            folders = self._tree.folders("")
        except OSError as error:
            raise failure("read the groups of resctrl", error) from error
        names = (DEFAULT, *(name for name in folders if name not in _NOT_GROUPS))
        self._let_go(lambda path: "/" in path and path.split("/")[0] not in (*names, _MONITORING))
        return names

    def of_others(self) -> tuple[str, ...]:
        """Those that other tools made."""
        return tuple(name for name in self.names() if name != DEFAULT and not is_ours(name))

    def read(self) -> Mapping[str, Group]:
        """All groups by name, without those removed meanwhile. Raises ValueError for what no kernel writes."""
        groups = {}
        for name in self.names():
            schemata, mode = self.text(name, "schemata"), self.text(name, "mode")
            if schemata is not None and mode is not None:
                # A group whose ways are locked for pseudo-locking is as exclusive as one that says so.
                groups[name] = Group(name, parse_schemata(schemata), mode.strip() != "shareable")
        return groups

    def tasks(self, name: str) -> frozenset[int]:
        """Ids of a group's threads; none of one that is gone."""
        return frozenset(map(int, (self.text(name, "tasks") or "").split()))

    def monitored(self, names: Iterable[str]) -> Mapping[str, frozenset[str]]:
        """The names of the monitoring groups in each of these, without those that are gone or have none."""
        names_of = {}
        for name in names:
            try:
                names_of[name] = frozenset(self._tree.folders(f"{name}/{_MONITORING}".lstrip("/")))
            except OSError as error:
                if error.errno not in _GONE:
                    raise failure(f"read resctrl's {name}/{_MONITORING}", error) from error
        return names_of

    def text(self, name: str, file: str) -> str | None:
        """A file of a group, which is then held; None when the group is gone."""
        path = f"{name}/{file}" if name else file
        for _ in range(2):  # the second time where a group was removed and made again
            try:
                if path not in self._held:
                    self._held[path] = self._tree.open(path)
                return self._held[path].read()
            except OSError as error:
                self._let_go(lambda held: held == path)
                if error.errno not in _GONE:
                    raise failure(f"read resctrl's {path}", error) from error
        return None

    def create(self, name: str) -> None:
        """Make a control or monitoring group of ours, which has no tasks yet.

        ENOSPC: no CLOSID or RMID is left, or no way that it may have.
        """
        _require_ours(name)
        try:
            self._tree.make(name)
        except OSError as error:
            reason = "" if error.errno in _WITHOUT_REASON else self._reason(latest=True)
            raise failure(f"make resctrl group {name}", error, reason) from error

    def remove(self, name: str) -> None:
        """Remove a group of ours; its tasks go to the default group, those of a monitoring group to the one above it.

        One that is gone is no error.
        """
        _require_ours(name)
        try:
            self._tree.remove(name)
        except OSError as error:
            if error.errno not in _GONE:  # rmdir leaves the status as it was
                raise failure(f"remove resctrl group {name}", error) from error
        self._let_go(lambda path: path.startswith(f"{name}/"))

    def write(self, name: str, values: Schemata) -> Schemata:
        """Give a group values, all of them or none, and return what it then holds in their slots.

        The default group's may be written too, those of other tools never. ENODEV: the group is gone.
        """
        if name != DEFAULT:
            _require_ours(name)
        if values:
            self.command(name, "schemata", format_schemata(values))
        held = parse_schemata(self.text(name, "schemata") or "")
        return {slot: held[slot] for slot in values if slot in held}

    def command(self, name: str, file: str, text: str) -> None:
        """Write one line, or several for ``schemata``, each with its newline: without it the kernel says nothing."""
        path = f"{name}/{file}" if name else file
        try:
            opened = self._tree.open(path, write=True)
        except OSError as error:
            raise failure(f"open resctrl's {path}", error) from error
        try:
            opened.write(text)
        except OSError as error:
            reason = "" if error.errno in {errno.E2BIG, *_GONE} else self._reason()
            raise failure(f"write {'; '.join(text.splitlines())} to resctrl's {path}", error, reason) from error
        finally:
            opened.close()

    def _reason(self, *, latest: bool = False) -> str:
        """Why the kernel refused: ``latest`` takes only the last line (before 7.x mkdir adds to those of earlier
        commands). It is ``ok`` for some refusals, an unknown domain among them: that is no reason.
        """
        said: list[str] = []
        with contextlib.suppress(OSError):
            said = (read_text(self._tree, "info/last_cmd_status") or "").splitlines()
        reason = "; ".join(said[-1:] if latest else said)
        return reason if reason != "ok" else ""

    def _let_go(self, which: Callable[[str], bool]) -> None:
        for path in [path for path in self._held if which(path)]:
            self._held.pop(path).close()

    def close(self) -> None:
        """Close all files; may be called twice."""
        self._let_go(lambda _path: True)


def _require_ours(name: str) -> None:
    """Raises HostError unless it is the path of a control or monitoring group that we may make."""
    *above, last = name.split("/")
    inside = above in ([], [_MONITORING]) or (len(above) == 2 and above[1] == _MONITORING and is_ours(above[0]))
    if not is_ours(last) or not inside or "\n" in name:
        raise HostError(f"resctrl group {name!r} is not ours", errno.EPERM)


@dataclass(frozen=True, slots=True)
class Moved:
    """How a VM was moved: threads written, those that had died meanwhile, and how often they were listed."""

    threads: int
    dead: int
    rounds: int


def group_of_others(groups: Groups, tids: Iterable[int]) -> str | None:
    """The first group of another tool that has one of the threads (libvirt's cachetune puts single vCPUs into such).

    None where none has. Raises HostError.
    """
    threads = frozenset(tids)
    return next((name for name in groups.of_others() if not threads.isdisjoint(groups.tasks(name))), None)


def move(groups: Groups, group: str, threads: Callable[[], Iterable[int]]) -> Moved:
    """Put all threads of a VM into ``group`` and look again until none is missing: only a thread that is written moves,
    and those that it starts from then on inherit its group.

    That is a group of ours, the default one, or a monitoring group of ours inside the control group they are in.

    ``threads`` lists them as they are now. Raises HostError: EBUSY, before anything is moved, when one is in such a
    group; EAGAIN when new ones appear for ever; otherwise with the kernel's errno. What ``threads`` raises goes on.
    """
    if group != DEFAULT and not is_ours(group.rpartition("/")[2]):
        raise HostError(f"resctrl group {group!r} is not ours", errno.EPERM)
    other = group_of_others(groups, threads())
    if other is not None:
        raise HostError(f"threads of the VM are in resctrl group {other}, which another tool made", errno.EBUSY)
    written = dead = 0
    for rounds in range(1, MOST_ROUNDS + 1):
        # The list first: a thread that is in neither was started later, by one that had been moved or is in the list.
        missing = frozenset(threads()) - groups.tasks(group)
        if not missing:
            return Moved(written, dead, rounds)
        for tid in sorted(missing):
            try:
                groups.command(group, "tasks", f"{tid}\n")
                written += 1
            except HostError as error:
                if error.errno != errno.ESRCH:
                    raise
                dead += 1
    raise HostError(f"threads keep appearing outside resctrl group {group or 'default'}", errno.EAGAIN)
