"""The only code that touches libvirt or the kernel."""
