"""Mounting resctrl where it is not, and unmounting what we mounted."""

from __future__ import annotations

import errno

from manager.errors import HostError
from manager.host.resctrl.groups import Groups
from manager.host.resctrl.tree import ResctrlTree
from manager.model.cache import DEFAULT, is_ours


def ensure_mounted(tree: ResctrlTree, *, allowed: bool) -> bool:
    """Mount resctrl unless it is, or that is not ``allowed``. Returns whether this call did it, which is for the caller
    to keep. Raises HostError: ENODEV where the kernel has no resctrl.
    """
    try:
        if tree.options() is not None or not allowed:
            return False
        tree.mount(frozenset())
    except OSError as error:
        if error.errno == errno.EBUSY:  # another was quicker
            return False
        raise HostError(f"mount resctrl: {error.strerror}", error.errno or 0) from error
    return True


def unmount_ours(tree: ResctrlTree, groups: Groups) -> None:
    """Unmount what ``ensure_mounted`` mounted, after our groups were removed; all files of ``groups`` are closed.

    Unmounting would remove the groups of others, so it stays while there are any. Raises HostError: EBUSY then.
    """
    try:
        if tree.options() is None:
            return
        others = [name for name in groups.names() if name != DEFAULT and not is_ours(name)]
        if others:
            raise HostError(f"resctrl stays mounted: it has groups of others, such as {others[0]}", errno.EBUSY)
        groups.close()
        tree.unmount()
    except OSError as error:
        raise HostError(f"unmount resctrl: {error.strerror}", error.errno or 0) from error
