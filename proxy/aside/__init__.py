"""What is asked beside requests: the registry, and the API server for what is scaled to zero."""
