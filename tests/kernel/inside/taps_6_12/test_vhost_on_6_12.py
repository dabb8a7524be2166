"""Packets that vhost carries, in Debian 13's kernel, which has TCX links."""

from __future__ import annotations

from tests.kernel.inside.taps.test_vhost_on_kernels import (
    test_answers_that_vhost_sends_by_another_queue,
)

__all__ = ["test_answers_that_vhost_sends_by_another_queue"]
