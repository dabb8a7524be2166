"""Value types of Equipoise: frozen, slotted dataclasses. This package imports nothing of ours and does no I/O."""
