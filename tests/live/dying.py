"""`equipoise agent` that kills itself, with SIGKILL, just before or after its first write of a kind.

python -m tests.live.dying before|after weight|vcpu_pin|emulator_pin
"""

from __future__ import annotations

import os
import signal
import sys

from manager.cli import main
from manager.host.kernel_host import KernelHost
from manager.model.host import VmInstance
from manager.model.knob_spec import KnobValue
from manager.model.knobs import KnobKey


def arm(moment: str, knob: str) -> None:
    """Make the next write of that knob the agent's last act, or its first omission."""
    real = KernelHost.write

    def write(self: KernelHost, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        if key.knob == knob and moment == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        held = real(self, instance, key, value)
        if key.knob == knob:
            os.kill(os.getpid(), signal.SIGKILL)
        return held

    KernelHost.write = write  # type: ignore[method-assign]


if __name__ == "__main__":
    arm(sys.argv[1], sys.argv[2])
    sys.argv[1:] = ["agent"]
    main()
