"""The mechanisms for warps on this kernel: finding out which there are, setting them, and reading them back."""
