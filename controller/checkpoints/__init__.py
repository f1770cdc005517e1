"""CheckpointRequests, which nodes' agents carry out."""
