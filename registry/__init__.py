"""The registry: which saved states exist, where they are, and which pod goes on from which."""
