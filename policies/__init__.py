"""One file a policy, and the registry. A policy is a pure function from a snapshot to a decision.

Policies import only ``manager.model`` and ``manager.control``. Packages of others add theirs through the entry-point
group ``equipoise.policies``.
"""
