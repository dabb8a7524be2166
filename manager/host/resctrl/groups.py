"""Control groups of resctrl: which there are, their values, and commands with what the kernel says to them."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Mapping

from manager.errors import HostError
from manager.host.resctrl.info import read_text
from manager.host.resctrl.tree import ResctrlFile, ResctrlTree
from manager.model.cache import DEFAULT, Group, Schemata, format_schemata, is_ours, parse_schemata

_MONITORING = "mon_groups"
_NOT_GROUPS = frozenset({"info", "mon_data", _MONITORING})
# mkdir(2) that ends with one of these never came as far as the kernel's own reasons
_WITHOUT_REASON = frozenset({errno.EEXIST, errno.EPERM, errno.ENOENT, errno.EACCES, errno.E2BIG})
_GONE = frozenset({errno.ENODEV, errno.ENOENT})


class Groups:
    """The groups of one mount. What is read at every tick is held open. Every method raises HostError."""

    def __init__(self, tree: ResctrlTree) -> None:
        self._tree = tree
        self._held: dict[str, ResctrlFile] = {}

    def names(self) -> tuple[str, ...]:
        """All of them, the default group first."""
        try:
            found = self._tree.folders("")
        except OSError as error:
            raise HostError(f"read the groups of resctrl: {_words(error)}", error.errno or 0) from error
        names = (DEFAULT, *(name for name in found if name not in _NOT_GROUPS))
        self._let_go(lambda path: "/" in path and path.split("/")[0] not in (*names, _MONITORING))
        return names

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
        found = {}
        for name in names:
            try:
                found[name] = frozenset(self._tree.folders(f"{name}/{_MONITORING}".lstrip("/")))
            except OSError as error:
                if error.errno not in _GONE:
                    raise HostError(f"read resctrl's {name}/mon_groups: {_words(error)}", error.errno or 0) from error
        return found

    def text(self, name: str, file: str) -> str | None:
        """A file of a group, which is then held; None when the group is gone."""
        path = f"{name}/{file}" if name else file
        for _ in range(2):  # the second time where a group was removed and made again
            try:
                held = self._held.get(path)
                if held is None:
                    held = self._held[path] = self._tree.open(path)
                return held.read()
            except OSError as error:
                if path in self._held:
                    self._held.pop(path).close()
                if error.errno not in _GONE:
                    raise HostError(f"read resctrl's {path}: {_words(error)}", error.errno or 0) from error
        return None

    def create(self, name: str) -> None:
        """Make a control or monitoring group of ours, which has no tasks yet.

        ENOSPC: no CLOSID or RMID is left, or no way that it may have.
        """
        self._ours(name)
        try:
            self._tree.make(name)
        except OSError as error:
            if error.errno in _WITHOUT_REASON:
                raise HostError(f"make resctrl group {name}: {_words(error)}", error.errno or 0) from error
            raise self._refused(f"make resctrl group {name}", error, latest=True) from error

    def remove(self, name: str) -> None:
        """Remove a group of ours; its tasks go to the default group, those of a monitoring group to the one above it.

        One that is gone is no error.
        """
        self._ours(name)
        try:
            self._tree.remove(name)
        except OSError as error:
            if error.errno not in _GONE:  # rmdir leaves the status as it was
                raise HostError(f"remove resctrl group {name}: {_words(error)}", error.errno or 0) from error
        self._let_go(lambda path: path.startswith(f"{name}/"))

    def write(self, name: str, values: Schemata) -> Schemata:
        """Give a group values, all of them or none, and return what it then holds in their slots.

        The default group's may be written too, those of other tools never. ENODEV: the group is gone.
        """
        if name != DEFAULT:
            self._ours(name)
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
            raise HostError(f"open resctrl's {path}: {_words(error)}", error.errno or 0) from error
        try:
            opened.write(text)
        except OSError as error:
            what = f"write {'; '.join(text.splitlines())} to resctrl's {path}"
            raise self._refused(what, error) from error
        finally:
            opened.close()

    def _refused(self, what: str, error: OSError, *, latest: bool = False) -> HostError:
        """With the kernel's reason after its errno: ``latest`` takes only the last one (before 7.x mkdir adds to those
        of earlier commands). It is ``ok`` for some refusals, an unknown domain among them: that is no reason.
        """
        said: list[str] = []
        if error.errno not in {errno.E2BIG, *_GONE}:
            with contextlib.suppress(OSError):
                said = (read_text(self._tree, "info/last_cmd_status") or "").splitlines()
        reason = "; ".join(said[-1:] if latest else said)
        words = _words(error) + (f": {reason}" if reason and reason != "ok" else "")
        return HostError(f"{what}: {words}", error.errno or 0)

    @staticmethod
    def _ours(name: str) -> None:
        """Raises HostError unless it is the path of a control or monitoring group that we may make."""
        *above, own = name.split("/")
        inside = above in ([], [_MONITORING]) or (len(above) == 2 and above[1] == _MONITORING and is_ours(above[0]))
        if not is_ours(own) or not inside or "\n" in name:
            raise HostError(f"resctrl group {name!r} is not ours", errno.EPERM)

    def _let_go(self, which: Callable[[str], bool]) -> None:
        for path in [path for path in self._held if which(path)]:
            self._held.pop(path).close()

    def close(self) -> None:
        """Close all files; may be called twice."""
        while self._held:
            self._held.popitem()[1].close()


def _words(error: OSError) -> str:
    return error.strerror or os.strerror(error.errno or 0)
