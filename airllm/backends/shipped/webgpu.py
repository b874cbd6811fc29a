"""The WebGPU backend, on wgpu: cpp_ext/tensor_ops_webgpu/."""

from airllm.backends.declaration import Declaration

BACKEND = Declaration(
    module="tensor_ops_webgpu",
    title="WebGPU",
    runs_on="WebGPU",
    rank=40,
    packages=("wgpu",),
    extra="webgpu",
    number_in_cpp=4,
    colour="#b8912a",
)
