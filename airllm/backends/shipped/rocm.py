"""The ROCm backend for AMD's GPUs: the sources of the CUDA backend, compiled by hipcc."""

from airllm.backends.declaration import Declaration

BACKEND = Declaration(
    module="tensor_ops_rocm",
    title="ROCm",
    runs_on="ROCm",
    rank=15,
    remedy="python setup.py build_hip",
    remedy_where_installed="install airllm from its sources, where ROCm's hipcc is: "
    "AIRLLM_WITH_ROCM=1 pip install .",
    colour="#c9762b",
    number_in_cpp=6,
    recipe="rocm_build",
)
