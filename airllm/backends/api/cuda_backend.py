"""The CUDA backend with options of its own."""

from airllm.backends.api.kernel_backend import KernelBackend


def with_cutlass(wanted: bool) -> KernelBackend:
    """cuBLAS's kernels are made with CUTLASS; the other products are this library's own."""
    backend = KernelBackend("cuda")
    found = backend.extension("get_cuda_info")()["matmul"]
    if wanted and not found.startswith("cublas"):
        raise ValueError(f"use_cutlass_kernel has value True, expected False or None: products are {found}")
    return backend
