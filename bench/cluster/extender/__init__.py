"""What the extender's calls cost beside servers that only decode the same bodies."""
