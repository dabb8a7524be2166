"""The program on taps in the newest kernel."""

from __future__ import annotations

from tests.kernel.inside.taps.test_taps_on_kernels import (
    test_packets_with_known_answers,
    test_real_connections,
    test_requests_and_answers_that_share_packets,
    test_the_first_way_that_the_kernel_knows_is_taken,
)

__all__ = [
    "test_packets_with_known_answers",
    "test_real_connections",
    "test_requests_and_answers_that_share_packets",
    "test_the_first_way_that_the_kernel_knows_is_taken",
]
