"""One seat: its record, its life, its steps; the node's seats together."""
