"""The demonstrations: services and batch VMs under the same load in five phases, a load spike, and policies that cure.

``deploy/demo`` sets the machine up and runs it; ``python -m deploy.lab.demo --help`` says what they measure.
"""
