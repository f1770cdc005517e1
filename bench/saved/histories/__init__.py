"""Histories of the registry's leases, claims and stops, judged by a checker of linearizability."""
