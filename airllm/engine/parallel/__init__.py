"""Tensor parallelism: several processes, or several kernels of one process, share a model."""
