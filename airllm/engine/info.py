"""Describes a model in lines for a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any

from airllm.architectures import config_of
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.pooling import pooling_of
from airllm.architectures.tensor_names import NamedTensors
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.devices import backend_choice
from airllm.engine.devices.device_speed import plans_of
from airllm.engine.devices.placement import why_not_on_device
from airllm.engine.layers.native_decode import why_not_native, why_op_by_op
from airllm.engine.recommended_sampling import as_text, recommended_by
from airllm.engine.speed import fastest, rate
from airllm.files.open_weights import open_weights
from airllm.files.published.converted import ConvertedWeights
from airllm.files.weight_file import WeightFile
from airllm.formats import Quantized
from airllm.memory.budget import CONTEXT, MemoryBudgetError
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.estimate import estimate
from airllm.memory.token_cost import TokenCost, token_cost
from airllm.readable import count, size


def facts(path: Path) -> dict[str, Any]:
    """A model's properties, for programs. Raises ModelFileError or OSError."""
    with open_weights(path) as weights:
        config = config_of(weights)
        context = min(config.context, CONTEXT)
        return {
            "path": str(path),
            "config": asdict(config),
            "trained_context": config.trained_context,
            "context": context,
            "stored_as": weights.describe() if isinstance(weights, ConvertedWeights) else [],
            "formats": [asdict(each) for each in _formats(weights)],
            "memory": asdict(estimate(NamedTensors(weights, config), context)),
            "larger_than_memory": _larger_than_memory(NamedTensors(weights, config)),
            "recommended_sampling": recommended_by(weights),
            "pooling": asdict(pooling) if (pooling := pooling_of(weights)) else None,
        }


def _larger_than_memory(tensors: NamedTensors) -> dict[str, Any] | None:
    """The cost of a token, or why there is none; None if the model fits in memory."""
    try:
        cost = token_cost(tensors)
    except MemoryBudgetError as error:
        return {"why_not": str(error)}
    return {**asdict(cost), "seconds": cost.seconds} if cost else None


def lines(path: Path) -> Iterator[str]:
    """Architecture, sizes, formats of the tensors, and the backend that an engine would use. Raises
    ModelFileError or OSError.
    """
    with open_weights(path) as weights:
        config = config_of(weights)
        yield f"Model:       {path}"
        yield from _architecture(config)
        yield from _pooling(weights)
        yield from _published(weights)
        yield from _format_lines(_formats(weights))
        yield from _memory(NamedTensors(weights, config))
        if not config.generates:
            kind = "it is an encoder" if config.encoding else "there is no output matrix"
            yield f"Generation:  none, {kind}: airllm embed makes vectors of texts"
        else:
            yield f"Sampling:    {as_text(recommended_by(weights)) or 'the model recommends nothing'}"
    yield from _backend(path, config)


def _backend(path: Path, config: ModelConfig) -> Iterator[str]:
    """The backend of an engine with default settings, the reason, how a token goes through the layers there,
    and the speed of each candidate.
    """
    opening = backend_choice.Opening(path)
    found = backend_choice.choose_backend(opening)
    speeds = found.speeds or backend_choice.beside_processor(opening, found.name)
    yield f"Backend:     {found.name}: {found.why}"
    for name, speed in speeds.items():
        yield f"  {name:<9}  {speed}"
    if not found.speeds and speeds and (faster := fastest(speeds)) != found.name:
        times = speeds[faster].tokens_per_second / max(speeds[found.name].tokens_per_second, 1e-9)
        yield f"  {faster} makes {rate(times)} times as many tokens: backend auto takes the fastest"
    ops = KernelBackend(found.name)
    if config.generates:
        yield f"Decode:      {_decode(ops, config)}"
    if ops.extension("device_ops"):
        yield f"Arrays:      {_arrays(path, ops)}"


def _decode(ops: KernelBackend, config: ModelConfig) -> str:
    """Whether a token is one native call, or why it is not."""
    if why_not := why_op_by_op(ops, config):
        return f"op by op: {why_not}"
    why_not = why_not_native(ops, config, "ends")
    return "all layers in one call" + (f", the rest op by op: {why_not}" if why_not else "")


def _arrays(path: Path, ops: KernelBackend) -> str:
    """Which of the model's arrays stay on the device, or why they go there for each op."""
    if why_not := why_not_on_device(ops):
        return f"from host memory for each op: {why_not}"
    try:
        return "; or ".join(map(str, plans_of(path, ops)))
    except MemoryBudgetError as error:
        return f"there is too little memory on the device: {error}"


def _pooling(weights: WeightFile) -> Iterator[str]:
    if pooling := pooling_of(weights):
        yield f"Embeddings:  {pooling}"


def _architecture(c: ModelConfig) -> Iterator[str]:
    kind = ", an encoder" if c.encoding else ""
    yield f"Made as:     {c.architecture}{kind}, {c.layers} layers of width {c.width}"
    yield f"Attention:   {_attention(c)}"
    if c.experts:
        moe = f"{c.experts} experts of {c.expert_feed_forward}, {c.experts_used} for each token"
        shared = f", and one of {c.shared_expert} for all" if c.shared_expert else ""
        yield f"Experts:     {moe}{shared}, in {sum(c.moe_layers)} layers"
    yield f"Feed-forward: {c.feed_forward}, {c.activation}"
    tied = c.tied_embeddings and c.generates
    yield f"Vocabulary:  {c.vocabulary} tokens{', one matrix in and out' if tied else ''}"
    used = f"; {CONTEXT} unless you ask for more with --context" if c.trained_context > CONTEXT else ""
    yield f"Context:     {c.trained_context} tokens{used}"


def _attention(c: ModelConfig) -> str:
    if c.kv_rank:
        return (
            f"{c.heads} heads of {c.head_dim}, which share a latent of {c.kv_rank} and a key of {c.rope.dim}"
        )
    most = "at most " if c.sizes else ""
    return f"{most}{c.heads} heads of {c.head_dim}, {c.kv_heads} for keys and values{_windows(c)}"


def _memory(tensors: NamedTensors) -> Iterator[str]:
    """The memory that the model needs with the engine's default settings."""
    context = min(tensors.config.context, CONTEXT)
    needed = estimate(tensors, context)
    each = size(CacheLayout(tensors.config, context, windowed=True).token_bytes())
    yield f"Memory:      {size(needed.total_bytes)} with a context of {context}, or less with --max-memory:"
    yield f"  {size(needed.weights)} of weights, {size(needed.activations)} of activations,"
    if not tensors.config.encoding:
        yield f"  {size(needed.kv_cache)} of keys and values in f16, {each} for a token"
    yield from _cost_lines(tensors)


def _cost_lines(tensors: NamedTensors) -> Iterator[str]:
    """What a token costs if the model is larger than the memory."""
    try:
        cost = token_cost(tensors)
    except MemoryBudgetError as error:
        yield f"  too little here: {error}"
        return
    if cost:
        yield f"Each token:  {size(cost.bytes_read)} from disk, {_seconds(cost)}, because"
        yield f"  {size(cost.available)} are available here: {cost.stay} of {cost.parts} parts stay in memory"
        yield f"  (layers, parts of the output); with {size(cost.free_needed)} free, nothing is read"


def _seconds(cost: TokenCost) -> str:
    if cost.bytes_per_second is None:
        return "at a speed that was not measured"
    return f"{cost.seconds:.2g} s at the {size(int(cost.bytes_per_second))}/s that were measured"


def _published(weights: WeightFile) -> Iterator[str]:
    """How quantized weights that airllm converts are opened."""
    if isinstance(weights, ConvertedWeights):
        for number, line in enumerate(weights.describe()):
            yield f"{'' if number else 'Stored as:':<13}{line}"
        yield f"  converted once, into {weights.converted_path()}"


def _windows(c: ModelConfig) -> str:
    windowed = [window for window in c.windows if window]
    if windowed and c.encoding:
        return f"; to {max(windowed) // 2} tokens on both sides in {len(windowed)} layers"
    kind = "chunks" if c.chunked else "a window"
    return f"; {kind} of {max(windowed)} tokens in {len(windowed)} layers" if windowed else ""


@dataclass(frozen=True)
class Format:
    """The tensors of a model in one format."""

    name: str
    tensors: int
    values: int
    bytes: int


def _formats(weights: WeightFile) -> list[Format]:
    """The formats of all tensors, the largest first."""
    tensors, values, nbytes = Counter[str](), Counter[str](), Counter[str]()
    for name in weights.names():
        tensor = weights.tensor(name)
        kind = tensor.format if isinstance(tensor, Quantized) else str(tensor.dtype)
        tensors[kind] += 1
        values[kind] += prod(tensor.shape)
        nbytes[kind] += tensor.nbytes
    return [Format(kind, tensors[kind], values[kind], number) for kind, number in nbytes.most_common()]


def _format_lines(formats: list[Format]) -> Iterator[str]:
    values, nbytes = sum(each.values for each in formats), sum(each.bytes for each in formats)
    yield f"Weights:     {count(values)} in {size(nbytes)}"
    for each in formats:
        bits = f"{each.bytes * 8 / each.values:.2f} bits each"
        what = f"{each.tensors} tensors"
        yield f"  {each.name:<9}  {what:>12}, {count(each.values):>8} in {size(each.bytes):>8}, {bits}"
