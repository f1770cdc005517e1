"""Kybernate: VRAM as a cache for active workloads. Names, types, the pure core, adapters."""
