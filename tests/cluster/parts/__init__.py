"""The parts of a cluster: accounts, certificates, configuration, services, nodes."""
