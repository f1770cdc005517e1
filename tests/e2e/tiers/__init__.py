"""States below RAM: parked, saved, restored and moved."""
