"""The C++ backend, with SIMD and threads: cpp_ext/tensor_ops_cpp.cpp, cpp_ext/bindings/, cpp_ext/cpu/."""

from airllm.backends.declaration import Declaration

_COMPILER = "install a C++ compiler (Debian: g++ python3-dev), then"

BACKEND = Declaration(
    module="tensor_ops_cpp",
    title="CPU",
    runs_on="CPU",
    aliases=("cpu", "openmp"),
    rank=50,
    in_shipped_order=True,
    on_processor=True,
    remedy=f"{_COMPILER}: python setup.py build_ext --inplace",
    remedy_where_installed=f"{_COMPILER} install airllm again, from its sources",
    colour="#2f80ed",
    settings=("AIRLLM_CPU_ISA", "AIRLLM_NUM_THREADS", "AIRLLM_CPU_INTERLEAVE", "AIRLLM_CPU_PREFETCH"),
    options={"num_workers": "airllm.backends.api.cpp_backend:with_workers"},
    threads="airllm.backends.api.cpp_backend:with_threads",
    number_in_cpp=2,
    name_in_cpp="cpu",
    recipe="cpp_build",
)
