"""Packets that threads of vhost carry, of a guest with two queues, are seen like those that QEMU carries itself."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing

from manager.host.taps import TapProgram
from tests.host.tap_queues import Guest, VhostQueue, bridge, serve, tap
from tests.kernel.inside.cgroup_v2.modules import load_vhost

NAME, QUEUES = "eqp-vhost", 2


def test_answers_that_vhost_sends_by_another_queue(program: TapProgram) -> None:
    load_vhost()
    with ExitStack() as opened:
        queues = [opened.enter_context(closing(VhostQueue(each))) for each in opened.enter_context(tap(NAME, QUEUES))]
        interface = socket.if_nametoindex(NAME)
        program.attach(interface)
        opened.callback(program.detach, interface)
        serve(Guest(interface, queues, opened.enter_context(bridge(NAME))), program)
