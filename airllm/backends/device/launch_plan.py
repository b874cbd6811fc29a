"""Shared parts of the backends' launch tables: the call that a plan is made for, and the plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any, Generic, TypeVar

import numpy as np

from airllm import formats

# Numbers of block formats in kernels; they follow those of TYPES.
FIRST_BLOCK_FORMAT = 16
FORMATS = {name: FIRST_BLOCK_FORMAT + of.ggml_type for name, of in formats.FORMATS.items()}
# As in dynamic_dtype.h and dtypes.wgsl.
TYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "bool": 4, "uint8": 4, "int32": 5, "int64": 6}
# Arrays that kernels take with strides; the last axis must be contiguous. All others are dense.
STRIDED: Mapping[str, tuple[str, ...]] = {"softmax": ("mask",), "attention": ("q", "k", "v", "mask")}
ALIKE = {"attention": ("k", "v"), "apply_rope": ("cos", "sin")}  # equal in dtype; equal in shape

L = TypeVar("L")
C = TypeVar("C", bound="KernelCall")


@dataclass(frozen=True)
class Plan(Generic[L]):
    """Kernel launches in order, and the sizes in bytes of the scratch buffers that they name."""

    launches: tuple[L, ...]
    scratch: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class KernelCall:
    """An op's name, with its arrays and its parameters by name."""

    op: str
    arrays: Mapping[str, Any]
    parameters: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Whether an array is given and not empty."""
        array = self.arrays.get(name)
        return array is not None and 0 not in array.shape

    def number(self, name: str) -> np.float32:
        """A parameter as float32, for a kernel."""
        with np.errstate(over="ignore"):  # overflow gives infinity, as in the other backends
            return np.float32(self.parameters[name])

    def with_one_part(self: C) -> tuple[C, int, int]:
        """The call of attention with the first part of queries that are sums of parts, which lie along an
        axis before the others; how many parts there are, and how many elements they are from each other.
        """
        q = self.arrays["q"]
        if not self.parameters.get("in_parts"):
            return self, 1, 0
        return replace(self, arrays={**self.arrays, "q": q[0]}), len(q), q.strides[0] // q.itemsize

    def scale_and_softcap(self) -> tuple[np.float32, np.float32]:
        """The scale and softcap of attention; 0 for no softcap."""
        d, scale = self.arrays["q"].shape[-1], self.parameters["scale"]
        with np.errstate(over="ignore"):
            return (
                np.float32(1 / sqrt(d) if scale is None and d else scale or 0.0),
                np.float32(self.parameters["softcap"] or 0.0),
            )


def is_quantized(array: Any) -> bool:
    """Whether `array` is a Quantized."""
    return hasattr(array, "format") and hasattr(array, "data")


def ceil_div(count: int, size: int) -> int:
    """`count` / `size`, rounded up."""
    return -(-count // size)
