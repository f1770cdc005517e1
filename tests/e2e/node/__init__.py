"""A node's devices, guards, probes and runtime."""
