"""Artifacts on their way between places, nodes and clusters."""
