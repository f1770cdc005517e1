"""Benches of many nodes: extender, scheduler, storms."""
