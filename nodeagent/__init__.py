"""The node agent: owner of a node's seats."""
