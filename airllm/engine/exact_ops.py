"""The ops of a backend without the rounding of activations."""

from __future__ import annotations

from typing import Any

import numpy as np

from airllm.backends.api.kernel_backend import KernelBackend
from airllm.formats import Quantized


class ExactOps:
    """The ops of a backend, but `linear` dequantizes stored weights to float32 first, so that activations are
    never rounded to 8 bits. Slow: it measures what that rounding costs.
    """

    def __init__(self, ops: KernelBackend):
        self.backend = ops

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    def __repr__(self) -> str:
        return f"{self.backend.name()} in float32"

    def extension(self, name: str) -> Any:
        """What a device has for experts, heads and recurrent states, which does not round activations;
        nothing else: native layers do.
        """
        exact = name in ("device_experts", "device_recurrence", "linear_heads")
        return self.backend.extension(name) if exact else None

    def linear(self, x: np.ndarray, weight: Any, bias: np.ndarray | None = None) -> np.ndarray:
        """`tensor_ops.linear` with a dequantized weight."""
        if isinstance(weight, Quantized):
            weight = self.backend.dequantize(weight)
        return self.backend.linear(x, weight, bias)
