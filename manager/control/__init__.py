"""Pure arithmetic: SLA state, placement, resolving a decision into a plan, and the difference of plan and host.

Imports only ``manager.model``; every function takes all it needs, time included, as arguments.
"""
