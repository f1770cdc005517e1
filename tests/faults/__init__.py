"""The failure matrix: what breaks, in which state a seat is then, and what its user sees."""
