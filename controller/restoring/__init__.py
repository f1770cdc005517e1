"""Artifacts as objects, and the pods that RestoreRequests ask for."""
