"""Attention: shapes, masks, windows, and arrays that lie with strides."""

import numpy as np
import pytest
from arrays import OTHER_STREAM, DLPackArray, InterfaceArray, imported
from machine import DTYPES, assert_agrees, clean_machine, message, rng  # noqa: F401

import tensor_ops_cuda as cuda
from airllm.tensor_ops import OPS

OP = OPS["attention"]
KINDS = {np.dtype(d).name: d for d in DTYPES}


def qkv(t, s, h=4, g=2, d=20, e=13, batch=(2,), dtype=np.float32, kv_dtype=None):
    shapes = ((h, t, d), (g, s, d), (g, s, e))
    q, k, v = (rng.standard_normal((*batch, *shape)).astype(dtype) for shape in shapes)
    return q, k.astype(kv_dtype or dtype), v.astype(kv_dtype or dtype)


def check(*args, **kwargs):
    """On NumPy arrays, and on the same on the device, where nothing is copied."""
    host = cuda.attention(*args, **kwargs)
    assert_agrees(host, OP, *args, **kwargs)
    moved = [cuda.to_device(a) for a in args]
    named = {n: cuda.to_device(a) if isinstance(a, np.ndarray) else a for n, a in kwargs.items()}
    copies = cuda.copies()
    result = cuda.attention(*moved, **named)
    assert cuda.copies() == copies and result.numpy().tobytes() == host.tobytes()


@pytest.mark.parametrize("s", (1, 7, 127, 129, 300))
@pytest.mark.parametrize("t", (1, 5, 15, 16, 65))
def test_lengths(t, s):
    check(*qkv(t, s))
    check(*qkv(t, s), causal=True)


@pytest.mark.parametrize("s", (513, 1100))
@pytest.mark.parametrize("kwargs", ({}, {"causal": True}, {"window": 300}), ids=str)
def test_keys_in_parts(kwargs, s):
    """So few queries do not fill a device: several groups of threads share the keys of one."""
    for t in (1, 2):
        calls = cuda.calls()
        args = qkv(t, s, h=1, g=1, batch=())
        check(*args, **kwargs)
        assert cuda.calls() == calls + 4


@pytest.mark.parametrize("d, e", [(1, 1), (64, 64), (65, 3), (128, 128), (16, 130), (513, 260)])
@pytest.mark.parametrize("t", (2, 20))
def test_widths(t, d, e):
    check(*qkv(t, 33, d=d, e=e))


@pytest.mark.parametrize("h, g", [(1, 1), (3, 3), (6, 1), (9, 3)])
@pytest.mark.parametrize("batch", ((), (1,), (3,), (2, 2)))
@pytest.mark.parametrize("t", (1, 16))
def test_heads_and_batches(t, batch, h, g):
    check(*qkv(t, 21, h=h, g=g, batch=batch), causal=True)


@pytest.mark.parametrize("t", (3, 20))
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype, kv_dtype, t):
    check(*qkv(t, 90, dtype=dtype, kv_dtype=kv_dtype), causal=True)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"scale": 0.5},
        {"scale": -1.0},
        {"softcap": 2.0},
        {"window": 1},
        {"window": 4, "causal": True},
        {"window": 1000},
        {"window": 10**30},
        {"scale": 2.0, "softcap": 5.0, "window": 9, "causal": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("t, s", [(6, 40), (6, 4), (20, 80), (20, 10)])
def test_rules(t, s, kwargs):
    """With fewer keys than queries the first queries see none and give zeros."""
    check(*qkv(t, s), **kwargs)


MASKS = [(33,), (1, 33), (10, 33), (1, 10, 33), (4, 10, 33), (2, 1, 1, 33), (2, 4, 10, 33), (2, 1, 10, 33)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("t", (1, 20))
def test_masks(t, shape):
    shape = tuple(t if n == 10 else n for n in shape)
    check(*qkv(t, 33), mask=rng.random(shape) < 0.6, causal=True)
    check(*qkv(t, 33), mask=rng.standard_normal(shape, np.float32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t", (1, 20))
def test_dtypes_of_masks(t, kind):
    check(*qkv(t, 33), mask=rng.standard_normal((4, t, 33)).astype(KINDS[kind]))


@pytest.mark.parametrize("sinks_dtype", ("float32", "own"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("t, s", [(2, 90), (20, 90), (20, 10), (1, 1100)])
def test_sinks(t, s, dtype, sinks_dtype):
    """Rows, tiles, queries without a key, keys in parts: only one of the parts counts a sink."""
    sinks = np.array([0.0, -3.0, 3.0, 6.0], dtype if sinks_dtype == "own" else np.float32)
    args = qkv(t, s, h=4, g=2, batch=(), dtype=dtype)
    check(*args, sinks=sinks)
    check(*args, sinks=sinks, mask=rng.random((t, s)) < 0.6, causal=True, window=70, softcap=2.0, scale=0.4)


def test_sinks_that_take_all_or_nothing():
    sinks = np.array([-np.inf, 1e4, -1e4, np.nan], np.float32)
    for args in (qkv(3, 40), qkv(20, 40)):
        plain, found = cuda.attention(*args), cuda.attention(*args, sinks=sinks)
        assert (found[:, [0, 2]] == plain[:, [0, 2]]).all()
        assert not found[:, 1].any() and np.isnan(found[:, 3]).all()


def test_sinks_of_a_batch_that_takes_several_calls():
    q, k, v = qkv(3, 9, batch=(2, 3, 2))
    k, v = (np.swapaxes(np.ascontiguousarray(np.swapaxes(a, 0, 2)), 0, 2) for a in (k, v))
    sinks = np.array([2.0, -1.0, 0.0, 3.0], np.float32)
    result = cuda.attention(*map(as_strided, (q, k, v)), sinks=cuda.to_device(sinks))
    assert_agrees(result.numpy(), OP, q, k, v, sinks=sinks)


def test_queries_without_a_key_give_zeros():
    for t, s in ((3, 0), (20, 0), (3, 5), (20, 5)):
        q, k, v = qkv(t, s)
        assert not cuda.attention(q, k, v, np.zeros((t, s), bool)).any()
        assert not cuda.attention(q, k, v, np.full((t, s), -np.inf, np.float32)).any()
        assert not cuda.attention(q, k, v, np.zeros((t, s), bool), sinks=np.ones(4, np.float32)).any()
    assert cuda.attention(*qkv(0, 5)).shape == (2, 4, 0, 13)
    assert cuda.attention(*qkv(3, 5, h=0, g=0)).shape == (2, 0, 3, 13)


def test_nan_reaches_the_queries_that_see_it():
    for t in (4, 20):
        q, k, v = qkv(t, t, batch=())
        k[0, t - 1, 0] = np.nan
        found = cuda.attention(q, k, v, causal=True)
        assert np.isnan(found[:2, -1]).all() and not np.isnan(found[:2, :-1]).any()
        assert not np.isnan(found[2:]).any()


# ---- strides


@pytest.mark.parametrize("t", (2, 18))
def test_strided_numpy_arrays(t):
    q = np.swapaxes(rng.standard_normal((2, t, 4, 16)).astype(np.float32), 1, 2)
    cache = rng.standard_normal((2, 2, 3, 50, 24)).astype(np.float32)
    k, v = cache[0, :, :2, :33, :16], cache[1, :, 1:, 5:38, 8:]
    mask = rng.standard_normal((2, 4, t, 40)).astype(np.float32)[..., 3:36]
    found = cuda.attention(q, k, v, mask)
    assert_agrees(found, OP, q, k, v, mask)
    k, v = (np.broadcast_to(a[0], a.shape) for a in (k, v))
    copies = cuda.copies()
    assert_agrees(cuda.attention(q, k, v, mask[:1]), OP, q, k, v, mask[:1])
    assert cuda.copies() == copies + 5
    assert_agrees(cuda.attention(q[::-1], k, v), OP, q[::-1], k, v)


def as_strided(array, kind=DLPackArray, **kwargs):
    """A view of NumPy memory as the same view of device memory."""
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    found = kind(base, **kwargs)
    start = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    found.memory.write(base.tobytes()[start:] + b"\0" * start)
    found.shape, found.strides = array.shape, tuple(s // array.itemsize for s in array.strides)
    return found


@pytest.mark.parametrize("kind", (DLPackArray, InterfaceArray))
@pytest.mark.parametrize("dtype", DTYPES[:2])
@pytest.mark.parametrize("t", (2, 18))
def test_strided_device_arrays(t, dtype, kind):
    q = np.swapaxes(rng.standard_normal((2, t, 4, 16)).astype(dtype), 1, 2)
    cache = rng.standard_normal((2, 3, 50, 24)).astype(dtype)
    k, v = cache[:, :2, :33, :16], cache[:, 1:, 5:38, 8:]
    mask = np.broadcast_to(rng.random((2, 1, 1, 33)) < 0.7, (2, 4, t, 33))
    arrays = [
        as_strided(q, kind),
        as_strided(k, kind, stream=OTHER_STREAM),
        as_strided(v, kind),
        as_strided(mask, kind),
    ]
    copies = cuda.copies()
    result = cuda.attention(*arrays, causal=True)
    assert cuda.copies() == copies
    del arrays
    assert_agrees(result.numpy(), OP, q, k, v, mask, causal=True)


def test_leading_axes_that_no_single_stride_goes_through():
    """A kernel has two strides for them: the third means several calls."""
    q, k, v = qkv(3, 9, batch=(2, 3, 2))
    k, v = (np.swapaxes(np.ascontiguousarray(np.swapaxes(a, 0, 2)), 0, 2) for a in (k, v))
    mask = rng.random((3, 1, 4, 3, 9)) < 0.7
    arrays = [as_strided(a) for a in (q, k, v, mask)]
    calls = cuda.calls()
    result = cuda.attention(*arrays)
    assert cuda.calls() == calls + 2
    assert_agrees(result.numpy(), OP, q, k, v, mask)


def test_results():
    q, k, v = qkv(3, 9)
    out = np.empty((2, 4, 3, 13), np.float32)
    assert cuda.attention(q, k, v, out=out) is out
    assert_agrees(out, OP, q, k, v)
    torch = imported("torch", 1)
    result = cuda.attention(*map(torch.Tensor, (q, k, v)), mask=None)
    assert type(result) is torch.Tensor
    assert_agrees(result.values(), OP, q, k, v)


def test_messages():
    q, k, v = qkv(3, 5, batch=())
    assert message(ValueError, cuda.attention, q[:3], k, v) == (
        "attention: k has shape (2, 5, 20), expected (... g s d) with h a multiple of g, found h=3, g=2"
    )
    assert message(ValueError, cuda.attention, q, k, v[:, :4].copy()) == (
        "attention: v has shape (2, 4, 13), expected (... g s e) with g=2, s=5"
    )
    assert message(TypeError, cuda.attention, q, k, v.astype(np.float16)) == (
        "attention: v has dtype float16, expected float32"
    )
    assert message(ValueError, cuda.attention, q, k, v, np.ones((3, 4), bool)) == (
        "attention: mask has shape (3, 4), expected (... h t s) with h=4, t=3, s=5"
    )
    assert message(ValueError, cuda.attention, q, k, v, sinks=np.ones(3, np.float32)) == (
        "attention: sinks has shape (3,), expected (h) with h=4"
    )
    assert message(TypeError, cuda.attention, q, k, v, sinks=np.ones(4, np.float16)) == (
        "attention: sinks has dtype float16, expected float32"
    )
    assert message(ValueError, cuda.attention, q[..., ::2], k, v).startswith(
        "attention: q has strides (240, 80, 8), expected the last axis contiguous and aligned"
    )
    assert message(TypeError, cuda.attention, q, k, v, scale="1") == (
        "attention: scale has type str, expected a number or None"
    )
    assert message(TypeError, cuda.attention, q, k, v, window=1.5) == (
        "attention: window has type float, expected a whole number or None"
    )
    assert message(ValueError, cuda.attention, q, k, v, window=0) == (
        "attention: window has value 0, expected 1 or more or None"
    )
    assert message(ValueError, cuda.attention, q, k, k, out=q) == (
        "attention: out overlaps q, expected memory of its own"
    )
