"""What a move to another pod or node needs, notes and sends. Pure."""
