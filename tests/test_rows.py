"""Corner cases of the element and row ops: masks, scales, rotary widths, broadcasting, results in place.

The truths are written out here in float64; that each op agrees with its declaration is test_ops.py's part.
"""

import inspect
import math

import ml_dtypes
import numpy as np
import pytest
from conftest import DTYPES, assert_agrees, targets

LENGTHS = (1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 257, 4099, 8192, 9001)
NAMES = {dtype: np.dtype(dtype).name for dtype in DTYPES}


def has(target, op, *parameters):
    """Whether a target has a kernel for an op, with these parameters."""
    function = getattr(target.module, op, None)
    return function and {*parameters} <= {*inspect.signature(function).parameters}


def on(*ops, parameters=(), but=""):
    """Every target that has these ops, but those of a backend that is known to fall short."""
    able = [target for target in targets() if all(has(target, op, *parameters) for op in ops)]
    found = [target for target in able if target.backend != but]
    return pytest.mark.parametrize("target", found, ids=str)


of_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


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


def softmax(x):
    top = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


def rotated(x, cos, sin, interleaved):
    r = cos.shape[-1]
    pairs = (slice(0, 2 * r, 2), slice(1, 2 * r, 2)) if interleaved else (slice(0, r), slice(r, 2 * r))
    a, b = (x[..., each] for each in pairs)
    result = x.copy()
    result[..., pairs[0]] = a * cos - b * sin
    result[..., pairs[1]] = b * cos + a * sin
    return result


# ------------------------------------------------------------------------------------------------ elements


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


# ------------------------------------------------------------------------------------------------ norms


def rms_norm(x, weight, eps):
    return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * weight


@on("add_rms_norm")
@of_dtype
@pytest.mark.parametrize("weight_dtype", ("own", "float32"))
@pytest.mark.parametrize("length", LENGTHS)
def test_add_rms_norm(target, dtype, weight_dtype, length, reached):
    x, residual = normal((3, length), dtype, 1), normal((3, length), dtype, 2)
    weight = normal(length, dtype if weight_dtype == "own" else np.float32, 3)
    total = (x.astype(np.float32) + residual.astype(np.float32)).astype(dtype)
    exact = rms_norm(*wide(total, weight), 1e-6)
    result = reached.add_rms_norm(x, residual, weight)
    assert isinstance(result, tuple) and len(result) == 2
    np.testing.assert_array_equal(result[0], total)
    assert_agrees(result[1], exact, dtype)
    for places in ((0, None), (1, None), (None, 0), (None, 1), (0, 1), (1, 0)):
        arrays = [x.copy(), residual.copy()]
        out = tuple(np.empty_like(x) if place is None else arrays[place] for place in places)
        given = reached.add_rms_norm(*arrays, weight, out=out)
        assert given is out
        np.testing.assert_array_equal(out[0], total)
        assert_agrees(out[1], exact, dtype)


@on("add_rms_norm")
@of_dtype
@pytest.mark.parametrize("length", (4095, 4096, 8193))
@pytest.mark.parametrize("in_place", (False, True))
def test_large_add_rms_norm(target, dtype, length, in_place, reached):
    x, residual = normal((2100, length), dtype, 1), normal((2100, length), dtype, 2)
    weight = normal(length, dtype, 3)
    some = [0, 1, 1049, 1050, 2099]
    total = (x[some].astype(np.float32) + residual[some].astype(np.float32)).astype(dtype)
    out = (residual, x) if in_place else None
    added, normed = reached.add_rms_norm(x, residual, weight, 0.5, out=out)
    np.testing.assert_array_equal(added[some], total)
    assert_agrees(normed[some], rms_norm(*wide(total, weight), 0.5), dtype)


@on("add_rms_norm")
def test_add_rms_norm_refuses_results_that_share_memory(target):
    op, x, residual = target.module.add_rms_norm, np.ones((2, 8), np.float32), np.ones((2, 8), np.float32)
    weight = np.ones(8, np.float32)
    shared = np.ones((3, 8), np.float32)
    with pytest.raises(ValueError, match=r"out\[1\] overlaps out\[0\], expected memory of its own"):
        op(x, residual, weight, out=(shared[:2], shared[1:]))
    with pytest.raises(ValueError, match=r"out\[0\] overlaps x, expected memory of its own or exactly x"):
        op(shared[:2], residual, weight, out=(shared[1:], np.ones((2, 8), np.float32)))
    with pytest.raises(TypeError, match=r"out has 1 arrays, expected a tuple of 2 arrays"):
        op(x, residual, weight, out=(shared[:2],))
    with pytest.raises(TypeError, match=r"out has type ndarray, expected a tuple of 2 arrays"):
        op(x, residual, weight, out=shared[:2])


def layer_norm(x, weight, bias, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt(np.mean(centred**2, -1, keepdims=True) + eps) * weight + bias


@on("layer_norm")
@of_dtype
@pytest.mark.parametrize("weight_dtype", ("own", "float32"))
@pytest.mark.parametrize("bias_dtype", ("none", "own", "float32"))
@pytest.mark.parametrize("length", LENGTHS)
def test_layer_norm(target, dtype, weight_dtype, bias_dtype, length, reached):
    dtypes = {"own": dtype, "float32": np.float32}
    x, weight = normal((3, length), dtype, 1), normal(length, dtypes[weight_dtype], 2)
    bias = None if bias_dtype == "none" else normal(length, dtypes[bias_dtype], 3)
    exact = layer_norm(*wide(x, weight), 0.0 if bias is None else bias.astype(np.float64), 1e-5)
    assert_agrees(reached.layer_norm(x, weight, bias), exact, dtype)
    assert reached.layer_norm(x, weight, bias=bias, eps=1e-5, out=x) is x
    assert_agrees(x, exact, dtype)


@on("layer_norm")
@pytest.mark.parametrize("constant", (0.1, -1234.567, 3e4, 1e-30, 1e30))
@pytest.mark.parametrize("length", LENGTHS)
def test_a_constant_row_has_no_variance(target, constant, length, reached):
    bias = normal(length, np.float32)
    x = np.full((2, length), constant, np.float32)
    np.testing.assert_array_equal(reached.layer_norm(x, np.ones(length, np.float32), bias)[1], bias)
    assert not reached.layer_norm(x, np.ones(length, np.float32)).any()


@on("layer_norm")
@pytest.mark.parametrize("offset", (-3e3, 1e5))
def test_layer_norm_of_rows_far_from_zero(target, offset, reached):
    """A variance that is a difference of squares, or a mean rounded once, has no digits left here."""
    x = normal((3, 1000), np.float32) + np.float32(offset)
    x[1, 0] = 1e6  # nor may the first value be taken for the mean
    exact = layer_norm(x.astype(np.float64), 1.0, 0.0, 1e-5)
    assert_agrees(reached.layer_norm(x, np.ones(1000, np.float32)), exact, np.float32)


@on("layer_norm", "add_rms_norm", but="opencl")  # 1.6e-5: a work-item adds its share of a row one by one
@of_dtype
def test_norms_of_very_long_rows_keep_their_digits(target, dtype, reached):
    x, ones = np.full((1, 1 << 20), 0.1).astype(dtype), np.ones(1 << 20, dtype)
    x[0, ::2] = 0.3
    assert_agrees(reached.layer_norm(x, ones), layer_norm(x.astype(np.float64), 1.0, 0.0, 1e-5), dtype)
    normed = reached.add_rms_norm(x, np.zeros_like(x), ones)[1]
    assert_agrees(normed, rms_norm(x.astype(np.float64), 1.0, 1e-6), dtype)


@on("layer_norm", "add_rms_norm")
@pytest.mark.parametrize("bits", (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00001, 0x7F800001), ids=hex)
@pytest.mark.parametrize("length", (1, 16, 37, 9001))
def test_norms_keep_nan_in_its_row(target, bits, length, reached):
    x, ones = np.zeros((2, length), np.float32), np.ones(length, np.float32)
    x[1, length // 2] = np.uint32(bits).view(np.float32)
    for result in (reached.layer_norm(x, ones, ones), reached.add_rms_norm(x, x, ones)[1]):
        assert np.isnan(result[1]).all() and not np.isnan(result[0]).any()


# ------------------------------------------------------------------------------------------------ softmax


@on("softmax", parameters=("mask",))
@of_dtype
@pytest.mark.parametrize("scale", (0.125, 3.0, -0.5, 0.0))
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_scales(target, dtype, scale, length, reached):
    x = normal((3, length), dtype)
    assert_agrees(reached.softmax(x, scale), softmax(x.astype(np.float64) * scale), dtype)


MASKS = {**{f"{NAMES[d]} mask": d for d in DTYPES}, "bool mask": np.bool_}


def mask_of(shape, dtype):
    rng = np.random.default_rng(5)
    kept = rng.random(shape) < 0.6
    if dtype == np.bool_:
        return kept, np.where(kept, 0.0, -np.inf)
    mask = np.where(kept, rng.standard_normal(shape), -np.inf).astype(dtype)
    return mask, mask.astype(np.float64)


@on("softmax", parameters=("mask",))
@of_dtype
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_masks(target, dtype, kind, length, reached):
    x = normal((2, 3, length), dtype)
    mask, added = mask_of((3, length), MASKS[kind])
    exact = softmax(x.astype(np.float64) * 0.3 + added)
    result = reached.softmax(x, 0.3, mask)
    assert_agrees(result, exact, dtype)
    assert not result[np.broadcast_to(added == -np.inf, x.shape)].any()
    assert reached.softmax(x, scale=0.3, mask=mask, out=x) is x
    assert_agrees(x, exact, dtype)


@on("softmax", parameters=("mask",))
@pytest.mark.parametrize(
    "leading",
    [(), (1,), (5,), (1, 1), (4, 1), (3, 1, 1), (3, 1, 5), (2, 1, 4, 1), (2, 3, 4, 5), (1, 3, 1, 5)],
)
@pytest.mark.parametrize("kind", ("float32 mask", "bool mask"))
def test_masks_broadcast_over_leading_axes(target, kind, leading, reached):
    x = normal((2, 3, 4, 5, 7), np.float32)
    mask, added = mask_of((*leading, 7), MASKS[kind])
    assert_agrees(reached.softmax(x, mask=mask), softmax(x.astype(np.float64) + added), np.float32)


@on("softmax", parameters=("mask",))
def test_masks_broadcast_over_rows_shared_among_threads(target, reached):
    x = normal((6, 50, 600), np.float32)
    for leading in ((50,), (6, 1), (1, 1), (6, 50)):
        mask, added = mask_of((*leading, 600), np.bool_)
        assert_agrees(reached.softmax(x, mask=mask), softmax(x.astype(np.float64) + added), np.float32)


@on("softmax", parameters=("mask",))
def test_rows_without_a_kept_element_are_zero(target, reached):
    x = normal((3, 40), np.float32)
    keep = np.ones((3, 40), bool)
    keep[1] = False
    assert not reached.softmax(x, mask=keep)[1].any()
    added = np.where(keep, 0, -np.inf).astype(np.float32)
    result = reached.softmax(x, mask=added)
    assert not result[1].any() and np.allclose(result[[0, 2]].sum(-1), 1)


@on("softmax", parameters=("mask",))
def test_what_a_bool_mask_leaves_out_does_not_matter(target, reached):
    x = normal((2, 40), np.float32)
    keep = np.arange(40) < 33
    expected = reached.softmax(np.ascontiguousarray(x[:, keep]))
    for hidden in (np.nan, np.inf, 3e38):
        x[:, ~keep] = hidden
        result = reached.softmax(x, mask=keep)
        assert not result[:, ~keep].any()
        np.testing.assert_allclose(result[:, keep], expected, rtol=1e-6)


@on("softmax", parameters=("mask",))
@pytest.mark.parametrize("kind", MASKS)
def test_nan_among_masked_rows(target, kind, reached):
    x = normal((2, 9001), np.float32)
    x[1, 8999] = np.nan
    mask = np.ones(9001, MASKS[kind])
    result = reached.softmax(x, mask=mask)
    assert np.isnan(result[1]).all() and not np.isnan(result[0]).any()


# ------------------------------------------------------------------------------------------------ rotary


def angles(shape, dtype, seed=0):
    turns = np.random.default_rng(seed).uniform(0, 2 * np.pi, shape)
    return np.cos(turns).astype(dtype), np.sin(turns).astype(dtype)


@on("apply_rope")
@of_dtype
@pytest.mark.parametrize("interleaved", (False, True), ids=("halves", "neighbours"))
@pytest.mark.parametrize(("d", "r"), [(2, 1), (3, 1), (8, 4), (9, 3), (16, 8), (17, 8), (30, 15), (32, 16)])
def test_small_rotary_widths(target, dtype, d, r, interleaved, reached):
    check_rope(reached, dtype, (2, 3, 5, d), (5, r), interleaved)


@on("apply_rope")
@of_dtype
@pytest.mark.parametrize("interleaved", (False, True), ids=("halves", "neighbours"))
@pytest.mark.parametrize(
    ("d", "r"), [(64, 32), (66, 33), (80, 16), (96, 17), (128, 64), (256, 47), (1000, 500)]
)
def test_rotary_widths(target, dtype, d, r, interleaved, reached):
    check_rope(reached, dtype, (2, 3, 5, d), (5, r), interleaved)


def check_rope(module, dtype, shape, table, interleaved, table_dtype=np.float32):
    x, (cos, sin) = normal(shape, dtype), angles(table, table_dtype)
    exact = rotated(*wide(x, cos, sin), interleaved)
    memory = np.full(x.size + 64, 7.5, dtype)
    out = memory[32:-32].reshape(shape)
    assert module.apply_rope(x, cos, sin, interleaved, out=out) is out
    assert_agrees(out, exact, dtype)
    assert (memory[:32] == 7.5).all() and (memory[-32:] == 7.5).all()
    copied = slice(2 * cos.shape[-1], None)
    np.testing.assert_array_equal(out[..., copied], x[..., copied])
    assert module.apply_rope(x, cos, sin, interleaved=interleaved, out=x) is x
    assert_agrees(x, exact, dtype)


@on("apply_rope")
@of_dtype
@pytest.mark.parametrize("interleaved", (False, True), ids=("halves", "neighbours"))
@pytest.mark.parametrize("table_dtype", DTYPES, ids=NAMES.get)
def test_tables_have_a_dtype_of_their_own(target, dtype, table_dtype, interleaved, reached):
    check_rope(reached, dtype, (3, 5, 80), (5, 40), interleaved, table_dtype)
    check_rope(reached, dtype, (3, 5, 20), (5, 10), interleaved, table_dtype)


@on("apply_rope")
@pytest.mark.parametrize(
    "leading", [(), (1,), (5,), (1, 5), (3, 1), (2, 1, 5), (2, 1, 1), (2, 3, 5), (1, 1, 1)]
)
def test_tables_broadcast_over_leading_axes(target, leading, reached):
    check_rope(reached, np.float32, (2, 3, 5, 64), (*leading, 32), False)


@on("apply_rope")
@pytest.mark.parametrize("shape", [(32, 1, 128), (9, 300, 64), (2, 40, 33, 96)])
def test_tables_broadcast_over_rows_shared_among_threads(target, shape, reached):
    check_rope(reached, np.float32, shape, (shape[-2], shape[-1] // 2), False)


@on("apply_rope")
def test_one_row_has_no_leading_axes(target, reached):
    check_rope(reached, np.float32, (64,), (32,), False)


@on("apply_rope")
def test_nothing_to_turn_is_a_copy(target, reached):
    x, empty = normal((3, 10), np.float32), np.empty((3, 0), np.float32)
    np.testing.assert_array_equal(reached.apply_rope(x, empty, empty), x)


@on("apply_rope")
def test_rope_says_what_is_wrong_with_its_tables(target):
    rope, x = target.module.apply_rope, np.ones((2, 3, 8), np.float32)
    table = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"^apply_rope: cos has shape \(3, 5\), expected \(\.\.\. r\)"):
        rope(x, np.ones((3, 5), np.float32), np.ones((3, 5), np.float32))
    with pytest.raises(ValueError, match=r"^apply_rope: sin has shape \(3, 3\), expected .* with r=4"):
        rope(x, table, table[:, :3].copy())
    with pytest.raises(ValueError, match=r"^apply_rope: cos has shape \(4, 4\), expected \(\.\.\. r\)"):
        rope(x, np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    with pytest.raises(TypeError, match=r"^apply_rope: interleaved has type int, expected a bool"):
        rope(x, table, table, 1)


# ------------------------------------------------------------------------------------------------ views


@on("apply_rope", "softmax", but="opencl")
def test_masks_and_tables_are_read_from_views(target, reached):
    """A cache is allocated once, for the longest sequence; ops get slices of it."""
    if target.backend != "cpp":
        pytest.skip("other backends make copies of views in Python")
    cos, sin = angles((100, 2, 32), np.float32)
    x = normal((4, 7, 64), np.float32)
    part = (slice(90, 83, -1), 1, slice(0, 32))
    exact = rotated(*wide(x, cos[part], sin[part]), False)
    assert_agrees(reached.apply_rope(x, cos[part], sin[part]), exact, np.float32)
    mask, added = mask_of((50, 100), np.bool_)
    exact = softmax(x.astype(np.float64) + added[3:17:2, 5:69])
    assert_agrees(reached.softmax(x, mask=mask[3:17:2, 5:69]), exact, np.float32)
    with pytest.raises(ValueError, match=r"^softmax: mask has strides .*, expected the last axis contiguous"):
        reached.softmax(x, mask=mask[:7, 5 : 5 + 128 : 2][:, :64].T)
