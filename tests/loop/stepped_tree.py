"""The fake's resctrl, of which each step is taken by whoever tests: it may let it fail, or be the last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from manager.host.resctrl.tree import ResctrlFile
from tests.fakes.resctrl import FakeFile, FakeResctrl

Take = Callable[[str, str, Callable[[], Any]], Any]
"""Takes a step: what it does, the path that it concerns, and the call that does it."""

READ = "read"
"""The only step that changes nothing."""


@dataclass
class SteppedFile:
    """A file that is held."""

    file: FakeFile
    path: str
    take: Take

    def read(self) -> str:
        text: str = self.take(READ, self.path, self.file.read)
        return text

    def write(self, text: str) -> None:
        self.take("write", self.path, lambda: self.file.write(text))

    def close(self) -> None:
        self.file.close()


@dataclass
class SteppedTree:
    """``ResctrlTree``; opening a file and listing folders are no steps, for each is followed by one or does nothing."""

    tree: FakeResctrl
    take: Take

    def options(self) -> frozenset[str] | None:
        return self.tree.options()

    def mount(self, options: frozenset[str]) -> None:
        self.take("mount", "", lambda: self.tree.mount(options))

    def unmount(self) -> None:
        self.take("unmount", "", self.tree.unmount)

    def open(self, path: str, *, write: bool = False) -> ResctrlFile:
        return SteppedFile(self.tree.open(path, write=write), path, self.take)

    def folders(self, path: str) -> list[str]:
        return self.tree.folders(path)

    def make(self, path: str) -> None:
        self.take("make", path, lambda: self.tree.make(path))

    def remove(self, path: str) -> None:
        self.take("remove", path, lambda: self.tree.remove(path))
