"""A simulated host: pCPUs, vCPUs, weighted sharing, requests and batch work behind the interface of a real one.

What comes out of it is always labelled as simulated.
"""
