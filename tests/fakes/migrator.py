"""What migrates VMs, in memory. For unit tests only."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from manager.model.host import VmInstance
from tests.fakes.host import FakeHost


@dataclass
class FakeMigrator:
    """Migrates as libvirt does: slowly, until ``lets``, and then not where it has an ``error``."""

    host: FakeHost
    error: Exception | None = None
    lets: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    moved: list[tuple[str, str]] = field(default_factory=list)

    def migrate(self, instance: VmInstance, to: str, on_copied: Callable[[float], None]) -> None:
        on_copied(0.25)
        self.begun.set()
        assert self.lets.wait(120)
        if self.error is not None:
            raise self.error
        self.moved.append((instance.libvirt_name, to))
        self.host.stop(instance.libvirt_name)

    def follow(self, instance: VmInstance, on_copied: Callable[[float], None]) -> None:
        on_copied(0.5)
        self.begun.set()
        assert self.lets.wait(120)
        if self.error is not None:
            raise self.error
