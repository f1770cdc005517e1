"""The whole chain on the one-machine cluster."""
