"""The command line."""

from manager.cli.main import main

__all__ = ["main"]
