"""The registry as its callers see it: what is said, and the client that says it."""
