"""Pods as they are created and changed: what is refused, advised and added."""
