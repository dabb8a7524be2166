"""The lab's guest: a Debian kernel and a small initramfs that boots into one of a few roles in seconds.

``build`` makes it; ``python -m deploy.lab.guest`` does so from a shell. The roles and their options are described in
the file ``init`` beside this one.
"""

from deploy.lab.guest.builder import DEFAULT_BASE, Guest, build

__all__ = ["DEFAULT_BASE", "Guest", "build"]
