"""What the ops on elements and rows take beside one array: parameters, masks, angles, several results."""

import numpy as np
import pytest
from arrays import DLPackArray, InterfaceArray, imported
from machine import DTYPES, W, X, assert_agrees, clean_machine, message, rng  # noqa: F401

import tensor_ops_cuda as cuda
from airllm.tensor_ops import OPS

LENGTHS = (1, 7, 8, 31, 260, 2100)
BATCHED = rng.standard_normal((2, 3, 4, 40)).astype(np.float32)


def on_both(name, *args, **kwargs):
    """The op on NumPy arrays and on the same on the device must agree with the definition, bit by bit."""
    function, op = getattr(cuda, name), OPS[name]
    host = function(*args, **kwargs)
    assert_agrees(host, op, *args, **kwargs)
    moved = [cuda.to_device(a) for a in args]
    named = {n: cuda.to_device(a) if isinstance(a, np.ndarray) else a for n, a in kwargs.items()}
    copies = cuda.copies()
    result = function(*moved, **named)
    assert cuda.copies() == copies
    assert result.numpy().tobytes() == host.tobytes()


@pytest.mark.parametrize("form", ("tanh", "none"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_forms_of_gelu(dtype, form):
    gate, up = (np.linspace(-9, 9, 4001, dtype=np.float32).astype(dtype)[::s].copy() for s in (1, -1))
    on_both("gelu", gate, approximate=form)
    on_both("geglu", gate, up, approximate=form)
    assert cuda.gelu(X, form).tobytes() == cuda.gelu(X, approximate=form).tobytes()


def test_messages_about_parameters():
    assert message(ValueError, cuda.gelu, X, "exact") == (
        "gelu: approximate has value 'exact', expected 'tanh' or 'none'"
    )
    assert message(TypeError, cuda.geglu, X, X, approximate=1) == (
        "geglu: approximate has type int, expected a str"
    )
    assert message(TypeError, cuda.apply_rope, X, W, W, interleaved=1) == (
        "apply_rope: interleaved has type int, expected a bool"
    )
    assert message(ValueError, cuda.swiglu, X, X[:2].copy()) == (
        "swiglu: up has shape (2, 40), expected (...) with ...=(3, 40)"
    )
    assert message(TypeError, cuda.swiglu, X, X.astype(np.float16)) == (
        "swiglu: up has dtype float16, expected float32"
    )


@pytest.mark.parametrize("which", (0, 1))
def test_gated_in_place_of_either(which):
    arrays = [X.copy(), X[::-1].copy()]
    exact = OPS["swiglu"].exact(*arrays)
    assert cuda.swiglu(*arrays, out=arrays[which]) is arrays[which]
    np.testing.assert_allclose(arrays[which], exact, rtol=1e-5)
    arrays = [cuda.to_device(X), cuda.to_device(X[::-1].copy())]
    assert cuda.swiglu(*arrays, out=arrays[which]) is arrays[which]
    np.testing.assert_allclose(arrays[which].numpy(), exact, rtol=1e-5)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_layer_norm(dtype, length):
    x, weight, bias = (rng.standard_normal(shape).astype(dtype) for shape in ((3, length), length, length))
    on_both("layer_norm", x, weight)
    on_both("layer_norm", x, weight, bias=bias, eps=0.1)
    on_both("layer_norm", x, weight.astype(np.float32), bias=bias.astype(np.float32))
    assert_agrees(cuda.layer_norm(x, weight, None, 0.1), OPS["layer_norm"], x, weight, None, 0.1)


def test_layer_norm_of_a_constant_row_is_its_bias():
    x = np.full((2, 1001), 0.1, np.float32)
    assert cuda.layer_norm(x, x[0], x[0]).tolist() == x.tolist()


@pytest.mark.parametrize("where", ("new", "in place", "swapped", "one of them"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm(dtype, where):
    x, residual = (rng.standard_normal((3, 77)).astype(dtype) for _ in range(2))
    weight = rng.standard_normal(77).astype(dtype)
    exact_sum = (x.astype(np.float32) + residual.astype(np.float32)).astype(dtype)
    exact = OPS["rms_norm"].exact(exact_sum, weight, eps=0.01)
    for move in (np.copy, cuda.to_device):
        a, b, w = move(x), move(residual), move(weight)
        outs = {"new": None, "in place": (a, b), "swapped": [b, a], "one of them": (move(x), a)}[where]
        found = cuda.add_rms_norm(a, b, w, 0.01, out=outs)
        assert found is outs or (outs is None and isinstance(found, tuple) and len(found) == 2)
        total, normed = (f if isinstance(f, np.ndarray) else f.numpy() for f in found)
        assert total.tobytes() == exact_sum.tobytes()
        error = np.abs(normed.astype(np.float64) - exact).max()
        assert normed.dtype == dtype and error < {"float32": 1e-5}.get(np.dtype(dtype).name, 2e-2)


def test_messages_about_several_results():
    y, z = X.copy(), X.copy()
    assert message(TypeError, cuda.add_rms_norm, X, X, W, out=y) == (
        "add_rms_norm: out has type ndarray, expected a tuple of 2 arrays"
    )
    assert message(TypeError, cuda.add_rms_norm, X, X, W, out=(y,)) == (
        "add_rms_norm: out has 1 arrays, expected a tuple of 2 arrays"
    )
    assert message(ValueError, cuda.add_rms_norm, X, X, W, out=(y, z[:2])) == (
        "add_rms_norm: out[1] has shape (2, 40), expected (3, 40)"
    )
    assert message(ValueError, cuda.add_rms_norm, X, X, W, out=(y, y)) == (
        "add_rms_norm: out[1] overlaps out[0], expected memory of its own"
    )
    w = z[0]
    assert message(ValueError, cuda.add_rms_norm, X, y, w, out=(z, y)).startswith(
        "add_rms_norm: out[0] overlaps weight, expected memory of its own"
    )
    on_device = cuda.to_device(X)
    assert message(TypeError, cuda.add_rms_norm, X, X, W, out=(y, on_device)) == (
        "add_rms_norm: out[1] has device cuda:0, expected host memory"
    )


# ---- masks


@pytest.mark.parametrize("shape", [(40,), (1, 40), (4, 40), (3, 1, 40), (2, 1, 4, 40), (2, 3, 4, 40)])
@pytest.mark.parametrize("kind", ("bool", *(np.dtype(d).name for d in DTYPES)))
def test_masked_softmax(kind, shape):
    x = BATCHED
    mask = rng.random(shape) < 0.7 if kind == "bool" else rng.standard_normal(shape)
    mask = mask.astype({np.dtype(d).name: d for d in DTYPES}.get(kind, np.bool_))
    on_both("softmax", x, scale=0.3, mask=mask)
    in_place = x.copy()
    assert cuda.softmax(in_place, 0.3, mask, out=in_place) is in_place
    assert_agrees(in_place, OPS["softmax"], x, 0.3, mask)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_softmax_of_every_length(dtype, length):
    x = rng.standard_normal((2, length)).astype(dtype)
    on_both("softmax", x, scale=-2.0)
    on_both("softmax", x, mask=np.arange(length) % 3 == 0)


def test_a_fully_masked_row_is_zero():
    mask = np.array([[False] * 40, [True] * 40, [False] * 39 + [True]])
    found = cuda.softmax(X, mask=mask)
    assert found[0].tolist() == [0] * 40 and found[2].tolist() == [0] * 39 + [1]
    assert cuda.softmax(X, mask=np.full(40, -np.inf, np.float16)).tolist() == [[0] * 40] * 3


def test_strided_masks():
    mask = rng.random((8, 90)) < 0.5
    assert_agrees(cuda.softmax(X, mask=mask[::3, 7:47]), OPS["softmax"], X, mask=mask[::3, 7:47])
    array = InterfaceArray(mask)
    array.shape, array.strides = (3, 40), (270, 1)
    found = cuda.softmax(cuda.to_device(X), mask=array)
    assert_agrees(found.numpy(), OPS["softmax"], X, mask=mask[::3, :40])


def test_messages_about_masks():
    assert message(TypeError, cuda.softmax, X, mask=np.ones(40, np.int32)).startswith(
        "softmax: mask has dtype int32, expected bool, float32, float16 or bfloat16"
    )
    assert message(ValueError, cuda.softmax, X, mask=np.ones((2, 40), bool)) == (
        "softmax: mask has shape (2, 40), expected (... d) with d=40, ...=(3,)"
    )
    assert message(ValueError, cuda.softmax, X, mask=np.ones(1, bool)) == (
        "softmax: mask has shape (1,), expected (... d) with d=40"
    )
    assert message(TypeError, cuda.softmax, cuda.to_device(X), mask=np.ones(40, bool)) == (
        "softmax: mask has host memory, expected device cuda:0 (pass tensor_ops_cuda.to_device(mask))"
    )
    many = np.ones((2, 2, 2, 2, 2, 2, 2, 2, 2, 40), np.float32)
    assert "broadcast along" in message(
        NotImplementedError, cuda.softmax, many, mask=np.ones((2, 1) * 4 + (2, 40), bool)
    )


def test_masks_of_other_libraries():
    mask = rng.random((3, 40)) < 0.5
    torch = imported("torch", 1)
    for array in (DLPackArray(mask), InterfaceArray(mask), torch.Tensor(mask)):
        found = cuda.softmax(cuda.to_device(X), mask=array)
        assert_agrees(found.numpy(), OPS["softmax"], X, mask=mask)
    found = cuda.softmax(torch.Tensor(X), mask=cuda.to_device(mask))
    assert_agrees(found.values(), OPS["softmax"], X, mask=mask)


# ---- angles


@pytest.mark.parametrize("shape", [(12,), (4, 12), (1, 1, 4, 12), (2, 1, 4, 12), (3, 1, 12), (2, 3, 4, 12)])
@pytest.mark.parametrize("interleaved", (False, True))
@pytest.mark.parametrize("dtype", DTYPES)
def test_apply_rope(dtype, interleaved, shape):
    x, angles = BATCHED.astype(dtype), rng.standard_normal(shape)
    for kind in (np.float32, dtype):
        cos, sin = np.cos(angles).astype(kind), np.sin(angles).astype(kind)
        on_both("apply_rope", x, cos, sin, interleaved=interleaved)
    in_place = x.copy()
    assert cuda.apply_rope(in_place, cos, sin, interleaved, out=in_place) is in_place
    assert_agrees(in_place, OPS["apply_rope"], x, cos, sin, interleaved)


@pytest.mark.parametrize("d, r", [(1, 0), (2, 1), (3, 1), (64, 32), (65, 32), (600, 300), (600, 1)])
def test_apply_rope_of_every_length(d, r):
    x, angles = rng.standard_normal((3, 5, d)).astype(np.float32), rng.standard_normal((5, r))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    for interleaved in (False, True):
        on_both("apply_rope", x, cos, sin, interleaved=interleaved)


def test_messages_about_angles():
    assert message(ValueError, cuda.apply_rope, X, W, W) == (
        "apply_rope: cos has shape (40,), expected (... r) with 2 r at most d, found r=40, d=40"
    )
    assert message(ValueError, cuda.apply_rope, X, W[:5], W[:4]) == (
        "apply_rope: sin has shape (4,), expected (... r) with r=5"
    )
    assert message(ValueError, cuda.apply_rope, X, np.ones((2, 4), np.float32), W[:4]) == (
        "apply_rope: cos has shape (2, 4), expected (... r) with ...=(3,)"
    )
    assert "unlike cos" in message(
        NotImplementedError, cuda.apply_rope, X, np.ones((3, 4), np.float32), np.ones(4, np.float32)
    )
