"""Tensor operations of large language models on whatever the machine has: NumPy, C++ SIMD, OpenCL, CUDA.

`from airllm import tensor_ops` picks the backend. This package itself imports nothing, so that its
configuration can be read and written (`python setup.py configure_backend`) without NumPy.
"""

__version__ = "0.1.0"
