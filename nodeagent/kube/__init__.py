"""Kubernetes as the agent sees it: pods, GPUNode, events, the device plugin's attendance."""
