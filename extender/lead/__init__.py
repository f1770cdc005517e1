"""Which replica binds."""
