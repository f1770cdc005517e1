"""What is right and what is wrong with a node. Pure."""
