"""The decision core: pure functions of (snapshot, event, now)."""
