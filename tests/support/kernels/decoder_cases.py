"""Layers, steps and batches for the tests of whole layers as one call, and how they are compared with what
defines them, the composition of ops.
"""

import dataclasses
import itertools
from contextlib import contextmanager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import stored
from targets import targets

from airllm import tensor_ops
from airllm.architectures.layer_spec import Latent, LayerSizes, QueryTemperature, Rope
from airllm.architectures.model_config import ModelConfig
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.layers.decoder import decoder_layer, normalize
from airllm.engine.layers.native_decode import FusedLayers, FusedStep
from airllm.engine.layers.rows import Angles, Rows
from airllm.formats import FORMATS, Quantized
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Experts, Layer

PYTHON = KernelBackend("python")
CAPACITY = 400
having = pytest.mark.parametrize(
    "target", [t for t in targets() if hasattr(t.module, "decoder_layers")], ids=str
)

# The stored formats of weights that such layers have.
FORMATS_READ = next((stored.read_by(t.module) for t in targets() if hasattr(t.module, "decoder_layers")), [])

LATENT = {
    "kv_heads": 1,
    "head_dim": 48,
    "rope": Rope(10000.0, 16, interleaved=True),
    "kv_rank": 32,
    "value_dim": 24,
}
MODELS = {
    "llama": {},
    "neighbours": {"rope": Rope(10000.0, 32, interleaved=True)},
    "qwen2": {"qkv_bias": True},
    "bias of the output": {"output_bias": True, "qkv_bias": True},
    "qwen3": {"qk_norm": "head", "head_dim": 64, "rope": Rope(1e6, 64)},
    "gemma": {
        "post_norms": True,
        "attention_softcap": 20.0,
        "attention_scale": 0.1,
        "windows": (5, None),
        "activation": "gelu_tanh",
        "local_rope": Rope(500.0, 32),
    },
    "gelu": {"activation": "gelu"},
    "half of a head is turned": {"rope": Rope(10000.0, 16), "heads": 6, "kv_heads": 6},
    "one key-value head": {"heads": 9, "kv_heads": 1},
    "granite": {"residual_scale": 0.25, "attention_scale": 0.1},
    "a layer without a rotation": {"nope_layers": (False, True)},
    "norms of whole rows, and after each half": {"qk_norm": "row", "pre_norms": False, "post_norms": True},
    "layer norms": {"norm": "layer", "post_norms": True},
    "cohere2": {
        "norm": "layer",
        "parallel": True,
        "windows": (7, None),
        "nope_layers": (False, True),
        "rope": Rope(10000.0, 32, interleaved=True),
    },
    "starcoder2": {
        "norm": "layer",
        "norm_bias": True,
        "gated": False,
        "mlp_bias": True,
        "activation": "gelu_tanh",
        "qkv_bias": True,
        "output_bias": True,
    },
    "no gate": {"gated": False},
    "biases of all matrices": {"mlp_bias": True, "qkv_bias": True, "output_bias": True},
    "norms after the rotation": {"qk_norm": "head", "late_qk_norm": True, "nope_layers": (False, True)},
    "temperature": {"query_temperature": QueryTemperature(0.5, 16)},
    "chunks, and temperatures where nothing rotates": {
        "windows": (6, None),
        "chunked": True,
        "nope_layers": (False, True),
        "query_temperature": QueryTemperature(0.5, 16, offset=1, nope_only=True),
    },
    "chunks of more than a piece of keys": {"windows": (260, 300), "chunked": True},
    "all of these": {
        "residual_scale": 0.25,
        "nope_layers": (True, False),
        "qk_norm": "row",
        "post_norms": True,
        "query_temperature": QueryTemperature(2.0, 3),
        "windows": (None, 20),
        "local_rope": Rope(500.0, 32),
    },
    "layers of different sizes": {
        "heads": 6,
        "kv_heads": 3,
        "head_dim": 32,
        "feed_forward": 160,
        "rope": Rope(10000.0, 16),
        "qk_norm": "head",
        "qkv_bias": True,
        "sizes": (LayerSizes(6, 3, 32, 32, 96), LayerSizes(4, 1, 16, 16, 160)),
    },
    "a layer reads the keys and values of another": {"kv_layers": (0, 0), "windows": (7, 7)},
    "values with a norm, which are keys in one layer": {
        "value_norm": True,
        "keys_as_values": (False, True),
        "qk_norm": "head",
        "layer_scale": True,
    },
    "layers with inputs of their own": {
        "layer_input": 48,
        "activation": "gelu_tanh",
        "post_norms": True,
        "layer_scale": True,
        "value_norm": True,
        "kv_layers": (0, 0),
    },
    "sinks under a window": {"sinks": True, "windows": (7, None)},
    "small odd heads": {"heads": 5, "kv_heads": 5, "head_dim": 6, "rope": Rope(10000.0, 6)},
    "latent attention": LATENT,
    "latent attention, its queries of latents too": {
        **LATENT,
        "heads": 5,
        "q_rank": 24,
        "value_dim": 40,
        "rope": Rope(10000.0, 16),
        "query_temperature": QueryTemperature(0.5, 16),
        "residual_scale": 0.25,
    },
}
# Lengths before, and new tokens, of each sequence.
BATCHES = {
    "first token": [(0, 1)],
    "short": [(5, 1)],
    "long": [(333, 1)],
    "eight tokens": [(20, 8)],
    "from nothing": [(0, 7)],
    "two": [(0, 1), (300, 1)],
    "unequal": [(70, 2), (0, 1), (31, 5)],
    "sixteen": [(7 * i, 1) for i in range(16)],
}


def config(**changes) -> ModelConfig:
    fields = {
        "architecture": "test", "layers": 2, "width": 64, "heads": 6, "kv_heads": 2, "head_dim": 32,
        "feed_forward": 160, "vocabulary": 1, "context": CAPACITY, "rope": Rope(10000.0, 32),
        "norm_eps": 1e-5, "activation": "silu", "attention_scale": 0.25, "windows": (None, None),
    }  # fmt: skip
    return ModelConfig(**fields | changes)


def matrix(rng, shape, name):
    """Weights that neither grow nor shrink what they multiply, much."""
    floats = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
    values = (rng.standard_normal(shape) / np.sqrt(shape[1])).astype(np.float32)
    if name in FORMATS:
        if FORMATS[name].pack:
            return tensor_ops.quantize(values, name)
        seed = int(rng.integers(1 << 30))
        largest = 1e-3 * values.std() / stored.blocks(name, shape, seed, 1e-3).dequantize().std()
        return stored.blocks(name, shape, seed, largest)
    return values.astype(floats[name])


def layer_of(c: ModelConfig, index: int, formats=("f32",)) -> Layer:
    rng, f = np.random.default_rng(index), c.sizes_of(index).feed_forward
    a = c.layer(index).mixer
    shapes = latent_shapes(c, a) if isinstance(a, Latent) else attention_shapes(c, index)
    if not c.is_moe(index) or c.dense_and_experts:
        parts = {"gate": (f, c.width), "up": (f, c.width), "down": (c.width, f)}
        shapes |= {
            f"feed_forward.{name}": shape for name, shape in parts.items() if c.gated or name != "gate"
        }
    weights = {n: matrix(rng, s, formats[i % len(formats)]) for i, (n, s) in enumerate(shapes.items())}
    normed = (2, c.width) if c.norm_bias else c.width
    vectors: dict[str, Any] = {"attention.norm": normed, "feed_forward.norm": normed} if c.pre_norms else {}
    if c.parallel:
        del vectors["feed_forward.norm"]
    if c.mlp_bias:
        vectors |= {f"{n}_bias": s[0] for n, s in shapes.items() if n.startswith("feed_forward.")}
    if c.qkv_bias:
        vectors |= {f"attention.{name}_bias": a.widths[name] for name in "qkv"}
    if isinstance(a, Latent):
        vectors |= {"attention.kv_a_norm": a.kv_rank, "attention.q_a_norm": a.q_rank}
    if c.value_norm and a.source == index:
        vectors |= {"attention.v_norm": a.value_dim}
    if c.layer_scale:
        vectors |= {"scale": 1}
    if wide := c.layer_input:
        shapes = {"input.gate": (wide, c.width), "input.projection": (c.width, wide)}
        weights |= {name: matrix(rng, shape, formats[0]) for name, shape in shapes.items()}
        vectors |= {"input.post_norm": c.width}
    if c.dense_and_experts and c.is_moe(index):
        norms = ("experts.norm", "experts.router_norm", "experts.post_norm", "feed_forward.dense_norm")
        vectors |= dict.fromkeys(norms, c.width) | {"experts.scales": c.experts}
    if c.sinks:
        vectors |= {"attention.sinks": a.heads}
    if c.output_bias:
        vectors |= {"attention.output_bias": c.width}
    if c.qk_norm:
        row = c.qk_norm == "row"
        sizes = {name: a.widths[name] if row else a.key_dim for name in "qk"}
        vectors |= {f"attention.{name}_norm": size for name, size in sizes.items()}
    if c.post_norms:
        vectors |= {"attention.post_norm": normed, "feed_forward.post_norm": normed}
    weights |= {n: rng.uniform(0.5, 1.5, size).astype(np.float32) for n, size in vectors.items() if size}
    if isinstance(a, Latent):
        weights |= {name: by_head(weights[name], a.heads) for name in ("attention.k_b", "attention.v_b")}
    if not c.is_moe(index):
        return Layer(c, index, weights)
    weights["experts.router"] = matrix(rng, (c.experts, c.width), "f32")
    if c.selection_bias:
        weights["experts.selection_bias"] = rng.standard_normal(c.experts).astype(np.float32) / 4
    if c.router_bias:
        weights["experts.router_bias"] = rng.standard_normal(c.experts).astype(np.float32)
    if wide := c.shared_expert:
        shared = {"gate": (wide, c.width), "up": (wide, c.width), "down": (c.width, wide)}
        shared |= {"router": (1, c.width)} if c.shared_gate else {}
        weights |= {f"shared_expert.{n}": matrix(rng, shape, formats[0]) for n, shape in shared.items()}
    return Layer(c, index, weights, experts_of(c, index, formats))


def attention_shapes(c: ModelConfig, index: int) -> dict[str, tuple[int, int]]:
    a = c.layer(index).attention
    shapes = {f"attention.{name}": (a.widths[name], c.width) for name in "qkv"}
    shapes["attention.output"] = (c.width, a.out)
    if a.source != index:
        del shapes["attention.k"], shapes["attention.v"]
    elif a.keys_as_values:
        del shapes["attention.v"]
    return shapes


def latent_shapes(c: ModelConfig, a: Latent) -> dict[str, tuple[int, int]]:
    """`k_b` and `v_b` are those of all heads."""
    queries = a.heads * a.query_dim
    of_queries = (
        {"q_a": (a.q_rank, c.width), "q_b": (queries, a.q_rank)} if a.q_rank else {"q": (queries, c.width)}
    )
    shapes = of_queries | {
        "kv_a": (a.row, c.width),
        "k_b": (a.heads * a.kv_rank, a.plain_dim),
        "v_b": (a.heads * a.value_dim, a.kv_rank),
        "output": (c.width, a.heads * a.value_dim),
    }
    return {f"attention.{name}": shape for name, shape in shapes.items()}


def by_head(weight: Any, heads: int) -> Any:
    if isinstance(weight, Quantized):
        return Quantized(by_head(weight.data, heads), weight.format)
    return weight.reshape(heads, -1, weight.shape[-1])


def experts_of(c: ModelConfig, index: int, formats=("f32",)) -> Experts:
    rng, f = np.random.default_rng(index + 100), c.expert_feed_forward
    shapes = {"gate": (f, c.width), "up": (f, c.width), "down": (c.width, f)}
    found = {
        number: {
            n: matrix(rng, s, formats[(number + i) % len(formats)]) for i, (n, s) in enumerate(shapes.items())
        }
        for number in range(c.experts)
    }
    for parts in found.values() if c.expert_bias else ():
        biases = {
            f"{n}_bias": rng.standard_normal(shape[0]).astype(np.float32) for n, shape in shapes.items()
        }
        parts |= biases
    return Experts(None, c, index, _found=found)


def batch_of(c: ModelConfig, batch, dtype="f32"):
    """Rows of x, what turns them, and caches that have something in them; the same each time."""
    rng = np.random.default_rng(len(batch))
    rows, start = [], 0
    for length, tokens in batch:
        cache = Cache(c, CAPACITY, dtype)
        for array in itertools.chain(*cache.arrays):
            array[:, :, :, :length] = rng.standard_normal(array[:, :, :, :length].shape)
        cache.extend([0] * length)
        rows.append(Rows(start, start + tokens, cache))
        start += tokens
    x = rng.standard_normal((start, c.width)).astype(np.float32)
    positions = np.concatenate([np.arange(length, length + tokens) for length, tokens in batch])
    angles = []
    for rope in filter(None, (c.rope, c.local_rope)):
        cos, sin = tensor_ops.rope_table(positions, rope.dim, rope.theta)
        angles.append(Angles(cos[:, None], sin[:, None], rope.interleaved))
    return x, angles, rows


def inputs_of(c: ModelConfig, rows) -> np.ndarray | None:
    """The inputs (layers, rows, layer_input) of layers that have one of their own."""
    shape = c.layers, rows[-1].stop, c.layer_input
    return np.random.default_rng(8).standard_normal(shape).astype(np.float32) if c.layer_input else None


def composed(ops, x, angles, rows, layers):
    inputs = inputs_of(layers[0].config, rows)
    for layer in layers:
        rope = layer.config.rope_of(layer.index)
        turned = angles[rope is layer.config.local_rope] if rope else None
        own = None if inputs is None else inputs[layer.index]
        x = decoder_layer(ops, x, layer, turned, rows, own)
    return x


def compare(ops, c, batch, formats=("f32",), expected_ops=PYTHON, within=2e-5, dtype="f32", spoil=None):
    """Two layers in one call, each in one of its own, and composed: x and what the caches have then."""
    layers = [layer_of(c, i, formats) for i in range(2)]
    fused = FusedLayers(ops, layers)
    assert not fused.why_not
    x, angles, rows = batch_of(c, batch, dtype)
    if spoil:
        spoil(x)
    assert fused.supports(rows)
    expected_rows = batch_of(c, batch, dtype)[2]
    expected = composed(expected_ops, x, angles, expected_rows, list(map(with_exact_projections, layers)))
    apart, apart_rows, inputs = x.copy(), batch_of(c, batch, dtype)[2], inputs_of(c, rows)
    for i in range(2):
        fused.run(apart, angles, apart_rows, slice(i, i + 1), inputs)
    fused.run(x, angles, rows, inputs=inputs)
    np.testing.assert_array_equal(apart, x)
    agree(x, expected, within)
    for part, other in zip(rows, expected_rows, strict=True):
        agree_in_caches(part.cache, other.cache, within)


def agree_in_caches(actual, expected, within):
    for found, wanted in zip(actual.arrays, expected.arrays, strict=True):
        for a, b in zip(found, wanted, strict=True):
            agree(a.astype(np.float32), b.astype(np.float32), within)


def with_exact_projections(layer):
    """Of the products with stored weights those that give q, k and v are exact to 15 bits, not to 8; so are
    those of latents.
    """
    names = (*"qkv", "q_a", "q_b", "kv_a", "k_b", "v_b")
    projections = {name: layer.get(f"attention.{name}") for name in names}
    floats = {
        f"attention.{name}": weight.dequantize().astype(np.float32)
        for name, weight in projections.items()
        if isinstance(weight, Quantized)
    }
    return dataclasses.replace(layer, weights=layer.weights | floats)


def agree(actual, expected, within):
    """Errors relative to the largest value of a row."""
    scale = np.nanmax(np.abs(expected), axis=-1, keepdims=True, initial=1e-6)
    np.testing.assert_allclose(actual / scale, expected / scale, rtol=0, atol=within, equal_nan=True)


@contextmanager
def on_threads(target, reached, threads):
    """A team of so many; three may be more than the machine has: some come late, and miss steps."""
    before = reached.switch(target.variant, threads)
    try:
        yield
    finally:
        reached.switch(*before)


VOCABULARY = 203  # no multiple of what threads share


class Ends:
    """What stands before and after two layers."""

    def __init__(self, c: ModelConfig, name: str, spoil=None):
        rng = np.random.default_rng(3)
        self.config = c
        self.embedding, self.output = (matrix(rng, (VOCABULARY, c.width), name) for _ in range(2))
        self.norm = rng.uniform(0.5, 1.5, (2, c.width) if c.norm_bias else c.width).astype(np.float32)
        self.layers = [layer_of(c, i, [name]) for i in range(2)]
        if spoil:
            spoil(self.embedding)

    def step(self, ops) -> FusedStep:
        made = FusedStep(
            ops, FusedLayers(ops, self.layers), self.config, self.embedding, self.norm, self.output
        )
        assert not made.why_not
        return made

    def logits(self, ops, ids, angles, rows):
        x = ops.embedding(np.array(ids), self.embedding).astype(np.float32) * self.config.embedding_scale
        layers = list(map(with_exact_projections, self.layers))
        x = composed(ops, x.astype(np.float32), angles, rows, layers)
        last = np.stack([part.of(x)[-1] for part in rows])
        logits = ops.linear(normalize(ops, last, self.norm, self.config), self.output)
        cap = self.config.logit_softcap
        return (np.tanh(logits / cap) * cap if cap else logits) * np.float32(self.config.logit_scale)


def compare_steps(c, batch, name="f32", expected_ops=PYTHON, within=2e-5, spoil=None, reduce=None):
    ends = Ends(c, name, spoil)
    _, angles, rows = batch_of(c, batch)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, rows[-1].stop).tolist()
    ids[0] = 5  # the one that is spoiled
    found = ends.step(KernelBackend("cpp")).run(ids, angles, rows, reduce, inputs=inputs_of(c, rows))
    assert found.shape == (len(rows), VOCABULARY) and found.dtype == np.float32
    expected_rows = batch_of(c, batch)[2]
    agree(found, ends.logits(expected_ops, ids, angles, expected_rows), within)
    for part, other in zip(rows, expected_rows, strict=True):
        agree_in_caches(part.cache, other.cache, within)


def compare_shared_steps(c):
    for batch in ("first token", "long", "unequal"):
        compare_steps(c, BATCHES[batch])
        compare_steps(c, BATCHES[batch], reduce=lambda change: None)


def compare_added_up_steps(c):
    """As if there were a second process, whose part of each layer gives the same; returns the step."""
    halves = []

    def double(change):
        halves.append(change.shape)
        change += change

    ends = Ends(c, "f32")
    step = ends.step(KernelBackend("cpp"))
    _, angles, rows = batch_of(c, BATCHES["two"])
    found = step.run([1, 2], angles, rows, double)
    assert halves == [(2, c.width)] * 4
    ends.layers = [dataclasses.replace(layer, reduce=double) for layer in ends.layers]
    agree(found, ends.logits(PYTHON, [1, 2], angles, batch_of(c, BATCHES["two"])[2]), 2e-5)
    return step
