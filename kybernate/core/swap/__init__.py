"""Who is in GPU memory: the decision, its turns, and what it is told of demand. Pure."""
