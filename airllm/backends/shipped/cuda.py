"""CUDA, in C++: cpp_ext/tensor_ops_cuda.cpp and cpp_ext/cuda/."""

from airllm.backends.declaration import Declaration

BACKEND = Declaration(
    module="tensor_ops_cuda",
    title="CUDA",
    runs_on="CUDA",
    rank=10,
    in_shipped_order=True,
    remedy="python setup.py build_cuda",
    remedy_where_installed="install airllm from its sources, where the CUDA toolkit is: "
    "AIRLLM_WITH_CUDA=1 pip install .",
    colour="#9057d6",
    options={"use_cutlass_kernel": "airllm.backends.cuda_backend:with_cutlass"},
    recipe="cuda_build",
)
