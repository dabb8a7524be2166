"""A host with VMs and the real resctrl, on which plans are carried out as the agent does, by its own host layer."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from manager.control.cache_plan import CacheDemand, CachePlan, Claim, allocate
from manager.control.cache_steps import CacheAction, CacheStep, plan_steps
from manager.host.process import find_threads
from manager.host.resctrl.groups import Groups, move
from manager.host.resctrl.tree import ResctrlFile, ResctrlTree, discover
from manager.model.cache import DEFAULT, Group, Mask, Resctrl, Slot, parse_wish, union
from tests.host import qemu_like
from tests.host.conftest import REAL

POINT = Path("/sys/fs/resctrl")
DOMAINS = frozenset({0, 1})
THREADS = ("CPU 0/KVM", "CPU 1/KVM", "worker", "IO iothread1")


class Vm:
    """A process whose threads are named as QEMU names its own, forked: an emulated machine takes seconds to start a
    Python. ``tids`` are its threads by name.
    """

    def __init__(self, name: str = "qemu-system-x86", threads: tuple[str, ...] = THREADS) -> None:
        commands, tell = os.pipe()
        answers, answer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                sys.stdin, sys.stdout = os.fdopen(commands), os.fdopen(answer, "w")
                sys.argv = ["qemu_like", "-name", name, "-threads", *threads]
                qemu_like.main()
            finally:
                os._exit(1)
        os.close(commands)
        os.close(answer)
        self._commands, self._answers = os.fdopen(tell, "w"), os.fdopen(answers)
        self.tids: dict[str, int] = json.loads(self._answers.readline())

    def tell(self, command: str) -> int:
        """Give a command of ``qemu_like.py`` and wait until it is done."""
        print(command, file=self._commands, flush=True)
        return int(self._answers.readline())

    def kill(self) -> None:
        """End it; nothing of it is left."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._commands.close()
        self._answers.close()


class DeadlyFile(ResctrlFile):
    """A file whose commands count."""

    def __init__(self, path: Path, flags: int, tree: DeadlyTree) -> None:
        super().__init__(path, flags)
        self._tree = tree

    def write(self, text: str) -> None:
        super().write(text)
        self._tree.count()


class DeadlyTree(ResctrlTree):
    """Ends this process, by SIGKILL, after so many changes; -1: never, they are only counted."""

    def __init__(self, deadly: int = -1) -> None:
        super().__init__(REAL)
        self.options()
        self.changes = 0
        self._deadly = deadly

    def count(self) -> None:
        self.changes += 1
        if self.changes == self._deadly:
            os.kill(os.getpid(), signal.SIGKILL)

    def open(self, path: str, *, write: bool = False) -> ResctrlFile:
        return DeadlyFile(POINT / path, os.O_WRONLY, self) if write else super().open(path)

    def mount(self, options: frozenset[str]) -> None:
        super().mount(options)
        self.count()

    def unmount(self) -> None:
        super().unmount()
        self.count()

    def make(self, path: str) -> None:
        super().make(path)
        self.count()

    def remove(self, path: str) -> None:
        super().remove(path)
        self.count()


@dataclass
class Host:
    """What an agent knows that just started: the VMs, and what resctrl tells."""

    vms: Mapping[str, Vm]
    tree: ResctrlTree = field(default_factory=lambda: ResctrlTree(REAL))

    def __post_init__(self) -> None:
        offered = discover(self.tree)
        assert offered is not None
        self.offered: Resctrl = offered
        self.groups = Groups(self.tree)

    def threads(self, vm: str) -> list[int]:
        """All of a VM's threads, as the agent finds them."""
        found = find_threads(REAL, self.vms[vm].pid)
        return [*found.emulator, *(tid for _, tid in (*found.vcpus, *found.iothreads))]

    def scattered(self) -> dict[str, set[str]]:
        """The groups of each VM's threads."""
        tasks = {name: self.groups.tasks(name) for name in self.groups.names()}
        # as they were started: an emulated machine takes long to list them
        threads = {vm: {one.pid, *one.tids.values()} for vm, one in self.vms.items()}
        return {vm: {name for name, tids in tasks.items() if not tids.isdisjoint(threads[vm])} for vm in self.vms}

    def placed(self) -> dict[str, str]:
        """The group of each VM, all of whose threads are there."""
        found = {}
        for vm, names in self.scattered().items():
            (found[vm],) = names
        return found

    def plan(self, demand: CacheDemand) -> tuple[CachePlan, tuple[CacheStep, ...]]:
        """As from the state that is found. Of a VM in two groups, that in which it is not to be."""
        present = self.groups.read()
        plan = allocate(self.offered, present, demand)
        goes_to = {vm: group.name for group in plan.groups.values() for vm in group.vms}
        placed = {vm: min(at - {goes_to.get(vm, DEFAULT)} or at) for vm, at in self.scattered().items()}
        return plan, plan_steps(self.offered, present, placed, plan)

    def take(self, step: CacheStep) -> None:
        if step.action is CacheAction.MAKE:
            self.groups.create(step.group)
        elif step.action is CacheAction.REMOVE:
            self.groups.remove(step.group)
        elif step.action is CacheAction.WRITE:
            assert self.groups.write(step.group, step.values) == step.values
        else:
            move(self.groups, step.group, functools.partial(self.threads, step.vm))

    def reach(self, demand: CacheDemand) -> CachePlan:
        """Carry out what is planned; it is there then, and what is as planned needs no step."""
        plan, steps = self.plan(demand)
        for step in steps:
            self.take(step)
        self.check(plan)
        return plan

    def check(self, plan: CachePlan) -> None:
        """What is there is what was planned."""
        present = self.groups.read()
        assert {name for name, group in present.items() if not group.of_others} == set(plan.groups)
        for name, planned in plan.groups.items():
            assert {slot: present[name].values[slot] for slot in planned.values} == planned.values
        wanted = {vm: name for name, planned in plan.groups.items() for vm in planned.vms}
        placed = self.placed()
        assert placed == {vm: wanted.get(vm, DEFAULT) for vm in self.vms}
        assert plan_steps(self.offered, present, placed, plan) == ()

    def ways(self, group: Group, domain: int) -> Mask:
        """The ways that a group has in a domain."""
        return union(Mask(group.values[Slot(cache.name, domain)]) for cache in self.offered.divided)

    def state(self) -> dict[str, str]:
        """Every folder and file, and what the files hold but for tasks, and which VM is where."""
        found = {f"{vm} is in": ", ".join(sorted(names)) for vm, names in self.scattered().items()}
        for folder, _, files in os.walk(POINT):
            found[folder] = "a folder"
            found |= {
                f"{folder}/{name}": (Path(folder) / name).read_text()
                for name in files
                if name not in {"tasks", "last_cmd_status"}
            }
        return found


def claim(app: str, wish: str, *vms: str, domains: frozenset[int] = DOMAINS, ways: int | None = None) -> Claim:
    """An application's; it has the VM of its name if none is named."""
    return Claim(app, frozenset(vms or {app}), parse_wish(wish), domains, ways)


def demand(*claims: Claim, batch: frozenset[str] = frozenset(), default_ways: int = 1) -> CacheDemand:
    return CacheDemand(claims, batch, default_ways=default_ways)
