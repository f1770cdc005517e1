"""The kernel of the node: processes, cgroups, namespaces, memory, and files of containers."""
