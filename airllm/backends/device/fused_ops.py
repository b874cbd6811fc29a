"""`DeviceOps` whose calls are put off until their results are used, and then run together.

Of a token alone, a layer is six launches: queries, keys and values (`products.py`), with the sum and the norm
before them (`residual.py`); their norms and rotation with the write to the cache (`heads.py`); attention; its
output; gate and up with the activation, and what comes before them; down. With latent attention it is seven:
`latents.py` has the queries with the write to the cache. A result that is used otherwise is computed as it
would be alone. `mixture.py` has the launches of experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from airllm.backends.device import latents
from airllm.backends.device.device_ops import FLOAT32
from airllm.backends.device.heads import Heads, Kept, Steps, place_heads
from airllm.backends.device.heads import parts_of as heads_of
from airllm.backends.device.latents import HeadProducts, Joined, Merged, Sum
from airllm.backends.device.pending_ops import PendingOps
from airllm.backends.device.place import Place
from airllm.backends.device.products import (
    ACTIVATIONS,
    Product,
    Products,
    ProductSum,
    ScaledGate,
    product_sum,
)
from airllm.backends.device.residual import Norm, NormedSum, Parts, Residual, parts_of, sum_of
from airllm.backends.device.stacks import data_of, put_beside, put_together, whole_of
from airllm.backends.device.tensor import Pending, Tensor
from airllm.formats import Quantized


class FusedOps(PendingOps):
    """`DeviceOps` that puts calls off."""

    def __init__(self, backend: str, place: Place):
        super().__init__(backend, place)
        self._extensions |= {
            "append": self.append,
            "attend_to_cache": self.attend_to_cache,
            "forget": self.forget,
            "join": self.join,
        }

    # ---- sums and norms ----

    def combine(self, name: str, x: Any, y: Any = None, out: Tensor | None = None) -> Tensor:
        """As `DeviceOps.combine`; what `Parts` can be is put off."""
        if out is not None and self._products and self._products.x is out:
            self._products = None
        if out is not None:
            self._settle_what_reads(out)
        if name == "multiply" and (scaled := self._scaled(x, y, out)) is not None:
            return scaled
        if out is not None and not self._may_wait(out):
            return super().combine(name, x, y, out)
        later: Pending | None = self._sum_of_products(name, x, y)
        if later is None and (parts := self._parts_of(name, x, y)) is not None:
            later = Residual(self, parts)
        if later is None:
            return super().combine(name, x, y, out)
        return self._put_off(Tensor(self, None, FLOAT32, x.shape) if out is None else out, later)

    def _scaled(self, x: Any, factor: Any, out: Tensor | None) -> Tensor | None:
        """A product of a token's heads, or of products of a row, that is put off; None if it is none."""
        if not isinstance(x, Tensor) or not isinstance(products := x.pending, Products):
            return self._scaled_heads(x, factor) if out is None else None
        if out is x and isinstance(factor, Tensor) and factor.size == x.shape[1]:
            return x if factor.dtype == FLOAT32 and products.scale(x, factor) else None
        if out is None and np.ndim(factor) == 0 and not isinstance(factor, Tensor) and products.gates(x):
            return self.put_off(x.shape, ScaledGate(self, x, float(factor)))
        return None

    def _scaled_heads(self, x: Any, factor: Any) -> Tensor | None:
        """The product of a token's heads with a number, put off; None if they are none."""
        if not isinstance(x, Tensor) or x.ndim != 3 or isinstance(factor, Tensor) or np.size(factor) != 1:
            return None
        if isinstance(x.pending, Joined):
            return self._put_joined_off(x.shape, x.pending.times(float(np.reshape(factor, ()))))
        if (known := heads_of(x)) is None:
            return None
        return self.put_heads_off(x.shape, known[0], known[1].times(float(np.reshape(factor, ()))))

    @staticmethod
    def _may_wait(out: Tensor) -> bool:
        """Whether no other tensor would see that the values of `out` are computed later."""
        return isinstance(out.pending, Residual | Product | ProductSum) or out.is_alone

    def _parts_of(self, name: str, x: Any, y: Any) -> Parts | None:
        """A sum or a product as what is put off; None if it has no such form."""
        if not _is_matrix(x):
            return None
        if name == "add":
            return sum_of(x, y) if _is_matrix(y) and x.shape == y.shape else None
        if name != "multiply":
            return None
        known = parts_of(x)
        if isinstance(y, Tensor):
            scales = known and y.size == 1 and known.residual is not None and known.scale is None
            return known._replace(scale=y.reshape(1)) if known and scales and y.dtype == FLOAT32 else None
        if np.ndim(y) != 0:
            return None
        if known:
            return known.times(float(y))
        held = self.put_off(x.shape, x.pending) if isinstance(x.pending, Product) else x.alias()
        return Parts(held, factor=float(y))

    def _sum_of_products(self, name: str, x: Any, y: Any) -> ProductSum | None:
        alike = name == "add" and _is_matrix(x) and _is_matrix(y) and x.shape == y.shape
        return product_sum(self, x, y) if alike else None

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float = 1e-6, out: Any = None) -> Tensor:
        """The norm, which is put off, with the sum that `x` is."""
        if out is not None or weight.dtype != FLOAT32:
            return self.norm_now(x, weight, eps, out=out)
        of_token = heads_of(x) if x.ndim == 3 or self._is_part(x) else None
        if of_token and (steps := of_token[1].normalized(weight, eps)):
            return self.put_heads_off(x.shape, of_token[0], steps)
        if isinstance(x.pending, NormedSum) and x.pending.takes(x, eps):
            return self._one_more_norm(x, x.pending, Norm(weight, eps))
        known = parts_of(x)
        if known and not (known.is_pair_of_norms and known.eps == eps):
            return self._norm_of_sum(x, known, Norm(weight, eps))
        if not _is_matrix(x):
            return self.norm_now(x, weight, eps)
        parts = known._replace(post=weight) if known else Parts(x.alias(), x_norm=weight, eps=eps)
        return self.put_off(x.shape, Residual(self, parts))

    def layer_norm(
        self, x: Tensor, weight: Any = None, bias: Any = None, eps: float = 1e-5, out: Any = None
    ) -> Tensor:
        """The norm, with the sum that `x` is."""
        known = parts_of(x)
        if known is None or out is not None or weight is None or weight.dtype != FLOAT32:
            return self.layer_norm_now(x, weight, bias, eps, out=out)
        return self._norm_of_sum(x, known, Norm(weight, eps, True, bias))

    def _norm_of_sum(self, x: Tensor, parts: Parts, norm: Norm) -> Tensor:
        """Put the norm of a sum off, with the sum `x` itself."""
        later = NormedSum(self, parts, x)
        self._put_off(x, later)
        return self._one_more_norm(x, later, norm)

    def _one_more_norm(self, x: Tensor, later: NormedSum, norm: Norm) -> Tensor:
        normed = self.put_off(x.shape, later)
        later.promise(norm, normed)
        return normed

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-6, out: Any = None
    ) -> Any:
        """The sum and its norm, which are put off."""
        alike = _is_matrix(x) and _is_matrix(residual) and x.shape == residual.shape
        if out is not None or not alike or weight.dtype != FLOAT32:
            return self.add_norm_now(x, residual, weight, eps, out=out)
        total = Tensor(self, None, FLOAT32, x.shape)
        return total, self._norm_of_sum(total, sum_of(x, residual), Norm(weight, eps))

    def _is_part(self, x: Tensor) -> bool:
        """Whether a tensor lies in the products that were computed last."""
        products = self._products
        return bool(
            not x.pending and products and products.out is not None and x.memory is products.out.memory
        )

    # ---- products ----

    def linear(self, x: Tensor, weight: Any, bias: Tensor | None = None, out: Any = None) -> Tensor:
        """The product. Of one row with matrices of a stack, all are computed when the first is used; of more
        too, if a matrix does not begin where kernels can take it.
        """
        data = data_of(weight)
        alone = not data.memory.stack or (len(x) > 1 and data.offset % self.place.alignment == 0)
        if alone or out is not None or x.ndim != 2:
            if (
                len(x) == 1
                and out is None
                and _is_matrix(x)
                and self.place.fuses("linear_beside", {"0": weight})
            ):
                return self.put_off((1, data.shape[0]), Product(self, x, weight, bias))
            return self.linear_now(x, weight, bias, out=out)
        known = self._products
        if not known or known.x is not x or data.memory not in known.memories:
            self._products = known = Products(self, x, weight, bias)
        place = known.part(weight)
        if known.is_changed(place):
            self._products = known = Products(self, x, weight, bias)
        if known.out is not None:
            return known.result(place)
        if place not in known.results:
            shape = (len(x), data.shape[0])
            known.results[place] = self.put_off(shape, known)
        return known.results[place]

    def dequantize(self, q: Quantized, out: Any = None) -> Tensor:
        """The values. Of a matrix of a stack that does not begin where kernels can take it, all are unpacked,
        since blocks cannot be copied.
        """
        data: Any = q.data
        if out is not None or not data.memory.stack or data.offset % self.place.alignment == 0:
            return self.call(self._ops["dequantize"], q, out=out)
        first = data.offset // data.strides[0]
        return self.call(self._ops["dequantize"], whole_of(q))[first : first + len(data)]

    def swiglu(self, gate: Tensor, up: Tensor, out: Any = None) -> Tensor:
        """silu(gate) * up, with the products that they are."""
        fused = self._gate(gate, up, "silu") if out is None else None
        return self.call(self._ops["swiglu"], gate, up, out=out) if fused is None else fused

    def geglu(self, gate: Tensor, up: Tensor, approximate: str = "tanh", out: Any = None) -> Tensor:
        """gelu(gate) * up, likewise."""
        fused = self._gate(gate, up, approximate) if out is None else None
        return self.call(self._ops["geglu"], gate, up, approximate, out=out) if fused is None else fused

    def gelu(self, x: Tensor, approximate: str = "tanh", out: Any = None) -> Tensor:
        """gelu(x), with the product that x is."""
        fused = self._activate(x, approximate) if out is None else None
        return self.call(self._ops["gelu"], x, approximate, out=out) if fused is None else fused

    def silu(self, x: Tensor, out: Any = None) -> Tensor:
        """silu(x), likewise."""
        fused = self._activate(x, "silu") if out is None else None
        return self.call(self._ops["silu"], x, out=out) if fused is None else fused

    def _activate(self, x: Tensor, activation: str, factors: Tensor | None = None) -> Tensor | None:
        """activation(x) * factors in the launch of the product that x is; None if it is none."""
        if not isinstance(x.pending, Product):
            return None
        return x.pending.activated(activation, factors)

    def _gate(self, gate: Tensor, up: Tensor, activation: str) -> Tensor | None:
        factor = 1.0
        if isinstance(scaled := gate.pending, ScaledGate):
            gate, factor = scaled.gate, scaled.factor
        products = gate.pending
        if isinstance(products, Product) and up.shape == gate.shape and up.dtype == FLOAT32:
            return self._activate(gate, activation, up)
        if not isinstance(products, Products) or up.pending is not products:
            return None
        first, second = products.results.get(0), products.results.get(1)
        if first is not gate or second is not up:
            return None
        self._products = None
        return products.gate(ACTIVATIONS[activation], factor)

    def gated(self, x: Tensor, weight: Any, rows: int, activation: int) -> Tensor | None:
        """The gated product of a row; None if the device has no kernel of it."""
        arrays = {"x": x, "weight": weight}
        if not self.place.fuses("gated_linear", arrays) or x.offset % self.place.alignment:
            return None
        out = self.empty((1, rows))
        self._start("gated_linear", arrays, {"activation": activation}, {"out": out}, of_ops=True)
        return out

    # ---- heads, and the cache ----

    def apply_rope_into(self, x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, out: Any) -> Tensor:
        """The rotation; that of one token is put off."""
        known = heads_of(x) if out is None and x.ndim == 3 else None
        if known is None or (steps := known[1].rotated((cos, sin, interleaved))) is None:
            return self.call(self._ops["apply_rope"], x, cos, sin, interleaved, out=out)
        return self.put_heads_off(x.shape, known[0], steps)

    def copy(self, tensor: Tensor) -> Tensor:
        """A copy. That of a token's heads is put off: what comes next can read them where they are."""
        if tensor.ndim == 3 and len(tensor) == 1 and self._is_part(tensor):
            return self.put_heads_off(tensor.shape, tensor, Steps())
        return super().copy(tensor)

    def append(self, kept: Tensor, start: int, keys: Tensor, values: Tensor | None = None) -> None:
        """Write the keys and values (tokens, heads, d) of new tokens to a layer of a cache, from `start` on.
        Of one token, all of it is one launch, with the norms and rotations of keys and queries. Without
        values, keys have them too.
        """
        if values is None:
            self._append_latents(kept, start, keys)
            return
        if kept.dtype == np.uint8:
            self._append_blocks(kept, start, keys, values)
            return
        done = len(keys) == 1 and self._append_heads(kept, start, keys, values)
        self._products = None
        if not done:
            stop = start + len(keys)
            for to, new in zip(kept, (keys, values), strict=True):
                self.assign(to[:, start:stop], new.swapaxes(0, 1))

    def _append_blocks(self, kept: Tensor, start: int, keys: Tensor, values: Tensor) -> None:
        """The same to a layer in blocks: first as floats, then all rows in one launch."""
        rows = self.empty((2, keys.shape[1], len(keys), keys.shape[2]))
        self.append(rows, 0, keys, values)
        self.assign_blocks(kept[:, :, start : start + len(keys)], rows)

    def _append_heads(self, kept: Tensor, start: int, keys: Tensor, values: Tensor) -> bool:
        result = self._queries() if self._queries else None
        self._queries = None
        of_keys, of_values = heads_of(keys), heads_of(values)
        if of_keys is None or of_values is None:
            return False
        to = Kept(kept, start, of_keys, of_values)
        out = None
        if result is not None and isinstance(result.pending, Heads):
            out = place_heads(self, result.pending.source, result.pending.steps, to)
        if out is None or result is None:
            return place_heads(self, None, Steps(), to) is not None
        result.become(out)
        return True

    # ---- latent attention ----

    def linear_heads(self, x: Tensor, weight: Any) -> Tensor:
        """As `DeviceOps.linear_heads`; of one token, put off."""
        if len(x) != 1:
            return super().linear_heads(x, weight)
        return self.put_off((1, *weight.shape[:2]), HeadProducts(self, x, weight))

    def join(self, first: Tensor, second: Tensor) -> Tensor:
        """Two parts of heads (rows, heads, n) beside each other; those of one token are put off."""
        if not isinstance(second.pending, Heads) or not isinstance(first.pending, HeadProducts | Heads):
            return self.join_now(first, second)
        shape = (*first.shape[:-1], first.shape[-1] + second.shape[-1])
        return self._put_joined_off(shape, Joined(self, first, second))

    def join_now(self, first: Tensor, second: Tensor) -> Tensor:
        """The same in two launches."""
        n = first.shape[-1]
        found = self.empty((*first.shape[:-1], n + second.shape[-1]))
        found[..., :n], found[..., n:] = first, second
        return found

    def _append_latents(self, kept: Tensor, start: int, keys: Tensor) -> None:
        """`append` of what tokens of latent attention keep. Of one token, with its queries."""
        done = len(keys) == 1 and self._append_latent(kept, start, keys)
        self._products = self._latent_queries = None
        if done:
            return
        to = kept[0][:, start : start + len(keys)]
        put = self.assign_blocks if kept.dtype == np.uint8 else self.assign
        put(to, keys.swapaxes(0, 1))

    def _append_latent(self, kept: Tensor, start: int, keys: Tensor) -> bool:
        queries = self._latent_queries() if self._latent_queries else None
        if queries is None or not isinstance(queries.pending, Joined) or not isinstance(keys.pending, Joined):
            return False
        given = queries.pending, keys.pending
        parts = latents.append(self, *given, kept, start)
        if parts is None and kept.dtype == np.uint8:  # a device may write blocks in a launch of their own
            row = self.empty((1, 1, *keys.shape[1:]))
            if (parts := latents.append(self, *given, row, 0)) is not None:
                self.assign_blocks(kept[0][:, start : start + 1], row[0])
        if parts is None:
            return False
        self._put_off(queries, Sum(self, parts))
        return True

    def _cached_attention(self, q: Tensor, *given: Any, **named: Any) -> None:
        """As `DeviceOps._cached_attention`; a query may be a sum of parts."""
        q, more = _in_parts(q)
        super()._cached_attention(q, *given, **(named | more))

    def attend_to_cache(
        self, q: Tensor, cache: Tensor, length: int, value_dim: int, **options: Any
    ) -> Tensor:
        """`_cached_attention` to keys that have the values too: (heads, tokens, values). Of one token,
        merging parts of it is put off.
        """
        shape = (*q.shape[:2], value_dim)
        if q.shape[1] == 1:
            queries, more = _in_parts(q)
            seen = self._seen(cache, length, value_dim)
            given, parameters = self.attention_call(queries, *seen, **(options | more))
            if (splits := self.place.attention_splits(given, parameters)) > 1:
                partial = self.empty((shape[0], splits, value_dim + 2))
                self.start("attention_parts", given, parameters, {"partial": partial})
                return self.put_off(shape, Merged(self, partial))
        out = self.empty(shape)
        self._cached_attention(q, cache, length, out, value_dim=value_dim, **options)
        return out

    # ---- weights ----

    def stack(self, parts: Sequence[Any]) -> list[Any]:
        """Matrices of one row length, or vectors, that are multiplied together: views of their stacks."""
        return put_together(self, parts)

    @staticmethod
    def put_beside(*groups: Sequence[Any]) -> None:
        """Multiply by matrices of several formats together: see `stacks.py`."""
        put_beside(*groups)


def _in_parts(q: Tensor) -> tuple[Tensor, dict[str, Any]]:
    """Queries, or the parts whose sum they are; and what attention is told of that."""
    return (q.pending.parts, {"in_parts": True}) if isinstance(q.pending, Sum) else (q, {})


def _is_matrix(x: Any) -> bool:
    return isinstance(x, Tensor) and x.ndim == 2 and x.dtype == FLOAT32
