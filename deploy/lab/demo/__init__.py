"""The demonstrations: services and batch VMs under the same load in five phases, and a load spike.

``deploy/demo`` sets the machine up and runs it; ``python -m deploy.lab.demo --help`` says what they measure.
"""
