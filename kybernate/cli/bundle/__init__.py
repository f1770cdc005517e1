"""`kubectl kyb support-bundle`: what a cluster has to say, in one file, without secrets."""
