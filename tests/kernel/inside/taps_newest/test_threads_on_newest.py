"""The program on threads in the newest kernel."""

from __future__ import annotations

from tests.kernel.inside.taps.test_threads_on_kernels import (
    test_marks_tell_an_affinity_a_thread_more_and_the_end,
    test_threads_that_run_and_wait,
)

__all__ = ["test_marks_tell_an_affinity_a_thread_more_and_the_end", "test_threads_that_run_and_wait"]
