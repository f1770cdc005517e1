"""The object store, and agents' access to it."""
