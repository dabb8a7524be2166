"""The model of a host's CPUs, which is part of its type."""

from __future__ import annotations

from pathlib import Path

import pytest

from manager.host.files import cpu_model
from manager.host.registry import HostPaths

X86 = "processor\t: 0\nvendor_id\t: Maker\nmodel\t\t: 85\nmodel name\t: Example  CPU @ 2.10GHz\n\nmodel name\t: Other\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"


@pytest.mark.parametrize(
    ("text", "model"),
    [
        (X86, "Example CPU @ 2.10GHz"),
        (ARM, "implementer 0x41, part 0xd0c"),
        ("CPU part\t: 0xd0c\n", ""),
        ("processor\t: 0\n", ""),
        (None, ""),
    ],
)
def test_the_model_of_the_first_cpu(tmp_path: Path, text: str | None, model: str) -> None:
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(text)
    assert cpu_model(HostPaths(tmp_path)) == model
