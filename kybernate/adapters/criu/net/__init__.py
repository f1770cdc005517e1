"""Sockets, addresses and namespaces of a tree's network."""
