"""Whole Debian machines with systemd, cgroup v2 and libvirt, emulated, on which Equipoise is installed and run."""
