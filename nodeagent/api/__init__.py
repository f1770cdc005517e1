"""The agent's doors: gRPC services, proxies' streams, other nodes' agents, the seats' sockets."""
