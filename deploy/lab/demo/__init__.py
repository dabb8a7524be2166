"""The demonstration: one memcached, one NGINX and two batch VMs under the same load in four phases.

``deploy/demo`` sets the machine up and runs it; ``python -m deploy.lab.demo --help`` says what it measures.
"""
