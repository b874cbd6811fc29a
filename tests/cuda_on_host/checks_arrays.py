"""NumPy arrays and arrays of its own: results, copies, messages."""

import ctypes
import inspect
import threading
import time
from fractions import Fraction

import numpy as np
import pytest
from arrays import LEGACY, runtime
from machine import (  # noqa: F401
    DTYPES,
    HERE,
    W,
    X,
    all_of,
    assert_agrees,
    clean_machine,
    message,
    on_device,
    sample,
)

import tensor_ops_cuda as cuda
from airllm import tensor_ops
from airllm.tensor_ops import OPS

# ---- NumPy arrays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", HERE, ids=lambda op: op.name)
def test_numpy_arrays_are_copied_in_and_out(op, dtype):
    args = sample(op, dtype)
    calls, copies = cuda.calls(), cuda.copies()
    results = getattr(cuda, op.name)(**args)
    assert_agrees(results, op, **args)
    assert cuda.calls() - calls >= 1 and cuda.copies() - copies == len(args) + len(all_of(results))


def test_out_of_numpy():
    out = np.empty_like(X)
    assert cuda.silu(X, out=out) is out
    assert_agrees(out, OPS["silu"], X)
    in_place = X.copy()
    assert cuda.softmax(in_place, out=in_place) is in_place
    assert_agrees(in_place, OPS["softmax"], X)


def test_empty_arrays_launch_nothing():
    calls = cuda.calls()
    assert cuda.silu(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert cuda.rms_norm(np.empty((2, 0), np.float32), np.empty(0, np.float32)).shape == (2, 0)
    product = cuda.matmul(np.empty((2, 3, 0), np.float16), np.empty((0, 4), np.float16))
    assert product.shape == (2, 3, 4) and not product.any()
    assert cuda.to_device(np.empty((0, 3), np.float16)).numpy().shape == (0, 3)
    assert cuda.silu(cuda.to_device(np.empty(0, np.float32))).shape == (0,)
    assert cuda.calls() == calls


def test_messages():
    f64, strided = X.astype(np.float64), X[:, ::2]
    read_only = X.copy()
    read_only.setflags(write=False)
    assert message(TypeError, cuda.silu, [1.0]) == "silu: x has type list, expected a NumPy array"
    assert message(TypeError, cuda.silu, f64).startswith(
        "silu: x has dtype float64, expected float32, float16"
    )
    assert message(TypeError, cuda.silu) == "silu() missing required argument 'x'"
    assert message(TypeError, cuda.silu, X, foo=1) == "silu() got an unexpected keyword argument 'foo'"
    assert message(ValueError, cuda.silu, strided).startswith(
        "silu: x has strides (160, 8), expected C-contig"
    )
    assert message(ValueError, cuda.softmax, np.array(1, np.float32)) == (
        "softmax: x has shape (), expected (... d)"
    )
    assert message(ValueError, cuda.rms_norm, X, W[:4]) == (
        "rms_norm: weight has shape (4,), expected (d) with d=40"
    )
    assert message(TypeError, cuda.rms_norm, X, W.astype(np.float16)) == (
        "rms_norm: weight has dtype float16, expected float32"
    )
    assert (
        message(ValueError, cuda.matmul, X, X) == "matmul: b has shape (3, 40), expected (... k n) with k=40"
    )
    batched = np.ones((2, 3, 4), np.float32), np.ones((5, 4, 3), np.float32)
    assert message(ValueError, cuda.matmul, *batched) == (
        "matmul: b has shape (5, 4, 3), expected (... k n) with k=4, ...=(2,)"
    )
    assert message(ValueError, cuda.silu, X, out=X[0].copy()) == "silu: out has shape (40,), expected (3, 40)"
    assert message(TypeError, cuda.silu, X, out=f64).startswith(
        "silu: out has dtype float64, expected float32"
    )
    assert message(ValueError, cuda.silu, X, out=read_only) == (
        "silu: out is read-only, expected a writeable array"
    )
    memory = np.zeros(8, np.float32)
    assert message(ValueError, cuda.silu, memory[:6], out=memory[2:]) == (
        "silu: out overlaps x, expected memory of its own or exactly x"
    )
    square = np.ones((2, 2), np.float32)
    assert message(ValueError, cuda.matmul, square, square.copy(), out=square) == (
        "matmul: out overlaps a, expected memory of its own"
    )


def test_what_a_number_is():
    for eps in ("1e-6", True, None, [1e-6], np.ones(1, np.float32), np.array(1e-6), 1j):
        found = f"rms_norm: eps has type {type(eps).__name__}, expected a number"
        assert message(TypeError, cuda.rms_norm, X, W, eps=eps).replace("numpy.", "") == found
    text = message(ValueError, cuda.rms_norm, X, W, eps=10**400)
    assert text.startswith("rms_norm: eps has ") and "expected a number that" in text
    for eps in (1, np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int8(1), Fraction(1, 3)):
        assert_agrees(cuda.rms_norm(X, W, eps=eps), OPS["rms_norm"], X, W, eps=float(eps))


@pytest.mark.parametrize("m, k", [(1, 1 << 20), (5, 1 << 16)])
def test_long_sums_keep_their_digits(m, k):
    """One float32 sum of all products would be off by 1e-2 and by 1e-3."""
    found = cuda.matmul(np.full((m, k), 0.1, np.float32), np.ones((k, 2), np.float32))
    np.testing.assert_allclose(found, np.full((m, 2), np.float64(np.float32(0.1)) * k), rtol=1e-5)


def test_tensor_ops_prepares_what_the_module_rejects():
    with tensor_ops.use_backend("cuda"):
        calls = cuda.calls()
        assert_agrees(tensor_ops.silu(X[:, ::2]), OPS["silu"], X[:, ::2])
        assert cuda.calls() == calls + 1
        on_device = tensor_ops.rms_norm(cuda.to_device(X), cuda.to_device(W))
        assert isinstance(on_device, cuda.DeviceArray)


# ---- arrays of its own


@pytest.mark.parametrize("dtype", DTYPES)
def test_device_array_holds_what_it_was_given(dtype):
    x = X.astype(dtype)
    array = cuda.to_device(x)
    assert (array.shape, array.ndim, array.size, array.nbytes) == (x.shape, 2, x.size, x.nbytes)
    assert array.dtype == x.dtype and array.device == "cuda:0"
    assert repr(array) == f"DeviceArray(shape=(3, 40), dtype={x.dtype.name}, device='cuda:0')"
    assert array.numpy().tobytes() == x.tobytes()
    assert "call .numpy()" in message(TypeError, np.asarray, array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", HERE, ids=lambda op: op.name)
def test_device_arrays_are_not_copied(op, dtype):
    args = sample(op, dtype)
    arrays = {name: on_device(a) for name, a in args.items()}
    copies = cuda.copies()
    results = getattr(cuda, op.name)(**arrays)
    assert all(isinstance(r, cuda.DeviceArray) for r in all_of(results)) and cuda.copies() == copies
    assert_agrees(tuple(r.numpy() for r in all_of(results)), op, **args)
    outs = tuple(cuda.to_device(np.zeros(r.shape, r.dtype)) for r in all_of(results))
    found = getattr(cuda, op.name)(**arrays, out=outs if isinstance(results, tuple) else outs[0])
    assert all(f is out for f, out in zip(all_of(found), outs, strict=True))
    assert_agrees(tuple(out.numpy() for out in outs), op, **args)


@pytest.mark.parametrize("dtype", DTYPES)
def test_views_of_device_arrays(dtype):
    x = np.arange(24).astype(dtype)
    array, copies = cuda.to_device(x), cuda.copies()
    view = array.reshape(2, 3, 4).swapaxes(0, -1)
    assert view.shape == (4, 3, 2) and cuda.copies() == copies
    del array
    assert view.numpy().tobytes() == np.swapaxes(x.reshape(2, 3, 4), 0, 2).tobytes()
    assert view.swapaxes(2, 0).reshape((-1, 6)).numpy().tobytes() == x.reshape(4, 6).tobytes()
    assert cuda.to_device(x[:0]).reshape(0, 5).swapaxes(0, 1).numpy().shape == (5, 0)
    assert message(ValueError, cuda.silu, view).startswith("silu: x has strides (")
    assert message(ValueError, view.reshape, 24) == (
        "reshape: the array has its axes in another order, expected a C-contiguous one"
    )
    for wrong in ((5, 5), (-1, 7), (-2, -12), (0, -1)):
        assert f"shape has value {wrong}, expected one of 24 elements" in message(
            ValueError, view.swapaxes(0, 2).reshape, *wrong
        )
    assert message(ValueError, view.swapaxes, 0, 3) == "swapaxes: axis has value 3, expected one of 3 axes"
    if dtype != DTYPES[2]:
        size = x.itemsize
        assert view.__cuda_array_interface__["strides"] == (size, 4 * size, 12 * size)


def ticks_while(call):
    """How often another thread got its turn while the device needed 0.3 s for what `call` asks of it."""
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    sleep = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p)
    runtime.on_host_enqueue(LEGACY, 0, sleep, 300_000)
    start = time.monotonic()
    call()
    stop = time.monotonic()
    done.set()
    thread.join()
    assert stop - start >= 0.3
    return sum(start < t < stop - 0.05 for t in ticks)


def test_other_threads_run_during_copies():
    array = cuda.to_device(X)
    assert ticks_while(lambda: cuda.to_device(X)) > 5
    assert ticks_while(array.numpy) > 5


def test_device_array_in_place_and_overlap():
    array = cuda.to_device(X)
    assert cuda.gelu(array, out=array) is array
    assert_agrees(array.numpy(), OPS["gelu"], X)
    square = cuda.to_device(X[:, :3].copy())
    assert message(ValueError, cuda.matmul, square, square, out=square).startswith("matmul: out overlaps a")


def test_places_are_not_mixed():
    x = cuda.to_device(X)
    assert message(TypeError, cuda.rms_norm, x, W) == (
        "rms_norm: weight has host memory, expected device cuda:0 (pass tensor_ops_cuda.to_device(weight))"
    )
    assert message(TypeError, cuda.silu, X, out=x) == "silu: out has device cuda:0, expected host memory"
    elsewhere = cuda.to_device(W, device="cuda:1")
    assert message(TypeError, cuda.rms_norm, x, elsewhere) == (
        "rms_norm: weight has device cuda:1, expected device cuda:0"
    )


# ---- functions


@pytest.mark.parametrize("op", HERE, ids=lambda op: op.name)
def test_functions_are_the_declared_ones(op):
    function = getattr(cuda, op.name)
    found = inspect.signature(function).parameters
    expected = {n: p for n, p in op.signature.parameters.items() if n != "backend"}
    assert [(n, p.kind, p.default) for n, p in found.items()] == [
        (n, p.kind, p.default) for n, p in expected.items()
    ]
    assert function.__doc__ == op.text  # what the compiler read
