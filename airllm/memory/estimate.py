"""Estimates the memory of a model: weights as stored, keys and values, activations of a pass.

The budget of `residency.py`, `engine.memory_estimate` and `airllm info` all use this arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from airllm.architectures.layer_spec import Attention, Latent
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.tensor_names import NamedTensors, shared_names
from airllm.backends.api.memory import MemoryEstimate
from airllm.memory.cache_layout import CacheLayout

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
_KEPT = 1 << 20  # bytes: results from this size on take whole huge pages, which are kept when freed
_HUGE_PAGE = 2 << 20
_WORKSPACES = 2 * _HUGE_PAGE  # bytes that kernels allocate while they run


def parse_size(size: int | str, what: str = "max_memory") -> int:
    """Bytes of "512MB" (10**6 each), "1.5GiB" (2**30 each) or a number. Raises ValueError or TypeError."""
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise TypeError(f"{what} has type {type(size).__name__}, expected bytes or a text such as '512MB'")
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d{1,30}(?:\.\d{1,30})?)\s*([a-zA-Z]*)\s*", size)
        if not match or match[2].lower() not in _UNITS:
            expected = "a number and B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB or TiB (of 1024)"
            raise ValueError(f"{what} has value {size!r}, expected {expected}")
        size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < 1:
        raise ValueError(f"{what} has value {size}, expected at least one byte")
    return size


def weight_bytes(tensors: NamedTensors) -> int:
    """Bytes of all tensors that the model uses, as stored, including all experts."""
    c = tensors.config
    by_layer = (tensors.layer_names(layer) for layer in range(c.layers))
    spans = (tensors.span(name) for names in (shared_names(c), *by_layer) for name in names)
    each_once = {(id(span.map), span.start, span.nbytes) for span in spans}  # gate and up may be one tensor
    return sum(nbytes for _, _, nbytes in each_once)


def activation_bytes(
    config: ModelConfig,
    tokens: int,
    outputs: int = 1,
    *,
    unpacked: Sequence[int] = (),
    workspaces: int = _WORKSPACES,
) -> int:
    """The most bytes that results and workspaces take while `tokens` go through a layer together, and then
    `outputs` of them through the output.

    `unpacked`: numbers of values that are converted to float32 before use, if any: of the largest matrix, of
    the keys and values of a layer. `workspaces`: bytes that kernels allocate.
    """
    c = config
    mixers = [spec.mixer for spec in c.all_layers if isinstance(spec.mixer, (Attention, Latent))]
    widths = [each.widths for each in mixers]
    q, kv = (max((wide[part] for wide in widths), default=0) for part in ("q", "k"))
    wide = max(c.feed_forward, c.expert_feed_forward, c.shared_expert)
    arrays = [*[tokens * c.width] * 5, *[tokens * q] * 4, *[tokens * kv] * 4, *[tokens * wide] * 3]
    if c.recurrent:
        arrays.append(tokens * c.recurrent.row_values)
    if c.experts:
        arrays += [tokens * c.experts] * 4 + [tokens * c.width] * 3
    arrays += [tokens * c.layers * c.layer_input] * 5 + [outputs * c.vocabulary] * 2
    return workspaces + sum(_bytes_in_memory(4 * values) for values in [*arrays, *unpacked])


def _bytes_in_memory(nbytes: int) -> int:
    """Bytes that a result of `nbytes` takes."""
    return nbytes if nbytes < _KEPT else -(-nbytes // _HUGE_PAGE) * _HUGE_PAGE


def estimate(
    tensors: NamedTensors,
    context: int,
    dtype: str = "f16",
    tokens: int = 512,
    unpacked: Sequence[int] = (),
) -> MemoryEstimate:
    """The memory of a model for one sequence of `context` tokens, if `tokens` go through the layers at once.
    `unpacked` is that of `activation_bytes`.
    """
    c = tensors.config
    return MemoryEstimate(
        weights=weight_bytes(tensors),
        kv_cache=0 if c.encoding else CacheLayout(c, context, dtype, windowed=True).resident_bytes(context),
        activations=activation_bytes(c, tokens, unpacked=unpacked),
    )
