"""A simulated node's folder: its description, memory and records (`native/simgpu`)."""
