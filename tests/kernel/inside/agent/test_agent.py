"""Our scheduler in the hands of a whole agent."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.host.conftest import until
from tests.kernel.inside.agent.conftest import Agent, loads


def test_loaded_thrown_out_loaded_again_left_behind_by_a_kill_and_given_back(agent: Agent) -> None:
    """One story, since an emulated machine takes half a minute to start an agent."""
    before, loaded = [vm.settings() for vm in agent.vms], loads()
    agent.start()
    until(agent.controls, "the warp is in force")
    thrown_out_s = time.monotonic()
    Path("/proc/sysrq-trigger").write_text("S")  # Documentation/admin-guide/sysrq.rst: back to the fair class
    until(lambda: "threw our sched_ext scheduler out" in agent.log, "that is told")
    assert time.monotonic() - thrown_out_s < 1.0
    assert loads() == loaded + 1, "it is not tried again at once"
    until(agent.controls, "the warp is in force again")
    assert 9 < time.monotonic() - thrown_out_s < 19, "after 10 s, and not after 20"
    assert loads() == loaded + 2
    agent.end(signal.SIGKILL)
    assert agent.controls(), "what was set stays"
    agent.start()
    time.sleep(3)  # ticks
    assert agent.controls()
    assert loads() == loaded + 2, "the next agent goes on with it"
    assert agent.end(signal.SIGTERM) == 0, agent.log
    assert not agent.scheduler.active, agent.log
    assert [vm.settings() for vm in agent.vms] == before, agent.log
