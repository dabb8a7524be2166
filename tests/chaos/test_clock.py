"""A clock that jumps: of the time of day, as when it is first set; the other one goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.loop.observer import Clock
from manager.loop.tick import TickResult
from tests.loop.conftest import Rig


class Jumping(Rig):
    """A loop whose time of day is another from tick to tick."""

    epoch_s = 1.8e9

    def clock(self) -> Clock:
        return Clock(self.epoch_s, self.now_s)

    def at(self, epoch_s: float) -> TickResult:
        self.epoch_s = epoch_s
        return self.tick()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0, 86_400.0 * 365, -86_400.0 * 365, 0.5, -0.5])
def test_control_goes_on_and_nothing_is_undone_or_done_again(tmp_path: Path, jump_s: float) -> None:
    rig = Jumping(tmp_path)
    for name, vm_class in (("web", "critical"), ("batch", "batch")):
        rig.host.boot(name)
        rig.register(name, vm_class)
    before = rig.host.settings()
    first = rig.at(1.8e9)
    assert {record.outcome for record in first.records} == {"applied"}
    held = rig.host.settings()
    seen = [rig.at(1.8e9 + jump_s), rig.at(1.8e9 + 1), rig.at(1.8e9 + 2 + jump_s)]
    assert [(one.records, one.problems) for one in seen] == [((), ())] * 3
    assert [one.at_s for one in seen] == [1.8e9 + jump_s, 1.8e9 + 1, 1.8e9 + 2 + jump_s]
    assert all(0 <= vm.cpu_share <= 1 for one in seen for vm in one.snapshot.vms), "rates are by the other clock"
    assert rig.host.settings() == held
    rig.crash()
    assert rig.at(1.8e9 - jump_s).records == ()
    rig.loop.release("test")
    assert rig.host.settings() == before
    rig.journal.close()
