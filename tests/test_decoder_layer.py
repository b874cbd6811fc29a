"""Whole layers, and whole steps, as one call against the composition of ops that defines them."""

import dataclasses

import ml_dtypes
import numpy as np
import pytest
import stored
from conftest import targets

from airllm import tensor_ops
from airllm.backends.kernel_backend import CpuBackend, KernelBackend
from airllm.formats import FORMATS, Quantized
from airllm.models.cache import Cache
from airllm.models.config import ModelConfig, Rope
from airllm.models.decoder import Angles, Rows, decoder_layer
from airllm.models.fused import FusedLayers, FusedStep
from airllm.models.layers import Experts, Layer

PYTHON = KernelBackend("python")
CAPACITY = 400
having = pytest.mark.parametrize(
    "target", [t for t in targets() if hasattr(t.module, "decoder_layers")], ids=str
)

MODELS = {
    "llama": {},
    "neighbours": {"rope": Rope(10000.0, 32, interleaved=True)},
    "qwen2": {"qkv_bias": True},
    "bias of the output": {"output_bias": True, "qkv_bias": True},
    "qwen3": {"qk_norm": True, "head_dim": 64, "rope": Rope(1e6, 64)},
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
    "small odd heads": {"heads": 5, "kv_heads": 5, "head_dim": 6, "rope": Rope(10000.0, 6)},
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
    rng = np.random.default_rng(index)
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    f = c.feed_forward
    shapes = {
        "attention.q": (q, c.width), "attention.k": (kv, c.width), "attention.v": (kv, c.width),
        "attention.output": (c.width, q),
    }  # fmt: skip
    if not c.is_moe(index):
        parts = {"gate": (f, c.width), "up": (f, c.width), "down": (c.width, f)}
        shapes |= {f"feed_forward.{name}": shape for name, shape in parts.items()}
    weights = {n: matrix(rng, s, formats[i % len(formats)]) for i, (n, s) in enumerate(shapes.items())}
    vectors = {"attention.norm": c.width, "feed_forward.norm": c.width}
    if c.qkv_bias:
        vectors |= {"attention.q_bias": q, "attention.k_bias": kv, "attention.v_bias": kv}
    if c.output_bias:
        vectors |= {"attention.output_bias": c.width}
    if c.qk_norm:
        vectors |= {"attention.q_norm": c.head_dim, "attention.k_norm": c.head_dim}
    if c.post_norms:
        vectors |= {"attention.post_norm": c.width, "feed_forward.post_norm": c.width}
    weights |= {n: rng.uniform(0.5, 1.5, size).astype(np.float32) for n, size in vectors.items()}
    if not c.is_moe(index):
        return Layer(c, index, weights)
    weights["experts.router"] = matrix(rng, (c.experts, c.width), "f32")
    return Layer(c, index, weights, experts_of(c, index, formats))


def experts_of(c: ModelConfig, index: int, formats=("f32",)) -> Experts:
    rng, f = np.random.default_rng(index + 100), c.expert_feed_forward
    shapes = {"gate": (f, c.width), "up": (f, c.width), "down": (c.width, f)}
    found = {
        number: {
            n: matrix(rng, s, formats[(number + i) % len(formats)]) for i, (n, s) in enumerate(shapes.items())
        }
        for number in range(c.experts)
    }
    return Experts(None, c, index, _found=found)


def batch_of(c: ModelConfig, batch, dtype="f32"):
    """Rows of x, what turns them, and caches that have something in them; the same each time."""
    rng = np.random.default_rng(len(batch))
    rows, start = [], 0
    for length, tokens in batch:
        cache = Cache(c, CAPACITY, dtype)
        cache.data[:, :, :, :length] = rng.standard_normal(cache.data[:, :, :, :length].shape)
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


def composed(ops, x, angles, rows, layers):
    for layer in layers:
        local = layer.config.rope_of(layer.index) is layer.config.local_rope
        x = decoder_layer(ops, x, layer, angles[int(local)], rows)
    return x


def compare(ops, c, batch, formats=("f32",), expected_ops=PYTHON, within=2e-5, dtype="f32", spoil=None):
    """Two layers in one call, each in one of its own, and composed: x and what the caches have then."""
    layers = [layer_of(c, i, formats) for i in range(2)]
    fused = FusedLayers(ops, layers)
    assert not fused.why_not
    x, angles, rows = batch_of(c, batch, dtype)
    if spoil:
        spoil(x)
    assert fused.takes(rows)
    expected_rows = batch_of(c, batch, dtype)[2]
    expected = composed(expected_ops, x, angles, expected_rows, list(map(with_exact_projections, layers)))
    apart = x.copy()
    for i in range(2):
        fused.run(apart, angles, batch_of(c, batch, dtype)[2], slice(i, i + 1))
    fused.run(x, angles, rows)
    np.testing.assert_array_equal(apart, x)
    agree(x, expected, within)
    for part, other in zip(rows, expected_rows, strict=True):
        agree(part.cache.data.astype(np.float32), other.cache.data.astype(np.float32), within)


def with_exact_projections(layer):
    """Of the products with stored weights those that give q, k and v are exact to 15 bits, not to 8."""
    projections = {name: layer[f"attention.{name}"] for name in "qkv"}
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


@having
@pytest.mark.parametrize("model", MODELS)
def test_a_layer_is_the_composition_of_its_ops(model, reached):
    for batch in BATCHES.values():
        compare(KernelBackend("cpp"), config(**MODELS[model]), batch)


@having
@pytest.mark.parametrize("threads", (2, 3))
@pytest.mark.parametrize("model", ("llama", "gemma", "one key-value head"))
def test_any_number_of_threads_gives_the_same(threads, model, target, reached):
    c = config(**{"width": 256, "feed_forward": 512} | MODELS[model])
    before = reached.switch(target.variant, threads)
    try:
        for batch in BATCHES.values():
            compare(KernelBackend("cpp"), c, batch)
    finally:
        reached.switch(*before)


@having
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", *FORMATS])
def test_stored_weights(name, reached):
    """Activations are rounded to 8 bits as in the ops, so nearly as there, whatever the format."""
    block = FORMATS[name].values if name in FORMATS else 1
    c = config(width=max(block, 96), feed_forward=max(2 * block, 160), heads=8, kv_heads=4)
    for batch in (BATCHES["short"], BATCHES["unequal"]):
        exact = name not in FORMATS
        compare(KernelBackend("cpp"), c, batch, [name], within=2e-5 if exact else 0.07)
        # An activation at the edge between two codes may be rounded to either.
        compare(KernelBackend("cpp"), c, batch, [name], KernelBackend("cpp"), 2e-5 if exact else 3e-2)


@having
@pytest.mark.parametrize("name", FORMATS)
def test_queries_keys_and_values_are_not_rounded_to_8_bits(name, reached):
    c = config(width=max(FORMATS[name].values, 96), feed_forward=FORMATS[name].values, heads=8)
    for batch in (BATCHES["short"], BATCHES["unequal"]):
        x, angles, rows = batch_of(c, batch)
        FusedLayers(KernelBackend("cpp"), [layer_of(c, 0, [name])]).run(x, angles, rows)
        x, angles, expected = batch_of(c, batch)
        composed(PYTHON, x, angles, expected, [layer_of(c, 0, [name])])
        for part, other in zip(rows, expected, strict=True):
            agree(part.cache.data, other.cache.data, 2e-4)
    reached.silu(np.ones(1, np.float32))


@having
def test_formats_may_differ_within_a_layer(reached):
    c = config(width=256, feed_forward=256, heads=8)
    for formats in (("q4_k", "q6_k", "f16"), ("q8_0", "q4_0", "q4_1", "f32")):
        compare(KernelBackend("cpp"), c, BATCHES["two"], formats, KernelBackend("cpp"), 3e-2)


@having
def test_a_cache_of_half_precision(reached):
    compare(KernelBackend("cpp"), config(), BATCHES["unequal"], dtype="f16", within=2e-3)


@having
@pytest.mark.parametrize("value", (np.nan, np.inf, 1e-25))
@pytest.mark.parametrize("name", ("q4_1", "f32"))
def test_what_int8_cannot_hold_is_as_in_the_ops(value, name, reached):
    def spoil(x):
        x[1, 3 : 3 + (x.shape[1] if value == 1e-25 else 1)] = value

    compare(
        KernelBackend("cpp"), config(), BATCHES["unequal"], [name], KernelBackend("cpp"), 3e-2, spoil=spoil
    )


@having
def test_a_backend_with_a_part_switched_off(reached):
    compare(CpuBackend(use_simd=False, use_parallel=False), config(), BATCHES["two"])


@having
def test_what_a_layer_has_no_place_for_is_left_to_the_composition(reached):
    layer = layer_of(config(), 0)
    for name, weights in {
        "feed_forward.gate": {n: w for n, w in layer.weights.items() if n != "feed_forward.gate"},
        "experts.router": {**layer.weights, "experts.router": np.zeros((4, 64), np.float32)},
    }.items():
        assert name in FusedLayers(KernelBackend("cpp"), [Layer(layer.config, 0, weights)]).why_not
    reached.silu(np.ones(1, np.float32))


def test_a_backend_without_such_a_call_says_so():
    assert "python" in FusedLayers(PYTHON, [layer_of(config(), 0)]).why_not


@having
@pytest.mark.parametrize(
    "changed", ("attention.q", "attention.output", "feed_forward.up", "feed_forward.norm")
)
def test_a_weight_of_another_shape_is_refused(changed, reached):
    layer = layer_of(config(), 0)
    for wrong in (
        layer[changed][:-1],
        np.zeros((), np.float32),
        Quantized(np.zeros((3, 34), np.uint8), "q8_0"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"DecoderLayer: {changed} has"):
            FusedLayers(KernelBackend("cpp"), [Layer(layer.config, 0, {**layer.weights, changed: wrong})])
    reached.silu(np.ones(1, np.float32))


# ------------------------------------------------------------------------------------------------ whole steps

VOCABULARY = 203  # no multiple of what threads share
ENDS = {
    "plain": {},
    "scaled, capped": {"embedding_scale": 8.0, "logit_softcap": 1.5},
}


class Ends:
    """What stands before and after two layers."""

    def __init__(self, c: ModelConfig, name: str, spoil=None):
        rng = np.random.default_rng(3)
        self.config = c
        self.embedding, self.output = (matrix(rng, (VOCABULARY, c.width), name) for _ in range(2))
        self.norm = rng.uniform(0.5, 1.5, c.width).astype(np.float32)
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
        logits = ops.linear(ops.rms_norm(last, self.norm, self.config.norm_eps), self.output)
        cap = self.config.logit_softcap
        return np.tanh(logits / cap) * cap if cap else logits


def compare_steps(c, batch, name="f32", expected_ops=PYTHON, within=2e-5, spoil=None, reduce=None):
    ends = Ends(c, name, spoil)
    _, angles, rows = batch_of(c, batch)
    ids = np.random.default_rng(0).integers(0, VOCABULARY, rows[-1].stop).tolist()
    ids[0] = 5  # the one that is spoiled
    found = ends.step(KernelBackend("cpp")).run(ids, angles, rows, reduce)
    assert found.shape == (len(rows), VOCABULARY) and found.dtype == np.float32
    expected_rows = batch_of(c, batch)[2]
    agree(found, ends.logits(expected_ops, ids, angles, expected_rows), within)
    for part, other in zip(rows, expected_rows, strict=True):
        agree(part.cache.data.astype(np.float32), other.cache.data.astype(np.float32), within)


@having
@pytest.mark.parametrize("kind", ENDS)
@pytest.mark.parametrize("model", ("llama", "gemma", "small odd heads"))
def test_a_step_goes_from_tokens_to_logits(model, kind, reached):
    c = config(**MODELS[model] | ENDS[kind])
    for batch in BATCHES.values():
        compare_steps(c, batch)


@having
@pytest.mark.parametrize("threads", (2, 3))
def test_threads_share_a_step(threads, target, reached):
    before = reached.switch(target.variant, threads)
    try:
        c = config(width=256, feed_forward=512, logit_softcap=2.0)
        for batch in ("first token", "long", "unequal"):
            compare_steps(c, BATCHES[batch])
            compare_steps(c, BATCHES[batch], reduce=lambda change: None)
    finally:
        reached.switch(*before)


@having
@pytest.mark.parametrize("name", ["f16", "bf16", *FORMATS])
def test_a_step_with_stored_weights(name, reached):
    block = FORMATS[name].values if name in FORMATS else 1
    c = config(width=max(block, 96), feed_forward=max(2 * block, 160), heads=8, kv_heads=4)
    # An activation at the edge between two codes may be rounded to either.
    compare_steps(c, BATCHES["unequal"], name, KernelBackend("cpp"), 6e-2)


@having
@pytest.mark.parametrize("value", (np.nan, np.inf))
def test_a_step_whose_embedding_is_not_finite(value, reached):
    def spoil(table):
        table[5, 3] = value

    compare_steps(config(), BATCHES["unequal"], spoil=spoil)
    compare_steps(config(), BATCHES["first token"], spoil=spoil)


@having
def test_what_half_a_layer_gives_is_added_up_where_it_is_asked_for(reached):
    """As if there were a second process, whose part of each layer gives the same."""
    c = config(post_norms=True)
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

    def broken(change):
        raise RuntimeError("the others are gone")

    with pytest.raises(RuntimeError, match="the others are gone"):
        step.run([1, 2], angles, rows, broken)
    with pytest.raises(TypeError, match="decode_step: reduce has type int"):
        step.run([1, 2], angles, rows, 3)


WRONG_STEPS = {
    f"tokens has value {VOCABULARY}, expected 0 to {VOCABULARY - 1}": [1, VOCABULARY],
    "tokens has value -1": [-1, 1],
    "tokens has 9 tokens, expected at most 8": [0] * 9,
    "tokens is empty": [],
    "rows has 2 rows, expected as many as come, 1|cos has shape": [1],
    "integer|int": [1, "a"],
}


@having
@pytest.mark.parametrize("message", WRONG_STEPS)
def test_wrong_tokens_are_refused(message, reached):
    _, angles, rows = batch_of(config(), BATCHES["two"])
    with pytest.raises((ValueError, TypeError), match=message):
        Ends(config(), "f32").step(KernelBackend("cpp")).run(WRONG_STEPS[message], angles, rows)
    reached.silu(np.ones(1, np.float32))


@having
def test_a_plan_checks_its_tables(reached):
    ends = Ends(config(), "f32")
    right = ends.embedding, ends.norm, ends.output
    for i, message in enumerate(
        ("embedding has shape", "output has shape|embedding has shape", "output has")
    ):
        wrong = [each[..., :-1].copy() if i == at else each for at, each in enumerate(right)]
        ends.embedding, ends.norm, ends.output = wrong
        with pytest.raises(ValueError, match=f"DecoderPlan: ({message})"):
            ends.step(KernelBackend("cpp"))
    ends.embedding, ends.norm, ends.output = right
    ends.layers = [layer_of(config(width=32), 0)]
    with pytest.raises(
        ValueError, match="layers has a layer of width 32, expected that of the embedding, 64"
    ):
        ends.step(KernelBackend("cpp"))
    reached.silu(np.ones(1, np.float32))


# ------------------------------------------------------------------------------------------------ refusals

WRONG = {
    "x has shape": {"x": np.zeros((4, 65), np.float32)},
    "at most 8 rows": {"x": np.zeros((9, 64), np.float32)},
    "x has dtype float16": {"x": np.zeros((4, 64), np.float16)},
    "x is read-only": {"x": np.broadcast_to(np.float32(0), (1, 1)).repeat(4, 0).repeat(64, 1)},
    "cos has shape": {"cos": np.zeros((3, 1, 16), np.float32)},
    "at most half of head_dim=32": {"cos": np.zeros((4, 1, 17), np.float32)},
    "rotations has 0 tables": {"rotations": []},
    "rows has 3 rows": {"rows": [(0, 3)]},
    "rows has rows 1 to 4": {"rows": [(1, 4)]},
    "rows has rows 2 to 2": {"rows": [(0, 2), (2, 2), (2, 4)]},
    "a length of 9 and 4 rows": {"length": 9},
    "a length of -1": {"length": -1},
    "keys and values has shape": {"data": np.zeros((2, 2, 2, 12, 31), np.float32)},
    "keys and values has dtype": {"data": np.zeros((2, 2, 2, 12, 32), np.int8)},
    "keys and values has data of another kind": {"data": np.zeros((2, 2, 2, 12, 32), np.uint8)},
    r"keys and values has shape \(2, 2, 2, 12, 64\)": {"data": np.zeros((2, 2, 2, 12, 68), np.uint8)},
    "a cache twice": {"rows": [(0, 2), (2, 4)]},
}


@having
@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_argument_is_refused(message, reached):
    layer = FusedLayers(KernelBackend("cpp"), [layer_of(config(), 0)]).prepared
    given = {
        "data": np.zeros((2, 2, 2, 12, 32), np.float32),
        "length": 0,
        "rows": [(0, 4)],
        "x": np.zeros((4, 64), np.float32),
        "cos": np.zeros((4, 1, 16), np.float32),
    } | WRONG[message]
    if "read-only" in message:
        given["x"].flags.writeable = False
    rows = [(*part, given["data"], given["length"]) for part in given["rows"]]
    rotations = given.get("rotations", [(given["cos"], given["cos"])])
    with pytest.raises((ValueError, TypeError), match=message):
        reached.decoder_layers(layer, given["x"], rotations, rows)
    reached.silu(np.ones(1, np.float32))
