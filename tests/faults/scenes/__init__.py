"""What stands on the stage when a part breaks, and what can be seen of it."""
