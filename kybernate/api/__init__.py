"""Kubernetes' objects as Kybernate reads and writes them: here alone their JSON is known."""
