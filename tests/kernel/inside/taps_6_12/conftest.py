"""The program on taps, loaded once in this guest."""

from __future__ import annotations

from tests.kernel.inside.taps.conftest import loaded, loopback, program

__all__ = ["loaded", "loopback", "program"]
