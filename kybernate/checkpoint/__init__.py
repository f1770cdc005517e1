"""Artifacts on their way: sealed, packed, fetched, verified, swept, carried elsewhere."""
