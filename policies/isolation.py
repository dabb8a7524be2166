"""`isolation`: as `fair`, but an application above its agreed request rate pays for it alone.

Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation management",
IM 2013, section V.C.
"""

from __future__ import annotations

from manager.model.registration import Sharing
from policies.feedback import Feedback

POLICY = Feedback(
    "isolation",
    "Feedback as `fair`, but an application above its agreed rate gets the least weight of critical VMs.",
    Sharing.ISOLATION,
)
