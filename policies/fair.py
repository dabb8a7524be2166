"""`fair`: weights from response times, so that applications violate their SLAs as rarely and as alike as can be.

Blagodurov et al., "Maximizing server utilization while meeting critical SLAs via weight-based collocation management",
IM 2013, section V.B.
"""

from __future__ import annotations

from manager.model.registration import Sharing
from policies.feedback import Feedback

POLICY = Feedback(
    "fair",
    "Feedback: an application that is nearer to violating its SLA gets more weight, whatever its load.",
    Sharing.FAIR,
)
