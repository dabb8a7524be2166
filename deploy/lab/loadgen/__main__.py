"""``python -m deploy.lab.loadgen``."""

from deploy.lab.loadgen.cli import main

main(prog_name="python -m deploy.lab.loadgen")
