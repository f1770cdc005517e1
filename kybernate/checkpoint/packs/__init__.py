"""Artifacts as packs of chunks: written, known, fetched and swept."""
