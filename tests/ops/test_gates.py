"""The exact form of gelu, and gates: swiglu and geglu."""

import math

import ml_dtypes
import numpy as np
import pytest
from accuracy import assert_agrees
from targets_with import LENGTHS, normal, of_dtype, on, wide


def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x, approximate):
    if approximate == "none":
        return x * np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)), otypes=[float])(x)
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


GATES = {
    "swiglu": (lambda gate: silu(gate), {}),
    "geglu": (lambda gate: gelu(gate, "tanh"), {}),
    "geglu, none": (lambda gate: gelu(gate, "none"), {"approximate": "none"}),
}


@on("gelu", parameters=("approximate",))
def test_gelu_keeps_its_digits_in_the_tail(target, reached):
    """0.5 (1 + erf) is a difference of nearly equal numbers there."""
    x = np.linspace(-13, 9, 100_001, dtype=np.float32)
    exact = gelu(x.astype(np.float64), "none")
    result = reached.gelu(x, approximate="none").astype(np.float64)
    kept = np.abs(exact) > 2.0**-118
    assert np.max(np.abs(result - exact)[kept] / np.abs(exact)[kept]) < 1e-5
    assert np.abs(result - exact)[~kept].max(initial=0) < 2.0**-118


@on("gelu", parameters=("approximate",))
@of_dtype
def test_exact_gelu_of_every_value(target, dtype, reached):
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(dtype) if dtype != np.float32 else bits.view(ml_dtypes.bfloat16).astype(np.float32)
    with np.errstate(all="ignore"):
        exact = gelu(x.astype(np.float64), "none")
        result = reached.gelu(x, "none").astype(np.float64)
    np.testing.assert_array_equal(np.isnan(result), np.isnan(exact))
    finite = np.isfinite(exact) & (np.abs(exact) < float(ml_dtypes.finfo(dtype).max))
    tolerance = max(1e-5, 0.51 * float(ml_dtypes.finfo(dtype).eps))
    smallest = max(2.0**-118, float(ml_dtypes.finfo(dtype).smallest_subnormal))
    assert np.all(np.abs(result - exact)[finite] <= tolerance * np.abs(exact)[finite] + smallest)
    np.testing.assert_array_equal(result[np.isposinf(exact)], np.inf)


@on("gelu", parameters=("approximate",))
def test_gelu_takes_its_form_by_name_and_place(target, reached):
    x = normal(100, np.float32)
    default = reached.gelu(x)
    assert (reached.gelu(x, "tanh") == default).all() and (reached.gelu(x, "none") != default).any()
    with pytest.raises(ValueError, match=r"^gelu: approximate has value 'fast', expected 'tanh' or 'none'"):
        reached.gelu(x, approximate="fast")
    with pytest.raises(TypeError, match=r"^gelu: approximate has type int, expected a str"):
        reached.gelu(x, 1)


@on("swiglu", "geglu")
@of_dtype
@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("length", LENGTHS)
def test_gates(target, dtype, name, length, reached):
    gate, up = normal((2, length), dtype, 1), normal((2, length), dtype, 2)
    activation, parameters = GATES[name]
    function = getattr(reached, name.split(",")[0])
    exact = activation(gate.astype(np.float64)) * up.astype(np.float64)
    assert_agrees(function(gate, up, **parameters), exact, dtype)
    for place in (0, 1):
        arrays = [gate.copy(), up.copy()]
        assert function(*arrays, **parameters, out=arrays[place]) is arrays[place]
        assert_agrees(arrays[place], exact, dtype)
        np.testing.assert_array_equal(arrays[1 - place], (gate, up)[1 - place])


@on("swiglu")
def test_one_array_may_be_gate_and_up_and_out(target, reached):
    x = normal((3, 37), np.float32)
    exact = silu(x.astype(np.float64)) * x.astype(np.float64)
    assert_agrees(reached.swiglu(x, x, out=x), exact, np.float32)


@on("swiglu")
@of_dtype
def test_large_gates(target, dtype, reached):
    """Written around the caches, by several threads, to an address that is unaligned to what that needs."""
    memory = np.zeros(3 * 3_000_001, dtype)
    gate, up = normal((3, 3_000_000), dtype, 1), normal((3, 3_000_000), dtype, 2)
    out = memory[1 : 1 + gate.size].reshape(gate.shape)
    reached.swiglu(gate, up, out=out)
    for part in (slice(0, 100), slice(1_499_900, 1_500_100), slice(2_999_900, None)):
        g, u = wide(gate[:, part], up[:, part])
        assert_agrees(out[:, part], silu(g) * u, dtype)
    assert memory[0] == 0 and (memory[1 + gate.size :] == 0).all()
