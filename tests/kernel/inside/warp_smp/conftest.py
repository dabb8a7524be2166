"""The scheduler in a guest with four CPUs, whose time is counted in instructions."""

from __future__ import annotations

from tests.kernel.inside.warp.conftest import bvt, groups, prompt

__all__ = ["bvt", "groups", "prompt"]
