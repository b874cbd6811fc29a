"""What a model is made of, in lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from math import prod
from pathlib import Path

from airllm import engine_backend
from airllm.formats import Quantized
from airllm.models.budget import CONTEXT
from airllm.models.cache import token_bytes
from airllm.models.config import ModelConfig, config_of
from airllm.models.memory import estimate
from airllm.models.speed import fastest, rate
from airllm.models.tensor_names import NamedTensors
from airllm.models.weights import WeightFile, open_weights


def lines(path: Path) -> Iterator[str]:
    """Architecture, sizes and the formats of the tensors, and the backend that an engine takes. Raises
    ModelFileError or OSError.
    """
    with open_weights(path) as weights:
        config = config_of(weights)
        yield f"Model:       {path}"
        yield from _architecture(config)
        yield from _formats(weights)
        yield from _memory(NamedTensors(weights, config))
    yield from _backend(path)


def _backend(path: Path) -> Iterator[str]:
    """What an engine runs on with its own settings, why, and how fast each backend was that could be it."""
    opening = engine_backend.Opening(path)
    found = engine_backend.chosen(opening)
    speeds = found.speeds or engine_backend.beside_processor(opening, found.name)
    yield f"Backend:     {found.name}: {found.why}"
    for name, speed in speeds.items():
        yield f"  {name:<9}  {speed}"
    if not found.speeds and speeds and (faster := fastest(speeds)) != found.name:
        times = speeds[faster].tokens_per_second / max(speeds[found.name].tokens_per_second, 1e-9)
        yield f"  {faster} makes {rate(times)} times as many tokens: backend auto takes the fastest"


def _architecture(c: ModelConfig) -> Iterator[str]:
    yield f"Made as:     {c.architecture}, {c.layers} layers of width {c.width}"
    yield f"Attention:   {c.heads} heads of {c.head_dim}, {c.kv_heads} for keys and values{_windows(c)}"
    if c.experts:
        moe = f"{c.experts} experts of {c.expert_feed_forward}, {c.experts_used} for each token"
        yield f"Experts:     {moe}, in {sum(c.moe_layers)} layers"
    yield f"Feed-forward:{c.feed_forward:>5}, {c.activation}"
    yield f"Vocabulary:  {c.vocabulary} tokens{', one matrix in and out' if c.tied_embeddings else ''}"
    yield f"Context:     {c.context} tokens"


def _memory(tensors: NamedTensors) -> Iterator[str]:
    """What it takes to run with the engine's own settings."""
    context = min(tensors.config.context, CONTEXT)
    needed = estimate(tensors, context)
    each = size(token_bytes(tensors.config, "f16"))
    yield f"Memory:      {size(needed.total_bytes)} with a context of {context}, or less with max_memory:"
    yield f"  {size(needed.weights)} of weights, {size(needed.activations)} of activations,"
    yield f"  {size(needed.kv_cache)} of keys and values in f16, {each} for a token"


def _windows(c: ModelConfig) -> str:
    windowed = [window for window in c.windows if window]
    return f"; a window of {max(windowed)} tokens in {len(windowed)} layers" if windowed else ""


def _formats(weights: WeightFile) -> Iterator[str]:
    tensors, values, nbytes = Counter[str](), Counter[str](), Counter[str]()
    for name in weights.names():
        tensor = weights.tensor(name)
        kind = tensor.format if isinstance(tensor, Quantized) else str(tensor.dtype)
        tensors[kind] += 1
        values[kind] += prod(tensor.shape)
        nbytes[kind] += tensor.nbytes
    yield f"Weights:     {count(values.total())} in {size(nbytes.total())}"
    for kind, number in nbytes.most_common():
        each = f"{number * 8 / values[kind]:.2f} bits each"
        what = f"{tensors[kind]} tensors"
        yield f"  {kind:<9}  {what:>12}, {count(values[kind]):>8} in {size(number):>8}, {each}"


def size(number: int) -> str:
    """Bytes for reading, in powers of 1000 as files are told: "98.4 MB"."""
    return _scaled(number, ("bytes", "kB", "MB", "GB", "TB"))


def count(number: int) -> str:
    """A number for reading: "134.5 M"."""
    return _scaled(number, ("", "k", "M", "G", "T")).strip()


def _scaled(number: float, units: tuple[str, ...]) -> str:
    at = 0
    while number >= 999.5 and at < len(units) - 1:
        number, at = number / 1000, at + 1
    return f"{number:.{1 if at else 0}f} {units[at]}"
