"""Keys that sign and wrap artifacts."""
