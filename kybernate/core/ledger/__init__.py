"""Which seats there are and who holds them, cluster-wide. Pure."""
