"""Holds TCP back from a pod whose tree is parked, and tells of what arrives."""

from .gate import NetGate

__all__ = ["NetGate"]
