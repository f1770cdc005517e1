"""What pods are made of artifacts, and who asks for them, as objects."""
