"""The kubelet's device plugin for seats on GPU groups."""
