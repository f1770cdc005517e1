"""Placing bare GPUs, as published traces have them; the product places seats."""
