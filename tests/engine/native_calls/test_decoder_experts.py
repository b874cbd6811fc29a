"""Layers with experts as one call, and steps of them, against the composition of ops that defines them."""

import dataclasses

import numpy as np
import pytest
from decoder_cases import (
    BATCHES,
    PYTHON,
    agree,
    batch_of,
    compare,
    compare_added_up_steps,
    compare_shared_steps,
    compare_steps,
    composed,
    config,
    having,
    layer_of,
    on_threads,
)

from airllm.architectures.model_config import ModelConfig
from airllm.backends.api.kernel_backend import KernelBackend
from airllm.engine.layers.native_decode import FusedLayers
from airllm.files.pages import SUPPORTED
from airllm.formats import FORMATS, Quantized
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.layers import Experts, Layer
from tests.support.models import tiny_models

linux = pytest.mark.skipif(not SUPPORTED, reason="max_memory needs Linux")
LAYERS = {
    "two of six": {},
    "one": {"experts_used": 1},
    "one, whose share is one": {"experts_used": 1, "normalize_experts": True},
    "all": {"experts_used": 6, "normalize_experts": True},
    "all there is": {"experts": 1, "experts_used": 1},
    "many": {"experts": 70, "experts_used": 9, "expert_feed_forward": 24, "normalize_experts": True},
    "behind a dense layer": {"moe_layers": (False, True)},
    "before a dense one": {"moe_layers": (True, False), "normalize_experts": True},
    "one, before a dense one": {"moe_layers": (True, False), "experts_used": 1, "expert_feed_forward": 80},
    "post norms, gelu": {"post_norms": True, "activation": "gelu_tanh"},
    "biases and a clamped swiglu, as in gpt-oss": {
        "sinks": True,
        "router_bias": True,
        "expert_bias": True,
        "qkv_bias": True,
        "output_bias": True,
        "activation": "swiglu_clamped",
        "swiglu_alpha": 1.3,
        "swiglu_limit": 0.5,
        "normalize_experts": True,
        "windows": (7, None),
    },
    "weights of the input": {"expert_scores": "sigmoid", "scales_input": True, "experts_used": 3},
    "sigmoids, and a bias that only chooses": {
        "expert_scores": "sigmoid",
        "selection_bias": True,
        "expert_scale": 1.5,
        "normalize_experts": True,
    },
    "sigmoids that do not sum to one": {"expert_scores": "sigmoid", "experts_used": 3},
    "a part of what they find": {"residual_scale": 0.3},
    "beside a shared one with a gate": {"shared_expert": 72, "shared_gate": True},
    "beside a narrow shared one": {"shared_expert": 8, "normalize_experts": True},
    "beside a dense feed-forward, with norms of their own": {
        "dense_and_experts": True,
        "post_norms": True,
        "activation": "gelu_tanh",
        "normalize_experts": True,
    },
    "beside a dense feed-forward in one layer": {
        "dense_and_experts": True,
        "post_norms": True,
        "layer_input": 24,
        "moe_layers": (True, False),
    },
    "one of two groups": {
        "expert_groups": 2,
        "expert_groups_used": 1,
        "shared_expert": 40,
        "moe_layers": (True, False),
    },
    "two of three groups": {
        "expert_groups": 3,
        "expert_groups_used": 2,
        "experts_used": 3,
        "expert_scores": "sigmoid",
        "selection_bias": True,
    },
}

SOME = [BATCHES[name] for name in ("first token", "eight tokens", "unequal")]


def with_experts(**changes) -> ModelConfig:
    """A dense layer has as many weights as a token meets in one with experts, so that it gets as many threads
    alone as with that: attention that is cut elsewhere is rounded differently.
    """
    fields = {"experts": 6, "experts_used": 2, "expert_feed_forward": 40, "moe_layers": (True, True)}
    return config(**fields | {"feed_forward": 82, "normalize_experts": False} | changes)


@having
@pytest.mark.parametrize("layers", LAYERS)
def test_experts_are_the_composition_of_ops(layers, reached):
    for batch in SOME:
        compare(KernelBackend("cpp"), with_experts(**LAYERS[layers]), batch)


@having
@pytest.mark.parametrize("threads", (2, 3))
@pytest.mark.parametrize("layers", ("two of six", "behind a dense layer", "beside a shared one with a gate"))
def test_threads_share_experts(threads, layers, target, reached):
    c = with_experts(**{"width": 256, "feed_forward": 418, "expert_feed_forward": 208} | LAYERS[layers])
    with on_threads(target, reached, threads):
        for batch in SOME:
            compare(KernelBackend("cpp"), c, batch)


@having
@pytest.mark.parametrize(
    "formats", (["f16"], ["q8_0"], ["q4_0", "f32"], ["q4_k", "q6_k", "bf16"]), ids="-".join
)
def test_stored_experts(formats, reached):
    wide = max(FORMATS[name].values if name in FORMATS else 1 for name in formats)
    c = with_experts(width=max(wide, 96), expert_feed_forward=max(2 * wide, 40), heads=8, feed_forward=256)
    quantized = any(name in FORMATS for name in formats)
    for batch in (BATCHES["short"], BATCHES["unequal"]):
        compare(KernelBackend("cpp"), c, batch, formats, KernelBackend("cpp"), 3e-2 if quantized else 2e-5)


def run_both(router: np.ndarray, batch="unequal", **changes) -> list[np.ndarray]:
    """x after one layer with this router, by one call and composed."""
    c = with_experts(experts=len(router), **changes)
    layer = layer_of(c, 0)
    layer = dataclasses.replace(layer, weights={**layer.weights, "experts.router": router})
    x, angles, rows = batch_of(c, BATCHES[batch])
    expected = composed(PYTHON, x, angles, batch_of(c, BATCHES[batch])[2], [layer])
    FusedLayers(KernelBackend("cpp"), [layer]).run(x, angles, rows)
    return [x, expected]


@having
@pytest.mark.parametrize("used", (1, 2, 4, 5))
def test_of_experts_that_are_liked_alike_the_first_are_used(used, reached):
    router = np.zeros((5, 64), np.float32)
    agree(*run_both(router, experts_used=used), 2e-5)
    router[3] = 1
    agree(*run_both(router, experts_used=used, normalize_experts=True), 2e-5)


@having
def test_a_router_that_knows_nothing_uses_the_first(reached):
    """What is no number comes last, behind all that are."""
    router = np.full((5, 64), np.nan, np.float32)
    found, expected = run_both(router)
    assert np.isnan(found).all() and np.isnan(expected).all()
    for value in (np.inf, -np.inf, 1e30):
        router = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
        router[2] = value
        with np.errstate(all="ignore"):
            agree(*run_both(router, normalize_experts=True), 2e-5)


@having
@pytest.mark.parametrize("value", (np.nan, np.inf, 1e-25))
@pytest.mark.parametrize("name", ("q4_1", "f32"))
def test_a_row_that_is_not_finite_is_as_in_the_ops(value, name, reached):
    def spoil(x):
        x[1, 3 : 3 + (x.shape[1] if value == 1e-25 else 1)] = value

    c, cpp = with_experts(expert_feed_forward=64), KernelBackend("cpp")
    compare(cpp, c, BATCHES["unequal"], [name], cpp, 3e-2, spoil=spoil)


# ------------------------------------------------------------------------------------------------ whole steps


@having
@pytest.mark.parametrize("layers", ("two of six", "before a dense one", "post norms, gelu"))
def test_a_step_goes_through_experts(layers, reached):
    for batch in SOME:
        compare_steps(with_experts(**LAYERS[layers]), batch)


@having
@pytest.mark.parametrize("threads", (2, 3))
def test_threads_share_a_step(threads, target, reached):
    with on_threads(target, reached, threads):
        compare_shared_steps(
            with_experts(width=256, feed_forward=512, expert_feed_forward=208, moe_layers=(True, False))
        )


@having
def test_what_the_experts_of_all_processes_give_is_added_up(reached):
    compare_added_up_steps(with_experts(moe_layers=(True, False), normalize_experts=True))


@having
@pytest.mark.parametrize("name", ("mixtral", "qwen3_moe", "qwen3_moe_some"))
@pytest.mark.parametrize("budget", (None, pytest.param("1GB", marks=linux)))
def test_a_token_is_one_call_unless_experts_come_and_go(name, budget, reached):
    text = tiny_models.texts()[1]
    options = {"backend": "cpp", "cache_dtype": "f32", "context": 64, "max_memory": budget}
    with LayerWiseInferenceEngine(tiny_models.DATA / name, **options) as engine:
        cache = engine.new_cache()
        engine.forward(text[:-1], cache)
        before = reached.calls()
        logits = engine.forward(text[-1:], cache)
        assert (reached.calls() - before == 1) == (budget is None)
        wanted = tiny_models.reference(name)[1][-1]
        assert np.abs(logits - wanted).max() < 2e-4 * np.ptp(wanted)


# ------------------------------------------------------------------------------------------------ refusals


@having
def test_experts_that_come_and_go_are_left_to_the_composition(reached):
    mixed = [layer_of(with_experts(moe_layers=(False, True)), i) for i in range(2)]
    cpp = KernelBackend("cpp")
    assert "within a memory budget" in FusedLayers(cpp, mixed, whole=False).why_not
    assert not FusedLayers(cpp, mixed).why_not and not FusedLayers(cpp, mixed[:1], whole=False).why_not
    reached.silu(np.ones(1, np.float32))


@having
def test_experts_without_a_norm_before_them_run_op_by_op(reached):
    layer = layer_of(with_experts(pre_norms=False, post_norms=True), 0)
    assert "experts take their input from a norm" in FusedLayers(KernelBackend("cpp"), [layer]).why_not
    reached.silu(np.ones(1, np.float32))


def change_expert(layer: Layer, number: int, **parts) -> Layer:
    """A layer of whose experts one has other matrices."""
    assert layer.experts
    found = {n: layer.experts.look_up(n) for n in range(layer.config.experts)}
    found[number] = found[number] | parts
    return dataclasses.replace(layer, experts=Experts(None, layer.config, layer.index, _found=found))


@having
@pytest.mark.parametrize("part", ("gate", "up", "down"))
def test_an_expert_of_another_shape_is_refused(part, reached):
    layer = layer_of(with_experts(), 0)
    right = layer.experts.look_up(3)[part]
    for wrong in (right[:-1], np.zeros((), np.float32), Quantized(np.zeros((3, 34), np.uint8), "q8_0")):
        with pytest.raises((ValueError, TypeError), match=rf"DecoderLayer: experts\.3\.{part} has"):
            FusedLayers(KernelBackend("cpp"), [change_expert(layer, 3, **{part: wrong})])
    reached.silu(np.ones(1, np.float32))


@having
@pytest.mark.parametrize(
    ("change", "message"),
    (
        ({"experts_used": 0}, "experts_used has value 0, expected 1 to 6"),
        ({"experts_used": 7}, "experts_used has value 7, expected 1 to 6"),
        ({"experts": [(np.zeros((40, 64), np.float32),) * 2] * 6}, "incompatible constructor arguments"),
    ),
)
def test_wrong_experts_are_refused(change, message, reached):
    c = with_experts()
    layer = layer_of(c, 0)
    each = [tuple(layer.experts.look_up(n)[part] for part in ("gate", "up", "down")) for n in range(6)]
    numbers = {
        name: getattr(c, name) for name in ("heads", "kv_heads", "head_dim", "norm_eps", "attention_scale")
    }
    with pytest.raises((ValueError, TypeError), match=message):
        reached.DecoderLayer(layer.weights, **numbers, **{"experts": each, "experts_used": 2} | change)
    with pytest.raises(NotImplementedError, match=r"weights lack 'experts\.router'"):
        reached.DecoderLayer(layer_of(config(), 0).weights, **numbers, experts=each, experts_used=2)
    reached.silu(np.ones(1, np.float32))
