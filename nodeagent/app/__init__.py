"""The agent put together: wiring, the loop, recovery. The only part that sees all others."""
