"""resctrl, the kernel's file system for cache ways and memory bandwidth: Documentation/filesystems/resctrl.rst."""
