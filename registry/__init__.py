"""The registry: which artifacts exist, where they are, and which pod continues from which."""
