"""SnapshotTemplates: a warmed-up workload of which pods start as copies."""
