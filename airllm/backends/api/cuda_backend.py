"""The CUDA backend with its options."""

from airllm.backends.api.kernel_backend import KernelBackend


def with_cutlass(wanted: bool) -> KernelBackend:
    """The CUDA backend; if `wanted`, its products must be cuBLAS's, which are built with CUTLASS."""
    backend = KernelBackend("cuda")
    found = backend.extension("get_cuda_info")()["matmul"]
    if wanted and not found.startswith("cublas"):
        raise ValueError(f"use_cutlass_kernel has value True, expected False or None: products are {found}")
    return backend
