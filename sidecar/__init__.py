"""Answers a managed pod's probes while it is parked, and talks to its engine.

Standard library only, one small process: it runs beside every workload that has probes to be
answered. Its page is docs/concepts/sidecar.md.
"""
