"""The lab: guests, load and demonstrations on one small machine."""
