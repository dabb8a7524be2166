"""Threads of vhost, which carry a VM's packets, follow its emulator's pin: before Linux 6.4 they are the kernel's."""

from __future__ import annotations

import os
from pathlib import Path

from manager.model.knobs import Knob, KnobKey
from tests.kernel.inside.cgroup_v2.conftest import ONLINE, Vm, open_host
from tests.kernel.inside.cgroup_v2.modules import load_vhost

ONE = frozenset({1})


def vhost_thread(pid: int) -> int:
    """Wherever it is."""
    files = Path("/proc").glob("[0-9]*/task/[0-9]*/comm")
    [tid] = [int(file.parent.name) for file in files if file.read_text() == f"vhost-{pid}\n"]
    return tid


def test_they_follow_the_emulators_pin_and_their_time_is_counted(spare: Vm) -> None:
    load_vhost()
    spare.process.tell("vhost")
    host, instance, key = open_host(spare), spare.instance, KnobKey(spare.process.uuid, Knob.EMULATOR_PIN)
    try:
        tid = vhost_thread(spare.process.pid)
        assert os.sched_getaffinity(tid) == ONLINE
        assert host.write(instance, key, ONE) == ONE
        assert os.sched_getaffinity(tid) == ONE
        host.write(instance, key, ONLINE)
        assert os.sched_getaffinity(tid) == ONLINE
        assert (host.resources.vm(instance).vhost_ns or 0) > 0
    finally:
        spare.process.tell("vhost")
        host.forget(frozenset())
