"""Nodes' certificates and namespaces' keys."""
