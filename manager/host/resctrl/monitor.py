"""Cache occupancy and memory traffic of VMs: a monitoring group for each inside its control group."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Collection, Mapping

from manager.errors import HostError
from manager.host.resctrl.tree import ResctrlFile, ResctrlTree
from manager.model.cache import CacheUse

_DOMAIN = "mon_L3_"
_FILES = {
    "occupancy_bytes": "llc_occupancy",
    "total_bytes": "mbm_total_bytes",
    "local_bytes": "mbm_local_bytes",
}
# A counter that was just given to the group, one that the group has none of, and a faulty reading.
_NO_NUMBER = frozenset({"Unavailable", "Unassigned", "Error"})
_NOT_NOW = frozenset({errno.EIO, errno.EINVAL, errno.EAGAIN})


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
                    for field, file in _FILES.items():
                        with contextlib.suppress(FileNotFoundError):
                            held[field] = tree.open(f"{folder}/{name}/{file}")
        except OSError as error:
            self.close()
            raise HostError(f"open the counters of resctrl group {group}: {error.strerror}", errno.ENODEV) from error

    def read(self) -> tuple[CacheUse, ...]:
        """By domain, ascending. Raises HostError: ENODEV when the group is gone."""
        return tuple(
            CacheUse(domain, **{field: _number(file) for field, file in held.items()})
            for domain, held in sorted(self._files.items())
        )

    def close(self) -> None:
        """Close all files; may be called twice."""
        while self._files:
            for file in self._files.popitem()[1].values():
                file.close()


class Monitors:
    """The counters of several groups, by path, held open from one reading to the next."""

    def __init__(self, tree: ResctrlTree) -> None:
        self._tree = tree
        self._held: dict[str, Monitor] = {}

    def read(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        """Those of ``groups``, without any that is gone; of no other one files stay open. Raises HostError."""
        for path in self._held.keys() - set(groups):
            self._held.pop(path).close()
        found = {}
        for path in groups:
            try:
                if path not in self._held:
                    self._held[path] = Monitor(self._tree, path)
                found[path] = self._held[path].read()
            except HostError as error:
                if path in self._held:  # removed, and maybe made again: opened anew next time
                    self._held.pop(path).close()
                if error.errno != errno.ENODEV:
                    raise
        return found

    def close(self) -> None:
        """Close all files; may be called twice."""
        while self._held:
            self._held.popitem()[1].close()


def _number(file: ResctrlFile) -> int | None:
    try:
        text = file.read().strip()
    except OSError as error:
        if error.errno in _NOT_NOW:
            return None
        raise HostError(f"read counters of resctrl: {error.strerror}", error.errno or 0) from error
    return None if text in _NO_NUMBER else int(text)
