"""The GPU day: `make test-gpu`, or `python -m tests.gpu`, within nine minutes on a real GPU.

It asks a real NVIDIA driver all that Kybernate assumes of it, and writes one JSON with an answer to
each question of `questions`. Nothing is fetched. What can't be asked here is answered with a
sentence: without a GPU, without root, without PyTorch, under gVisor. `--simulate` asks the
simulated driver, so that the whole day is tried before a GPU is at hand.
"""
