"""When to look for VMs anew because somebody sends whose address is not known. Pure."""

from __future__ import annotations

from collections import OrderedDict

FIRST_S, LONGEST_S = 5.0, 80.0
AGAIN_S = 60.0
"""One sender that stayed unknown gives no reason to look again for so long."""
MOST = 1024


class Strangers:
    """Bounds how often that happens: by sender, and of all the more rarely the longer strangers send."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._looked_s = float("-inf")
        self._gap_s = FIRST_S

    def should_look(self, address: str, now_s: float) -> bool:
        """Whether to look now, by a clock that only grows; then it counts as done."""
        if now_s - self._looked_s < self._gap_s or now_s - self._seen.get(address, float("-inf")) < AGAIN_S:
            return False
        self._gap_s = FIRST_S if now_s - self._looked_s > 2 * LONGEST_S else min(2 * self._gap_s, LONGEST_S)
        self._looked_s = now_s
        self._seen[address] = now_s
        self._seen.move_to_end(address)
        if len(self._seen) > MOST:
            self._seen.popitem(last=False)
        return True
