"""Swap policies side by side, in virtual time: ours, and others' by their published rules."""
