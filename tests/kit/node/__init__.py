"""Containers without Kubernetes, and what runs in them."""
