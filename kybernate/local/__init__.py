"""One box without Kubernetes: the agent behind local ports, and the requests' way to it."""
