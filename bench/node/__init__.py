"""Benches of one node: wakes, parks, the agent at rest, a real GPU."""
