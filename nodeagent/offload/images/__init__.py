"""A dump's images: CRIU writes them, and the agent puts beside and into them what they need."""
