"""The extender's calls: from bytes to answers."""
