"""The CUDA driver's checkpoint calls, made in processes that can be killed."""
