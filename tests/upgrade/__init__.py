"""Releases beside each other: parts of one release with parts of the next, and back again."""
