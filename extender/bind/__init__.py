"""Bindings of pods to groups, and what is told of them."""
