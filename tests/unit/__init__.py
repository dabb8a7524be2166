"""Unit tests: no host, no libvirt, no root."""
