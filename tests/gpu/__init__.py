"""Tests on a real NVIDIA driver: `make test-gpu`, or `python -m tests.gpu` without pytest.

They need a GPU, root, cuda-bindings and nvidia-ml-py; no cluster and no network. PyTorch is used if
it is there. Without a GPU they say that they were skipped and why.
"""
