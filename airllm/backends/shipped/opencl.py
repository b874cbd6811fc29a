"""The OpenCL backend, on pyopencl: cpp_ext/tensor_ops_opencl/."""

from airllm.backends.declaration import Declaration

_DRIVER = "and a driver: of the GPU, or Debian: pocl-opencl-icd for the CPU; see clinfo"

BACKEND = Declaration(
    module="tensor_ops_opencl",
    title="OpenCL",
    runs_on="OpenCL",
    rank=30,
    in_shipped_order=True,
    packages=("pyopencl",),
    array_packages=("pyopencl",),
    extra="opencl",
    remedy=f"{_DRIVER} (python setup.py build_opencl tries it)",
    remedy_where_installed=_DRIVER,
    colour="#1fa37c",
    keys={"opencl_device": "airllm.backends.config_schema:device"},  # not in a new file: has a default
    number_in_cpp=1,
    folders=("gpu_kernels",),  # CUDA compiles the same source
    recipe="build_opencl",
)
