"""The control loop: collect, decide, resolve, diff, apply; its journal, its schedule, and its talk with the manager."""
