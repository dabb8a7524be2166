"""This kernel's cgroups and threads after each change that failed, and after the agent was killed at each of them."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from manager.host.hypervisor import Domains
from manager.host.kernel_host import KernelHost
from manager.host.registry import IDLE_FILE
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.tick import ControlLoop, TickResult
from manager.model.host import Discovery
from manager.model.knobs import Knob
from manager.model.limits import EVERYTHING
from manager.model.records import OutcomeKind
from manager.model.registration import Assignment, HostSpec, VmClass, VmSpec
from policies.equal import POLICY as EQUAL
from policies.priority import POLICY as PRIORITY
from tests.host.conftest import REAL, QemuLike, VmGroup

affinity = os.sched_getaffinity  # the tests look at threads with it also while the agent's is broken
ONLINE = frozenset(affinity(0))
FIRST, LAST = min(ONLINE), max(ONLINE)
Settings = dict[str, object]


@dataclass
class Watch:
    """Stands for the background thread that lists domains."""

    domains: Domains
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))


@dataclass
class Place:
    """A critical VM, and a batch VM whose group and threads were set by an operator before."""

    web: QemuLike
    batch: QemuLike
    group: VmGroup

    @property
    def settings(self) -> Settings:
        """All that may be changed, as the kernel shows it."""
        files = [
            self.group.weight,
            self.group.folders[0] / self.group.cpu.quota_file,
            self.group.folders[0] / IDLE_FILE,
        ]
        found: Settings = {file.name: file.read_text() for file in files if file.exists()}
        for vm in (self.web, self.batch):
            for task in Path(f"/proc/{vm.pid}/task").iterdir():
                found[task.name] = affinity(int(task.name))
        return found

    @property
    def strict(self) -> Assignment:
        specs = (
            VmSpec("web", VmClass.CRITICAL, libvirt_uuid=self.web.uuid, cpus=frozenset({FIRST})),
            VmSpec("batch", VmClass.BATCH, libvirt_uuid=self.batch.uuid, cpus=frozenset({LAST}), max_pcpus=0.5),
        )
        return Assignment(HostSpec("test", batch_idle=True), vms=specs)

    @property
    def lenient(self) -> Assignment:
        specs = (
            VmSpec("web", VmClass.CRITICAL, libvirt_uuid=self.web.uuid),
            VmSpec("batch", VmClass.BATCH, libvirt_uuid=self.batch.uuid, cpus=frozenset({FIRST})),
        )
        return Assignment(HostSpec("test", policy="equal", pinning=False), vms=specs)


@pytest.fixture
def place(start: Callable[..., QemuLike], group: VmGroup) -> Place:
    if len(ONLINE) < 2:
        pytest.skip("NOT TESTED: pinning to one of several pCPUs needs two")
    made = Place(start("CPU 0/TCG", "worker"), start("CPU 0/TCG", "CPU 1/TCG", "worker", "IO iothread1"), group)
    group.take(made.batch)
    group.weight.write_text("512")
    os.sched_setaffinity(made.batch.tids["CPU 1/TCG"], {FIRST})
    return made


class Agent:
    """The loop of an agent on this host, from its start to its end."""

    def __init__(self, place: Place, journal: Path) -> None:
        instances = {vm.uuid: vm.instance for vm in (place.web, place.batch)}
        self.host = KernelHost(REAL, Watch(Domains(instances, 1, True)))  # type: ignore[arg-type]
        self.journal = Journal(journal, self.host.boot_id)
        policies = {"equal": EQUAL, "priority": PRIORITY}
        self._loop = ControlLoop(
            self.host, self.journal, policies, LoopSettings("test", 1.0, 30.0, 20), limits=EVERYTHING
        )

    def tick(self, assignment: Assignment) -> TickResult:
        return self._own(self._loop.tick(assignment, {}))

    def release(self) -> TickResult:
        return self._own(self._loop.release("test"))

    @staticmethod
    def _own(result: TickResult) -> TickResult:
        foreign = [one for one in result.outcomes if one.kind is OutcomeKind.EXTERNAL]
        assert not foreign, "nobody else changes anything here"
        return result

    def end(self) -> None:
        self.journal.close()
        self.host.forget(frozenset())


@contextlib.contextmanager
def agent(place: Place, journal: Path) -> Iterator[Agent]:
    started = Agent(place, journal)
    try:
        yield started
    finally:
        started.end()


def deadly(number: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For functions that are to be called ``number`` times altogether: then the process kills itself."""
    calls = itertools.count()

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            if next(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments)

        return call

    return wrap


def in_a_child(work: Callable[[], None]) -> bool:
    """Whether a process that does the work was killed before it was done."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, "it failed in another way"
    return os.WIFSIGNALED(status)


def live(place: Place, journal: Path) -> None:
    """A life of an agent, from nothing to nothing."""
    one = Agent(place, journal)
    one.tick(place.strict)
    one.tick(place.lenient)
    one.release()


def assert_released(place: Place, journal: Path, before: Settings, when: str) -> None:
    with agent(place, journal) as successor:
        successor.release()
        assert place.settings == before, when
        assert not successor.journal.entries, when


def test_the_life_changes_everything(place: Place, tmp_path: Path) -> None:
    before = place.settings
    with agent(place, tmp_path / "journal.db") as one:
        one.tick(place.strict)
        strict = place.settings
        one.tick(place.lenient)
        lenient = place.settings
        one.release()
    assert not [name for name in before if strict[name] == lenient[name] == before[name]]
    assert place.settings == before


@pytest.mark.parametrize("then", ["released at once", "going on"])
def test_killed_before_each_change(place: Place, tmp_path: Path, then: str) -> None:
    """A pin of the emulator is several: it dies between these, too."""
    before = place.settings
    with agent(place, tmp_path / "reference.db") as one:
        one.tick(place.strict)
        enforced = place.settings
        one.release()
    for number in itertools.count():
        journal, when = tmp_path / f"{number}.db", f"killed before change {number}"

        def die(journal: Path = journal, number: int = number) -> None:
            wrap = deadly(number)
            os.sched_setaffinity, os.pwrite = wrap(os.sched_setaffinity), wrap(os.pwrite)
            Journal.update = wrap(Journal.update)  # type: ignore[method-assign]
            live(place, journal)

        killed = in_a_child(die)
        if then == "going on":
            with agent(place, journal) as successor:
                for _ in range(2):
                    successor.tick(place.strict)
                assert place.settings == enforced, when
        assert_released(place, journal, before, when)
        if not killed:
            assert number > 20, "it made that many changes"
            return


def test_killed_at_any_moment(place: Place, tmp_path: Path) -> None:
    before, chance = place.settings, random.Random(7)
    for number in range(15):
        journal = tmp_path / f"{number}.db"
        child = os.fork()
        if child == 0:
            try:
                while True:
                    live(place, journal)
            finally:
                os._exit(1)
        time.sleep(chance.uniform(0.0, 0.1))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "it was alive and well until then"
        assert_released(place, journal, before, f"killed at moment {number}")


class Broken:
    """A function of ``os`` that fails at its ``number``-th call, in one way or another."""

    def __init__(self, real: Callable[..., Any], number: int, spoil: Callable[[Any], Any]) -> None:
        self._real, self._number, self._spoil = real, number, spoil
        self.calls = 0

    def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        if self.calls - 1 == self._number:
            return self._spoil(lambda: self._real(*arguments))
        return self._real(*arguments)


def refusing(number: int) -> Callable[[Any], Any]:
    def spoil(_call: Callable[[], Any]) -> Any:
        raise OSError(number, os.strerror(number))

    return spoil


def refusing_afterwards(call: Callable[[], Any]) -> Any:
    call()
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _cut(call: Callable[[], bytes]) -> bytes:
    text = call()
    return text[: len(text) // 2]


WAYS: dict[str, tuple[tuple[str, Callable[[Any], Any]], ...]] = {
    "pwrite": (
        *(
            (errno.errorcode[number], refusing(number))
            for number in (errno.EIO, errno.EINVAL, errno.EBUSY, errno.ENOENT)
        ),
        ("EIO afterwards", refusing_afterwards),
    ),
    "sched_setaffinity": (("ENOMEM", refusing(errno.ENOMEM)), ("EIO afterwards", refusing_afterwards)),
    "sched_getaffinity": (("EIO", refusing(errno.EIO)), ("ESRCH", refusing(errno.ESRCH))),
    "pread": (
        ("EIO", refusing(errno.EIO)),
        ("ENODEV", refusing(errno.ENODEV)),
        ("nothing", lambda _call: b""),
        ("a part", _cut),
        ("nonsense", lambda _call: b"?\n"),
    ),
}


@pytest.mark.parametrize("function", list(WAYS))
def test_each_system_call_fails(place: Place, tmp_path: Path, function: str) -> None:
    """Once, in a life of three ticks and a release: the third tick and the second release leave all as it is to be."""
    before = place.settings
    with agent(place, tmp_path / "reference.db") as one:
        one.tick(place.strict)
        enforced = place.settings
        one.release()
    journal = tmp_path / "journal.db"
    for way, spoil in WAYS[function]:
        for number in itertools.count():
            broken, when = Broken(getattr(os, function), number, spoil), f"{function} {number}: {way}"
            with agent(place, journal) as one:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(os, function, broken)
                    for _ in range(3):
                        one.tick(place.strict)
                    assert place.settings == enforced, when
                    one.release()
                one.release()
                assert place.settings == before, when
                assert not one.journal.entries, when
            if broken.calls <= number:
                break


def test_a_thread_that_nobody_may_move_keeps_no_other_from_being_moved(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, stubborn, real = place.settings, place.batch.tids["worker"], os.sched_setaffinity

    def refuse(tid: int, cpus: Any) -> None:
        if tid == stubborn:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(tid, cpus)

    with agent(place, tmp_path / "journal.db") as one:
        one.tick(place.strict)
        enforced = place.settings
        one.release()
        monkeypatch.setattr(os, "sched_setaffinity", refuse)
        one.tick(place.strict)
        assert place.settings == enforced | {str(stubborn): before[str(stubborn)]}
        one.release()
        assert place.settings == before
        assert not one.journal.entries


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("ends", ["pinning", "control"])
def test_a_vcpu_that_comes_while_the_emulator_is_still_pinned(
    place: Place, tmp_path: Path, ends: str, killed: bool
) -> None:
    """The kernel starts its thread where the main thread runs, which could not be given back; one of the operator's
    own vCPUs is pinned just there."""
    os.sched_setaffinity(place.web.tids["CPU 0/TCG"], {FIRST})
    before, journal, real = place.settings, tmp_path / "journal.db", os.sched_setaffinity

    def refuse(tid: int, cpus: Any) -> None:
        if tid == place.web.pid:
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        real(tid, cpus)

    def go_back(one: Agent) -> TickResult:
        return one.release() if ends == "control" else one.tick(place.lenient)

    def live_until_it_fails(one: Agent) -> None:
        one.tick(place.strict)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "sched_setaffinity", refuse)
            failed = [outcome for outcome in go_back(one).outcomes if outcome.kind is OutcomeKind.FAILED]
        assert [outcome.key.knob for outcome in failed] == [Knob.EMULATOR_PIN]

    def die() -> None:
        live_until_it_fails(Agent(place, journal))
        os.kill(os.getpid(), signal.SIGKILL)

    first = None if killed else Agent(place, journal)
    if first:
        live_until_it_fails(first)
    else:
        assert in_a_child(die)
    came = place.web.tell("start CPU 1/TCG")
    assert affinity(came) == {FIRST}, "it inherited our pin"
    one = first or Agent(place, journal)
    go_back(one)
    assert affinity(came) == ONLINE
    one.release()
    assert place.settings == before | {str(came): ONLINE}
    assert not one.journal.entries
    one.end()
