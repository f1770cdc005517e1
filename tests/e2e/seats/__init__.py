"""Pods with seats: who gets which, when, and what becomes of requests."""
