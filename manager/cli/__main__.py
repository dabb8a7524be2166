"""``python -m manager.cli`` is the command ``equipoise``."""

from manager.cli.main import main

main()
