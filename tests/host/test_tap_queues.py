"""A tap with several queues: whichever a packet takes, the program sees it, and each answer finds its request."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from manager.host.taps import TapProgram
from manager.model.traffic import TapWay
from tests.host.conftest import REAL
from tests.host.tap_queues import Guest, PlainQueue, bridge, serve, tap

NAME, QUEUES = "eqp-queues", 4

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bpftool") is None or not Path("/dev/net/tun").exists(),
    reason="NOT TESTED: needs root, bpftool and /dev/net/tun",
)


@pytest.fixture
def guest() -> Iterator[Guest]:
    with ExitStack() as opened:
        queues = [PlainQueue(descriptor) for descriptor in opened.enter_context(tap(NAME, QUEUES))]
        yield Guest(socket.if_nametoindex(NAME), queues, opened.enter_context(bridge(NAME)))


@pytest.mark.parametrize("way", TapWay)
def test_answers_that_take_another_queue_than_their_requests(guest: Guest, way: TapWay) -> None:
    """With answers of 60 KB that leave the guest in one piece, to be cut into segments later."""
    with closing(TapProgram(REAL, ways=[way])) as program:
        assert program.attach(guest.interface) is way
        assert len(serve(guest, program)) > 1
