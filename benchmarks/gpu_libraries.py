"""PyTorch and CuPy on a GPU: arrays, ops and timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from airllm.bench import torch_peer

Call = Callable[[], Any]


class NotHere(Exception):
    """The reason why nothing can be measured on this machine."""


class Torch:
    """PyTorch's arrays, events and ops. float32 products stay float32: TF32 is off."""

    name = "PyTorch"

    def __init__(self) -> None:
        self.torch = import_module("torch")
        if not self.torch.cuda.is_available():
            raise ImportError("this PyTorch has no CUDA")
        self.torch.backends.cuda.matmul.allow_tf32 = False

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.randn(*shape, device="cuda").to(getattr(self.torch, dtype))

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.torch.empty(*shape, device="cuda", dtype=getattr(self.torch, dtype))

    def copy(self, to: Any, source: Any) -> None:
        to.copy_(source)

    def integers(self, limit: int, shape: Sequence[int]) -> Any:
        return self.torch.randint(limit, tuple(shape), device="cuda")

    def blocks(self, data: np.ndarray) -> Any:
        return self.torch.from_numpy(data).cuda()

    def function(self, name: str) -> Callable[..., Any] | None:
        return torch_peer.torch_op(name)

    def seconds(self, calls: Call, count: int) -> float:
        """Seconds per call, by the device's clock."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(count):
            calls()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3 / count


class Cupy:
    """CuPy's arrays, events and ops; ops without a CuPy kernel are array expressions."""

    name = "CuPy"

    def __init__(self) -> None:
        self.cupy = import_module("cupy")
        if not self.cupy.cuda.is_available():
            raise ImportError("this CuPy finds no device")

    def normal(self, shape: Sequence[int], dtype: str) -> Any:
        return self.cupy.random.standard_normal(shape, dtype="float32").astype(dtype)

    def empty(self, shape: Sequence[int], dtype: str) -> Any:
        return self.cupy.empty(shape, dtype)

    def copy(self, to: Any, source: Any) -> None:
        to[...] = source

    def integers(self, limit: int, shape: Sequence[int]) -> Any:
        return self.cupy.random.randint(0, limit, tuple(shape), dtype="int64")

    def blocks(self, data: np.ndarray) -> Any:
        return self.cupy.asarray(data)

    def function(self, name: str) -> Callable[..., Any] | None:
        xp = self.cupy
        known: dict[str, Callable[..., Any]] = {
            "rms_norm": lambda x, weight: x / xp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight,
            "silu": lambda x: x / (1 + xp.exp(-x)),
            "gelu": lambda x: 0.5 * x * (1 + xp.tanh(0.7978845608 * (x + 0.044715 * x * x * x))),
            "softmax": partial(import_module("cupyx.scipy.special").softmax, axis=-1),
            "matmul": xp.matmul,
        }
        return known.get(name)

    def seconds(self, calls: Call, count: int) -> float:
        """Seconds per call, by the device's clock."""
        start, end = self.cupy.cuda.Event(), self.cupy.cuda.Event()
        start.record()
        for _ in range(count):
            calls()
        end.record()
        end.synchronize()
        return float(self.cupy.cuda.get_elapsed_time(start, end)) / 1e3 / count


Library = Torch | Cupy


def libraries() -> list[Library]:
    """The libraries that have a GPU here; the benchmarks use arrays of the first one."""
    found: list[Library] = []
    reasons = []
    for library in (Torch, Cupy):
        try:
            found.append(library())
        except Exception as error:  # a failed import may raise any exception
            reasons.append(f"{library.name}: {error}")
    if not found:
        raise NotHere(f"no library makes arrays on the device: {'; '.join(reasons)}")
    return found
