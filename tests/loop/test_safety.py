"""Invariants of the loop under arbitrary histories, and a crash at every step of every write."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Mode
from tests.fakes.host import FakeHost
from tests.fakes.vm import domain_uuid
from tests.loop.conftest import Rig

NAMES = ("a", "b", "c", "d")


class Killed(BaseException):
    """The process ends here and now."""


class LoopMachine(RuleBasedStateMachine):
    """VMs come and go, writes fail, others meddle, the agent dies: originals are never lost."""

    @initialize()
    def start(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.rig = Rig(self.folder)
        for index, name in enumerate(NAMES):
            self.rig.register(name, "critical" if index < 3 else "batch")
        self.originals: dict[KnobKey, KnobValue] = {}
        self.meddled: set[KnobKey] = set()

    def teardown(self) -> None:
        self.rig.journal.close()
        shutil.rmtree(self.folder)

    @rule(name=st.sampled_from(NAMES), vcpus=st.integers(1, 3))
    def boot(self, name: str, vcpus: int) -> None:
        uuid = domain_uuid(name)
        self._forget(uuid)
        self.rig.host.boot(name, vcpus)
        self.originals |= {key: value for key, value in self.rig.host.settings().items() if key.uuid == uuid}

    @rule(name=st.sampled_from(NAMES), told=st.booleans())
    def stop(self, name: str, told: bool) -> None:
        self._forget(domain_uuid(name))
        if told:
            self.rig.host.stop(name)
        else:
            self.rig.host.vanish(name)

    def _forget(self, uuid: str) -> None:
        self.originals = {key: value for key, value in self.originals.items() if key.uuid != uuid}
        self.meddled = {key for key in self.meddled if key.uuid != uuid}

    @rule(failures=st.lists(st.sampled_from([0, errno.EIO, errno.EINVAL, errno.EBUSY]), max_size=4))
    def tick(self, failures: list[int]) -> None:
        self.rig.host.fail_next = failures
        self.rig.tick()
        self.rig.host.fail_next = []

    @rule(crash_at=st.integers(0, 6))
    def tick_and_die(self, crash_at: int) -> None:
        real, count = self.rig.host.write, 0

        def write(instance, key, value):
            nonlocal count
            if count == crash_at:
                raise Killed
            count += 1
            return real(instance, key, value)

        self.rig.host.write = write  # type: ignore[method-assign]
        try:
            self.rig.tick()
        except Killed:
            pass
        finally:
            self.rig.host.write = real  # type: ignore[method-assign]
        self.rig.crash()

    @rule(policy=st.sampled_from(["equal", "priority"]), mode=st.sampled_from(list(Mode)), pinning=st.booleans())
    def reconfigure(self, policy: str, mode: Mode, pinning: bool) -> None:
        self.rig.control(policy=policy, mode=mode, pinning=pinning)

    @precondition(lambda self: self.originals)
    @rule(data=st.data(), weight=st.integers(500, 600))
    def meddle(self, data: st.DataObject, weight: int) -> None:
        key = data.draw(st.sampled_from(sorted(key for key in self.originals if key.knob is Knob.WEIGHT)))
        owned = self.rig.journal.entries.get(key)
        self.rig.host.change(key, weight)
        if owned is not None:
            self.meddled.add(key)
        else:
            self.originals[key] = weight

    @rule()
    def release_restores(self) -> None:
        self.rig.loop.release("test")
        actual = self.rig.host.settings()
        for key, original in self.originals.items():
            if key in self.meddled:
                continue
            assert actual[key] == original
        assert not self.rig.journal.entries
        for key in self.meddled:  # the meddler's value is the new original
            self.originals[key] = actual[key]
        self.meddled = set()

    @invariant()
    def no_vm_is_stacked_on_itself(self) -> None:
        if not hasattr(self, "rig"):
            return
        entries = self.rig.journal.entries
        pinned = [
            (key.uuid, min(value))
            for key, value in self.rig.host.settings().items()
            if key.knob is Knob.VCPU_PIN and key in entries and isinstance(value, frozenset) and len(value) == 1
        ]
        assert len(pinned) == len(set(pinned))

    @invariant()
    def every_difference_is_in_the_journal(self) -> None:
        if not hasattr(self, "rig"):
            return
        for key, value in self.rig.host.settings().items():
            if key not in self.meddled and value != self.originals[key]:
                assert self.rig.journal.entries[key].owned.original == self.originals[key]


TestLoopMachine = LoopMachine.TestCase
TestLoopMachine.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("step", range(8))
@pytest.mark.parametrize("after_write", [False, True])
@pytest.mark.parametrize("then", ["resume", "release"])
def test_killed_at_every_step(tmp_path: Path, step: int, after_write: bool, then: str) -> None:
    rig = Rig(tmp_path, FakeHost())
    for name, vm_class in (("web", "critical"), ("db", "critical"), ("batch", "batch")):
        rig.host.boot(name)
        rig.register(name, vm_class)
    before = rig.host.settings()
    real, count = rig.host.write, 0

    def write(instance, key, value):
        nonlocal count
        count += 1
        if count == step + 1:
            if after_write:
                real(instance, key, value)
            raise Killed
        return real(instance, key, value)

    rig.host.write = write  # type: ignore[method-assign]
    with contextlib.suppress(Killed):
        rig.tick()
    rig.host.write = real  # type: ignore[method-assign]
    rig.crash()
    if then == "resume":
        result = rig.tick()
        assert not [record for record in result.records if record.outcome == "external"]
        assert (rig.value("web"), rig.value("batch")) == (10_000, 2)
    rig.loop.release("test")
    assert rig.host.settings() == before
    assert not rig.journal.entries
    rig.journal.close()
