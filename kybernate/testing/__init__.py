"""Fakes at our own ports, and a virtual clock."""
