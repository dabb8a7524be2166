"""The same on a newer kernel, with as many CLOSIDs as most machines have."""

from __future__ import annotations

import pytest

from tests.kernel.inside.resctrl.conftest import foreign, host, mounted, vms

__all__ = ["foreign", "host", "mounted", "vms"]


@pytest.fixture(scope="session")
def closids() -> int:
    """As the kernel was made to have."""
    return 16
