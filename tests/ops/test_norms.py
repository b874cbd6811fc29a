"""Corner cases of the norms: results in place, large and long rows, rows far from zero, NaN."""

import numpy as np
import pytest
from accuracy import assert_agrees
from targets_with import LENGTHS, normal, of_dtype, on, wide


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
