"""MLX: cpp_ext/tensor_ops_mlx/."""

import sys

from airllm.backends.declaration import Declaration

BACKEND = Declaration(
    module="tensor_ops_mlx",
    title="MLX",
    runs_on="Metal or CPU",
    aliases=("mps", "metal") if sys.platform == "darwin" else (),
    rank=20,
    packages=("mlx",),
    extra="mlx",
    colour="#d6457b",
)
