"""What the extender knows of the cluster."""
