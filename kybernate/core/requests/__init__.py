"""What becomes of requests that people write as objects, such as CheckpointRequests."""
