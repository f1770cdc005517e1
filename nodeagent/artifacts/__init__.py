"""What becomes of artifacts: who may continue from one, and who may drop it."""
