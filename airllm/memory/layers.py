"""A model's weights, layer by layer, for `engine/layers/decoder.py`: with checked shapes, each by one name.

Differences between files end here. One stored matrix for q, k and v (Phi-3), or for gate and up, becomes
three, or two, views. Norm weights become float32, with the offset that the file left off (Gemma). Nothing
else is copied: a matrix is a view of the mapped file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from airllm import tensor_ops
from airllm.architectures.layer_spec import Attention, Latent, LayerSpec
from airllm.architectures.model_config import ModelConfig
from airllm.architectures.recurrent import DeltaRule
from airllm.architectures.tensor_names import NamedTensors
from airllm.files.weight_file import ModelFileError, Stored
from airllm.formats import Quantized

_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Layer:
    """Layer `index`: its weights by name ("attention.q", "feed_forward.norm", ...), and its experts, if any.

    If processes share the model, this is one process's part, and `reduce` sums an array over all, in place.
    """

    config: ModelConfig
    index: int
    weights: Mapping[str, Stored]
    experts: Experts | None = None
    reduce: Callable[[np.ndarray], None] | None = None

    @cached_property
    def spec(self) -> LayerSpec:
        """What the layer computes, with its own sizes."""
        return self.config.layer(self.index)

    def __getitem__(self, name: str) -> Stored:
        return self.weights[name]

    def get(self, name: str) -> Stored | None:
        """The weight, or None if the model does not have it."""
        return self.weights.get(name)

    def all_reduce(self, change: np.ndarray) -> None:
        """Sum a result of this part of the layer over all parts, in place."""
        if self.reduce:
            self.reduce(change)


@dataclass(frozen=True)
class Experts:
    """The experts of a layer, as views: an unused expert is never read.

    `expect(layer, numbers)` is called with experts that are needed soon, `use(layer, number)` with the one
    that is needed now.
    """

    tensors: NamedTensors
    config: ModelConfig
    layer: int
    expect: Callable[[int, Iterable[int]], None] = lambda layer, numbers: None
    use: Callable[[int, int], None] = lambda layer, number: None
    _found: dict[int, dict[str, Stored]] = field(default_factory=dict, repr=False)

    def __getitem__(self, number: int) -> dict[str, Stored]:
        self.use(self.layer, number)
        return self.look_up(number)

    def look_up(self, number: int) -> dict[str, Stored]:
        """An expert's weights, without reporting a use. Raises ModelFileError if the file lacks one."""
        if number not in self._found:
            self._found[number] = self._expert(number)
        return self._found[number]

    def every(self) -> list[tuple[int, dict[str, Stored]]]:
        """The number and the weights of each expert, without reporting a use."""
        return [(number, self.look_up(number)) for number in range(self.config.experts)]

    def looked_up(self) -> list[tuple[int, dict[str, Stored]]]:
        """The number and the weights of each expert that has been looked up."""
        return list(self._found.items())

    def _expert(self, number: int) -> dict[str, Stored]:
        c = self.config
        wide, narrow = c.expert_feed_forward, c.expert_latent or c.width
        shapes: dict[str, tuple[int, ...]] = {"gate": (wide, narrow)} if c.gated else {}
        shapes |= {"up": (wide, narrow), "down": (narrow, wide)}
        if c.expert_bias:
            shapes |= {f"{part}_bias": shape[:1] for part, shape in shapes.items()}
        name = f"layers.{self.layer}.experts.{number}"
        found = {part: check_tensor(self.tensors, f"{name}.{part}", shape) for part, shape in shapes.items()}
        return {part: _vector(each) if part.endswith("bias") else each for part, each in found.items()}


def open_layer(tensors: NamedTensors, index: int) -> Layer:
    """The weights of a layer. Raises ModelFileError if one is missing or has another shape."""
    config = tensors.config
    before = f"layers.{index}."
    names = [name.removeprefix(before) for name in tensors.layer_names(index)]
    shapes, weights = _shapes(config, index), dict[str, Stored]()
    for name in names:
        if re.match(r"experts\.\d", name):
            continue
        weights |= dict(split_stored(config, index, name, check_tensor(tensors, before + name, shapes[name])))
    _join_biases_of_norms(weights)
    attention = config.layer(index).mixer
    if config.qk_norm == "rotated" and isinstance(attention, Attention) and attention.rope:
        ones = np.ones(attention.key_dim, np.float32)
        weights |= {"attention.q_norm": ones, "attention.k_norm": ones}
    if config.value_norm and config.layer(index).attention.source == index:
        weights["attention.v_norm"] = np.ones(config.layer(index).attention.value_dim, np.float32)
    return Layer(config, index, weights, _open_experts(tensors, index) if config.is_moe(index) else None)


def _open_experts(tensors: NamedTensors, index: int) -> Experts:
    """Look up every expert, so that a missing one raises when the file is opened, not at a later token."""
    experts = Experts(tensors, tensors.config, index)
    for number in range(tensors.config.experts):
        experts.look_up(number)
    return experts


def _join_biases_of_norms(weights: dict[str, Stored]) -> None:
    """Put each norm's bias into a second row of its weights."""
    for bias in [name for name in weights if name.endswith("norm_bias")]:
        name = bias.removesuffix("_bias")
        weights[name] = np.stack([_vector(weights[name]), _vector(weights.pop(bias))])


def open_output_norm(tensors: NamedTensors) -> np.ndarray:
    """The weights of the last norm; no values if the model has none."""
    return open_norm(tensors, "output_norm") if tensors.config.final_norm else np.empty(0, np.float32)


def open_norm(tensors: NamedTensors, name: str) -> np.ndarray:
    """A norm's weights (width), float32, with the offset that the file left off; (2, width) with a bias."""
    c, shape = tensors.config, (tensors.config.width,)
    weights = _norm_weight(c, check_tensor(tensors, name, shape))
    if not c.norm_bias:
        return weights
    return np.stack([weights, _vector(check_tensor(tensors, f"{name}_bias", shape))])


def open_table(tensors: NamedTensors, name: str) -> Stored:
    """The embedding or the output matrix (vocabulary, width)."""
    return check_tensor(tensors, name, (tensors.config.vocabulary, tensors.config.width))


def _shapes(c: ModelConfig, index: int) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors that a layer may have."""
    mixer, recurrent = c.layer(index).mixer, c.layer(index).recurrent
    wide = c.sizes_of(index).feed_forward
    return {
        **(_attention_shapes(c, mixer) if isinstance(mixer, Attention) else {}),
        **(_latent_shapes(c, mixer) if isinstance(mixer, Latent) else {}),
        **(recurrent.weights(c.width) if recurrent else {}),
        "attention.norm": (c.width,),
        "attention.norm_bias": (c.width,),
        "attention.post_norm": (c.width,),
        "attention.post_norm_bias": (c.width,),
        "feed_forward.post_norm_bias": (c.width,),
        "feed_forward.norm": (c.width,),
        "feed_forward.gate": (wide, c.width),
        "feed_forward.up": (wide, c.width),
        "feed_forward.gate_up": (2 * wide, c.width),
        "feed_forward.down": (c.width, wide),
        "feed_forward.norm_bias": (c.width,),
        "feed_forward.gate_bias": (wide,),
        "feed_forward.up_bias": (wide,),
        "feed_forward.down_bias": (c.width,),
        "feed_forward.post_norm": (c.width,),
        "feed_forward.dense_norm": (c.width,),
        "experts.norm": (c.width,),
        "experts.post_norm": (c.width,),
        "experts.router_norm": (c.width,),
        "experts.scales": (c.experts,),
        "input.gate": (c.layer_input, c.width),
        "input.projection": (c.width, c.layer_input),
        "input.post_norm": (c.width,),
        "scale": (1,),
        "experts.router": (c.experts, c.width),
        "experts.latent_in": (c.expert_latent, c.width),
        "experts.latent_out": (c.width, c.expert_latent),
        "experts.router_bias": (c.experts,),
        "experts.selection_bias": (c.experts,),
        "shared_expert.router": (1, c.width),
        "shared_expert.gate": (c.shared_expert, c.width),
        "shared_expert.up": (c.shared_expert, c.width),
        "shared_expert.gate_up": (2 * c.shared_expert, c.width),
        "shared_expert.down": (c.width, c.shared_expert),
    }


def _attention_shapes(c: ModelConfig, a: Attention) -> dict[str, tuple[int, ...]]:
    q, k, v = (a.widths[part] for part in "qkv")
    return {
        "attention.q": (q * (1 + c.output_gate), c.width),
        "attention.k": (k, c.width),
        "attention.v": (v, c.width),
        "attention.qkv": (q + k + v, c.width),
        "attention.q_bias": (q,),
        "attention.k_bias": (k,),
        "attention.v_bias": (v,),
        "attention.q_norm": (q if c.qk_norm == "row" else a.key_dim,),
        "attention.k_norm": (k if c.qk_norm == "row" else a.key_dim,),
        "attention.output": (c.width, a.out),
        "attention.output_bias": (c.width,),
        "attention.sinks": (a.heads,),
    }


def _latent_shapes(c: ModelConfig, a: Latent) -> dict[str, tuple[int, ...]]:
    return {
        "attention.q": (a.heads * a.query_dim, c.width),
        "attention.q_a": (a.q_rank, c.width),
        "attention.q_a_norm": (a.q_rank,),
        "attention.q_b": (a.heads * a.query_dim, a.q_rank),
        "attention.kv_a": (a.row, c.width),
        "attention.kv_a_norm": (a.kv_rank,),
        "attention.kv_b": (a.heads * (a.plain_dim + a.value_dim), a.kv_rank),
        "attention.k_b": (a.heads, a.kv_rank, a.plain_dim),
        "attention.v_b": (a.heads, a.value_dim, a.kv_rank),
        "attention.output": (c.width, a.heads * a.value_dim),
    }


def split_stored(c: ModelConfig, index: int, name: str, stored: Stored) -> Iterator[tuple[str, Stored]]:
    """Split a stored tensor into the decoder's tensors, with their names."""
    if name == "attention.qkv":
        widths = c.layer(index).attention.widths
        q, k = widths["q"], widths["k"]
        yield "attention.q", stored[:q]
        yield "attention.k", stored[q : q + k]
        yield "attention.v", stored[q + k :]
    elif name == "attention.kv_b":
        mixer = c.layer(index).mixer
        assert isinstance(mixer, Latent)
        k_b, v_b = split_heads(mixer, stored)
        yield "attention.k_b", k_b
        yield "attention.v_b", v_b
    elif name.endswith(".gate_up"):
        part, wide = name.removesuffix("gate_up"), stored.shape[0] // 2
        yield f"{part}gate", stored[:wide]
        yield f"{part}up", stored[wide:]
    elif name == "experts.router_norm":
        yield name, _vector(stored) / np.float32(np.sqrt(c.width))
    elif name.endswith("norm"):
        yield name, _norm_weight(c, stored)
    elif name.endswith(".decay_log"):
        yield name.removesuffix("_log"), -np.exp(_vector(stored))
    elif name == "delta.rates":
        mixer = c.layer(index).mixer
        assert isinstance(mixer, DeltaRule)
        yield from split_rates(mixer, stored)
    elif name.endswith(("bias", "sinks", "scale", "scales", "filter", "decay", "skip")):
        yield name, _vector(stored)
    else:
        yield name, stored


def split_rates(a: DeltaRule, stored: Stored) -> Iterator[tuple[str, Stored]]:
    """The matrices of rates and of steps, stored as one that has both by turns for each key head. Copies."""
    each = a.value_heads // a.key_heads
    rows = np.arange(2 * a.value_heads).reshape(a.key_heads, 2, each)
    yield "delta.rate", stored[rows[:, 0].reshape(-1)]
    yield "delta.step", stored[rows[:, 1].reshape(-1)]


def split_heads(a: Latent, stored: Stored) -> tuple[Stored, Stored]:
    """What makes keys and values of a latent, for each head: (heads, kv_rank, plain_dim), which multiplies
    queries instead, and (heads, value_dim, kv_rank). Both are copies. The first is transposed, so blocks
    become float32.
    """
    each = a.plain_dim + a.value_dim
    if isinstance(stored, Quantized):
        by_head = Quantized(stored.data.reshape(a.heads, each, -1), stored.format)
        keys = tensor_ops.dequantize(by_head[:, : a.plain_dim])
        return np.ascontiguousarray(keys.swapaxes(1, 2)), by_head[:, a.plain_dim :]
    floats = stored.reshape(a.heads, each, a.kv_rank)
    keys, values = floats[:, : a.plain_dim], floats[:, a.plain_dim :]
    return np.ascontiguousarray(keys.swapaxes(1, 2)), np.ascontiguousarray(values)


def _vector(stored: Stored) -> np.ndarray:
    return np.ascontiguousarray(stored, np.float32)


def _norm_weight(c: ModelConfig, stored: Stored) -> np.ndarray:
    return np.asarray(stored, np.float32) + np.float32(c.norm_offset)


def check_tensor(tensors: NamedTensors, name: str, shape: tuple[int, ...]) -> Stored:
    """The tensor. Raises ModelFileError if it is missing, or its shape or type is not supported."""
    stored, place = tensors.tensor(name), f"tensor {tensors.file_name(name)}"
    if stored.shape == shape[1:] and shape[0] == 1 and isinstance(stored, np.ndarray):
        stored = stored[None]  # GGUF files store a matrix of one row as a vector
    if stored.shape == (1, *shape) and len(shape) == 1 and isinstance(stored, np.ndarray):
        stored = stored[0]  # the selection bias of ERNIE is a row
    if len(shape) == 1 and ".mamba." in name and isinstance(stored, np.ndarray) and stored.size == shape[0]:
        stored = stored.reshape(shape)  # GGUF files have heads as rows
    if name.endswith("filter") and stored.shape == (shape[0], 1, *shape[1:]):
        stored = stored[:, 0]  # folders have a channel's inputs, of which there is one
    if stored.shape != shape:
        expected = f"{shape}, as the model's configuration says"
        raise ModelFileError(tensors.weights.path, place, f"has shape {stored.shape}", expected)
    vector = len(shape) == 1
    if isinstance(stored, Quantized) and not vector:
        return stored
    kind = stored.format if isinstance(stored, Quantized) else str(stored.dtype)
    if isinstance(stored, Quantized) or kind not in _FLOATS:
        expected = ", ".join(_FLOATS) + ("" if vector else " or blocks of quantized values")
        raise ModelFileError(tensors.weights.path, place, f"has type {kind}", expected)
    return stored
