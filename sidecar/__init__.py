"""Answers a managed pod's probes while it is parked, and talks to its engine.

Standard library only, one small process: it runs beside every workload that has probes to be
answered. In the pod of a SnapshotTemplate it makes the first requests instead. Its page is
docs/concepts/sidecar.md.
"""
