"""Containers: their process 1, their runtime, and what the kubelet gave them."""
