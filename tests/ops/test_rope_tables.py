"""Tables of rotary angles, against the paper's formula and, where it is installed, against transformers."""

import math

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.ops.rope_scaling import frequencies

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": LLAMA3 | {"original_max_position_embeddings": 8192},
    "yarn": YARN,
    "yarn as DeepSeek has it": YARN
    | {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False},
    "yarn with a factor of its own": YARN | {"attention_factor": 1.5, "beta_fast": 16, "beta_slow": 2},
}


def test_a_table_is_the_papers_formula():
    positions = np.array([[0, 1], [7, 100_000]])
    cos, sin = tensor_ops.rope_table(positions, 6, theta=500.0)
    assert cos.shape == sin.shape == (2, 2, 3) and cos.dtype == sin.dtype == np.float32
    for place in np.ndindex(2, 2):
        for pair in range(3):
            angle = float(positions[place]) * 500.0 ** (-2 * pair / 6)
            assert math.isclose(cos[(*place, pair)], math.cos(angle), abs_tol=1e-7)
            assert math.isclose(sin[(*place, pair)], math.sin(angle), abs_tol=1e-7)


@pytest.mark.parametrize("interleaved", (False, True))
def test_turning_is_a_product_of_complex_numbers(interleaved):
    x = np.random.default_rng(0).standard_normal((3, 5, 8), np.float32)
    cos, sin = tensor_ops.rope_table(np.arange(5), 8)
    turned = tensor_ops.apply_rope(x, cos, sin, interleaved=interleaved)
    pairs = (slice(0, 8, 2), slice(1, 8, 2)) if interleaved else (slice(4), slice(4, 8))
    expected = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * (cos + 1j * sin)
    np.testing.assert_allclose(turned[..., pairs[0]], expected.real, atol=1e-6)
    np.testing.assert_allclose(turned[..., pairs[1]], expected.imag, atol=1e-6)


@pytest.mark.parametrize("scaling", SCALINGS.values(), ids=SCALINGS)
@pytest.mark.parametrize("theta, dim", ((10_000.0, 64), (500_000.0, 128)))
def test_scalings_are_those_of_transformers(scaling, theta, dim):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    functions = pytest.importorskip("transformers.modeling_rope_utils").ROPE_INIT_FUNCTIONS
    config = transformers.LlamaConfig(
        hidden_size=4 * dim,
        num_attention_heads=4,
        max_position_embeddings=16384,
        rope_parameters={**scaling, "rope_theta": theta},
    )
    expected, expected_factor = functions[scaling["rope_type"]](config, "cpu")
    found, factor = frequencies(dim, theta, scaling)
    np.testing.assert_allclose(found, expected.numpy(), rtol=5e-6)
    assert math.isclose(factor, expected_factor)


def test_llama3_keeps_short_waves_and_stretches_long_ones():
    plain, _ = frequencies(128, 500_000.0, None)
    found, _ = frequencies(128, 500_000.0, SCALINGS["llama3"])
    waves = 2 * math.pi / plain
    np.testing.assert_array_equal(found[waves < 8192 / 4], plain[waves < 8192 / 4])
    np.testing.assert_allclose(found[waves > 8192], plain[waves > 8192] / 8)


def test_a_factor_is_on_both_tables():
    cos, sin = tensor_ops.rope_table(0, 4, scaling=YARN | {"attention_factor": 1.5})
    assert cos.tolist() == [1.5, 1.5] and sin.tolist() == [0, 0]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"dim": 7}, "rope_table: dim has value 7, expected an even number from 2"),
        (
            {"scaling": {"rope_type": "spiral"}},
            "rope_table: scaling has rope_type 'spiral', expected default, linear",
        ),
        (
            {"scaling": {"rope_type": "linear"}},
            "rope_table: scaling of rope_type 'linear' has no key 'factor'",
        ),
    ],
)
def test_what_is_wrong_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        tensor_ops.rope_table([0, 1], **{"dim": 8} | arguments)
