"""Container images without a container daemon.

    python -m images build            every image, as OCI archives in build/images/
    python -m images build sidecar    only this one

An image has up to four layers: a pruned Debian userland that holds what Python needs and nothing
else (no shell, no package manager), the locked wheels that all services need, those of one
service's extra, and our code. The same inputs give the same digests.
"""
