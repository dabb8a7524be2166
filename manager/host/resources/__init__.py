"""What VMs and the host use besides CPU time, as the kernel counts it. Nothing is written."""
