"""The random workload on four CPUs, for a short while; ``tests/kernel/run warp --part soak`` goes on longer."""

from __future__ import annotations

import pytest

from manager.host.sched_ext import SchedExt
from tests.kernel.inside.warp import soak

SECONDS = 10.0
SEED = 1


@pytest.mark.short
def test_no_task_is_lost(bvt: SchedExt) -> None:
    done = soak.run(bvt, SECONDS, SEED).done
    assert set(done) == {"start", "end", "move", "affinity", "nice", "policy", "weight", "warp", "group", "cpu"}
