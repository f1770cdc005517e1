"""What e2e tests and benches share: seat pods, waiting for them, talking to their models."""
