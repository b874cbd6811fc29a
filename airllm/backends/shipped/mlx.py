"""The MLX backend: cpp_ext/tensor_ops_mlx/."""

import sys

from airllm.backends.declaration import Absent, Declaration

_ON_A_MAC = ("mps", "metal")

BACKEND = Declaration(
    module="tensor_ops_mlx",
    title="MLX",
    runs_on="Metal or CPU",
    aliases=_ON_A_MAC if sys.platform == "darwin" else (),
    rank=20,
    packages=("mlx",),
    stands_for={
        "metal": Absent(
            "Metal",
            "Metal",
            "Metal needs an Apple GPU, and there is none here; name mlx to run it on the CPU",
            aliases=("mps",),
        )
    },
    number_in_cpp=3,
    aliases_in_cpp=_ON_A_MAC,
    extra="mlx",
    colour="#d6457b",
)
