"""`DeviceOps` that may put calls off. They know which tensors have something pending, and compute it before
what it reads changes. `fused_ops.py` says which calls wait, and what they become together.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from airllm.backends.device.device_ops import FLOAT32, DeviceOps
from airllm.backends.device.heads import Heads, Steps
from airllm.backends.device.latents import HeadProducts, Joined
from airllm.backends.device.place import Place
from airllm.backends.device.products import Products
from airllm.backends.device.tensor import Pending, Tensor


class PendingOps(DeviceOps):
    """`DeviceOps` that may put calls off. The calls that end in `_now` never wait."""

    def __init__(self, backend: str, place: Place):
        super().__init__(backend, place)
        self._later: list[weakref.ref[Tensor]] = []  # tensors that have something pending
        self._products: Products | None = None
        self._queries: weakref.ref[Tensor] | None = None  # that the next `append` may compute
        self._latent_queries: weakref.ref[Tensor] | None = None  # likewise
        self.combine_now: Callable[..., Tensor] = lambda *given: DeviceOps.combine(self, *given)
        self.layer_norm_now = self._method("layer_norm")
        self.add_norm_now = self._method("add_rms_norm")
        self.linear_now = self._method("linear")
        self.linear_heads_now: Callable[..., Tensor] = lambda *given: DeviceOps.linear_heads(self, *given)
        self.norm_now = self._method("rms_norm")
        self.rotate_now: Callable[..., Tensor] = lambda *given: self.call(self._ops["apply_rope"], *given)

    def _method(self, name: str) -> Callable[..., Any]:
        return lambda *given, **named: self.call(self._ops[name], *given, **named)

    def put_off(self, shape: tuple[int, ...], pending: Pending) -> Tensor:
        """A new tensor with values that are computed later."""
        return self._put_off(Tensor(self, None, FLOAT32, shape), pending)

    def _put_off(self, tensor: Tensor, pending: Any) -> Tensor:
        tensor.postpone(pending)
        self._later.append(weakref.ref(tensor))
        return tensor

    def forget(self) -> None:
        """Keep nothing of what was computed: the last products keep their x and weights in memory."""
        self._products = None

    def _before_write(self, to: Tensor) -> None:
        """Compute what is pending and reads these values; forget products of these values, or in them."""
        last = self._products
        if last and last.out is not None and (to.overlaps(last.x) or to.overlaps(last.out)):
            self._products = None
        waiting = [(ref, tensor) for ref in self._later if (tensor := ref()) is not None and tensor.pending]
        self._later = [ref for ref, _ in waiting]
        for _, tensor in waiting:
            pending: Any = tensor.pending
            if pending and any(to.overlaps(each) for each in pending.reads()):
                pending.settle(tensor)

    def _settle_what_reads(self, x: Tensor) -> None:
        """Compute what is put off, and of x, which gets other values."""
        if not x.pending:
            return
        for tensor in [found for ref in self._later if (found := ref()) is not None]:
            if tensor.pending and any(each is x for each in tensor.pending.reads()):
                tensor.pending.settle(tensor)

    def put_heads_off(self, shape: tuple[int, ...], source: Tensor, steps: Steps) -> Tensor:
        """A new tensor of heads, or of a row of them, with steps that are computed later."""
        later = Heads(self, source, steps)
        result = self.put_off(shape, later)
        if not source.pending and source.offset == 0:
            self._queries = weakref.ref(result)
        return result

    def _put_joined_off(self, shape: tuple[int, ...], joined: Joined) -> Tensor:
        result = self.put_off(shape, joined)
        if isinstance(joined.first.pending, HeadProducts):
            self._latent_queries = weakref.ref(result)
        return result
