"""The CUDA backend: cpp_ext/tensor_ops_cuda.cpp and cpp_ext/cuda/."""

from airllm.backends.declaration import Absent, Declaration

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
    options={"use_cutlass_kernel": "airllm.backends.api.cuda_backend:with_cutlass"},
    stands_for={
        "triton": Absent(
            "Triton",
            "CUDA",
            "there is no backend for Triton: its kernels run on PyTorch's tensors alone, and without a GPU "
            "only in its interpreter; cuda runs on the same GPUs without PyTorch",
        ),
        "cudnn": Absent(
            "cuDNN",
            "CUDA",
            "cuDNN is a library, not a backend: cuda has kernels of its own for all that it would do here",
        ),
    },
    number_in_cpp=0,
    recipe="cuda_build",
)
