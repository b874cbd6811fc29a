"""Whole layers as one call against the composition of ops that defines them."""

import numpy as np
import pytest
from decoder_cases import (
    BATCHES,
    FORMATS_READ,
    MODELS,
    PYTHON,
    agree_in_caches,
    batch_of,
    compare,
    composed,
    config,
    having,
    layer_of,
    on_threads,
)

from airllm.backends.api.cpp_backend import CpuBackend
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.layers.native_decode import FusedLayers
from airllm.engine.layers.rows import Angles, Rows
from airllm.formats import FORMATS, Quantized
from airllm.memory.layers import Layer


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
    with on_threads(target, reached, threads):
        for batch in BATCHES.values():
            compare(KernelBackend("cpp"), c, batch)


@having
@pytest.mark.parametrize("threads", (1, 3))
def test_tokens_of_several_chunks_have_the_bits_that_they_have_one_by_one(threads, target, reached):
    """Before 256 keys, which are a piece, and after them."""
    c = config(windows=(260, 6), chunked=True)
    fused = FusedLayers(KernelBackend("cpp"), [layer_of(c, i) for i in range(2)])
    with on_threads(target, reached, threads):
        x, angles, (together,) = batch_of(c, [(250, 14)])
        one_by_one, (_, _, (alone,)) = x.copy(), batch_of(c, [(250, 14)])
        fused.run(x, angles, [together])
        for i in range(len(x)):
            turned = [Angles(each.cos[i : i + 1], each.sin[i : i + 1], each.interleaved) for each in angles]
            fused.run(one_by_one[i : i + 1], turned, [Rows(0, 1, alone.cache)])
            alone.cache.extend([0])
        np.testing.assert_array_equal(x, one_by_one)


@having
@pytest.mark.parametrize("name", ["f32", "f16", "bf16", *FORMATS_READ])
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
@pytest.mark.parametrize("name", FORMATS_READ)
def test_queries_keys_and_values_are_not_rounded_to_8_bits(name, reached):
    c = config(width=max(FORMATS[name].values, 96), feed_forward=FORMATS[name].values, heads=8)
    for batch in (BATCHES["short"], BATCHES["unequal"]):
        x, angles, rows = batch_of(c, batch)
        FusedLayers(KernelBackend("cpp"), [layer_of(c, 0, [name])]).run(x, angles, rows)
        x, angles, expected = batch_of(c, batch)
        composed(PYTHON, x, angles, expected, [layer_of(c, 0, [name])])
        for part, other in zip(rows, expected, strict=True):
            agree_in_caches(part.cache, other.cache, 2e-4)
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


# ------------------------------------------------------------------------------------------------ refusals

WRONG = {
    "x has shape": {"x": np.zeros((4, 65), np.float32)},
    "at most 16 rows": {"x": np.zeros((17, 64), np.float32)},
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
