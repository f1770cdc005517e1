"""Bringing a cluster up, knowing that it is, and taking it down."""
