"""Benches: each sets up what it needs, takes it down again, and ends with one JSON line."""
