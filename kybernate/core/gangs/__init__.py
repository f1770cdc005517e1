"""Pods that get their seats together, or none of them. Pure."""
