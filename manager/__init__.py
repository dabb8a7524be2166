"""Equipoise: co-location software for KVM hosts. See docs/ for how it is laid out and what it does to a host."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("equipoise")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0.0.0+checkout"
