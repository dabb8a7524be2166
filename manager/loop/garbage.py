"""Garbage collection between ticks and never within one.

A full collection walks all that a process holds: with 200 VMs that is 35 ms, which a tick would be late. Reference
counts free nearly everything anyway; only cycles wait for the next collection.
"""

from __future__ import annotations

import gc

COLLECT_S = 300.0
"""So often cycles are collected: there are few, and looking for them costs as much as ten ticks."""


def postpone_garbage() -> None:
    """Collect no more by itself. What exists now is taken to stay until the end, and not walked any more."""
    gc.collect()
    gc.freeze()
    gc.disable()


def collect_garbage() -> None:
    """Collect now."""
    gc.collect()


def collect_as_usual() -> None:
    """Undo ``postpone_garbage``."""
    gc.enable()
    gc.unfreeze()
