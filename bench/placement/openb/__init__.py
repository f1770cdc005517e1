"""Replays production workloads of GPU clusters through the product's placement."""
