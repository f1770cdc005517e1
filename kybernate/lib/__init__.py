"""Mechanics that many parts share: nothing here knows of seats, GPUs or Kubernetes."""
