"""What an op says of arguments that it does not take: the same on every backend."""

import collections
import re
import sys
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from argument_cases import NATIVE, W, X, read_only

from airllm import tensor_ops
from airllm.backends import open_backend


def overlapping(shape, by=1):
    """Two arrays of a shape, the second one `by` elements further on in the same memory."""
    count = int(np.prod(shape))
    memory = np.zeros(count + by, np.float32)
    return memory[:count].reshape(shape), memory[by:].reshape(shape)


Q, K = np.ones((4, 3, 4), np.float32), np.ones((2, 5, 4), np.float32)

Bad = collections.namedtuple("Bad", "op args out error message")
OVERLAPPING = overlapping((6, 10))
BAD = [
    Bad("silu", [None], None, TypeError, "silu: x has type NoneType, expected a NumPy array"),
    Bad("silu", ["text"], None, TypeError, "silu: x has type str, expected a NumPy array"),
    Bad("softmax", [np.array(1, np.float32)], None, ValueError, "softmax: x has shape (), expected (... d)"),
    Bad("rms_norm", [X, W[:4]], None, ValueError, "rms_norm: weight has shape (4,), expected (d) with d=10"),
    Bad("rms_norm", [X, X], None, ValueError, "rms_norm: weight has shape (6, 10), expected (d) with d=10"),
    Bad(
        "rms_norm",
        [X, np.array(1, np.float32)],
        None,
        ValueError,
        "rms_norm: weight has shape (), expected (d) with d=10",
    ),
    Bad("rms_norm", [X], None, TypeError, "rms_norm() missing required argument 'weight'"),
    Bad("matmul", [W[0, ...], W], None, ValueError, "matmul: a has shape (), expected (... m k)"),
    Bad("matmul", [X, X], None, ValueError, "matmul: b has shape (6, 10), expected (... k n) with k=10"),
    Bad("matmul", [X, W[0, ...]], None, ValueError, "matmul: b has shape (), expected (... k n)"),
    Bad(
        "silu", [X], np.zeros((6, 9), np.float32), ValueError, "silu: out has shape (6, 9), expected (6, 10)"
    ),
    Bad(
        "silu", [X], np.zeros((6, 10), np.float16), TypeError, "silu: out has dtype float16, expected float32"
    ),
    Bad("silu", [X], read_only(X), ValueError, "silu: out is read-only, expected a writeable array"),
    Bad(
        "silu",
        OVERLAPPING[:1],
        OVERLAPPING[1],
        ValueError,
        "silu: out overlaps x, expected memory of its own or exactly x",
    ),
    Bad(
        "rms_norm",
        [X[:1, :], W],
        W[None, :],
        ValueError,
        "rms_norm: out overlaps weight, expected memory of its own",
    ),
    Bad(
        "attention",
        [Q, K[..., :3], K],
        None,
        ValueError,
        "attention: k has shape (2, 5, 3), expected (... g s d) with d=4",
    ),
    Bad(
        "attention",
        [Q, np.stack([K, K]), np.stack([K, K])],
        None,
        ValueError,
        "attention: k has shape (2, 2, 5, 4), expected (... g s d) with d=4",
    ),
    Bad(
        "attention",
        [Q[:3], K, K],
        None,
        ValueError,
        "attention: k has shape (2, 5, 4), expected (... g s d) with h a multiple of g, found h=3, g=2",
    ),
    Bad(
        "attention",
        [Q, K, K[:, :4]],
        None,
        ValueError,
        "attention: v has shape (2, 4, 4), expected (... g s e) with g=2, s=5",
    ),
    Bad(
        "attention",
        [Q, K, K, np.ones((3, 4), bool)],
        None,
        ValueError,
        "attention: mask has shape (3, 4), expected (... h t s) with h=4, t=3, s=5",
    ),
    Bad(
        "softmax",
        [X, 1.0, np.ones((6, 10), np.int64)],
        None,
        TypeError,
        "softmax: mask has dtype int64, expected bool, ",
    ),
    Bad(
        "apply_rope",
        [X, W[:6], W[:6]],
        None,
        ValueError,
        "apply_rope: cos has shape (6,), expected (... r) with 2 r at most d, found r=6, d=10",
    ),
    Bad(
        "apply_rope",
        [X, W[:5], W[:4]],
        None,
        ValueError,
        "apply_rope: sin has shape (4,), expected (... r) with r=5",
    ),
    Bad(
        "gelu",
        [X, "exact"],
        None,
        ValueError,
        "gelu: approximate has value 'exact', expected 'tanh' or 'none'",
    ),
    Bad("linear", [X, [1.0]], None, ValueError, "linear: weight has shape (1,), expected (n k) with k=10"),
    Bad("linear", [X, X, W], None, ValueError, "linear: bias has shape (10,), expected (n) with n=6"),
    Bad("embedding", [np.array([0, 6]), X], None, ValueError, "embedding: ids has value 6, expected 0 to 5"),
    Bad("embedding", [np.array([-1]), X], None, ValueError, "embedding: ids has value -1, expected 0 to 5"),
    Bad("embedding", [X, X], None, TypeError, "embedding: ids has dtype float32, expected int64 or int32"),
    Bad(
        "add_rms_norm",
        [X, X, W],
        X,
        TypeError,
        "add_rms_norm: out has type ndarray, expected a tuple of 2 arrays",
    ),
    Bad("silu", [X], [1.0], TypeError, "silu: out has type list, expected a NumPy array"),
]
BAD_DTYPES = [np.int32, np.bool_, np.complex64, "U3", np.longdouble]


def ids(bad):
    return re.sub(r"\W+", "_", bad.message)


def call(function, bad, **keywords):
    return function(*bad.args, **({} if bad.out is None else {"out": bad.out}), **keywords)


@pytest.mark.parametrize("bad", BAD, ids=ids)
def test_bad_arguments_are_named(bad, backend):
    if bad.message == "silu: x has type str, expected a NumPy array":
        bad = bad._replace(message="silu: x has dtype <U4, expected float64, float32, float16 or bfloat16")
    with pytest.raises(bad.error, match=re.escape(bad.message)):
        call(getattr(tensor_ops, bad.op), bad)


@pytest.mark.parametrize("bad", BAD, ids=ids)
@pytest.mark.parametrize("name", NATIVE)
def test_native_modules_say_the_same(bad, name):
    if not hasattr(open_backend(name).module, bad.op):
        pytest.skip(f"{name} has no kernel of {bad.op}")
    if isinstance(bad.args[-1], list):
        pytest.skip("lists are for tensor_ops")
    with pytest.raises(bad.error, match=re.escape(bad.message)):
        call(getattr(open_backend(name).module, bad.op), bad)


@pytest.mark.parametrize("dtype", BAD_DTYPES, ids=str)
def test_dtypes_that_no_op_has(dtype, backend):
    x = np.ones((2, 3)).astype(dtype)
    expected = f"silu: x has dtype {x.dtype}, expected float64, float32, float16 or bfloat16"
    with pytest.raises(TypeError, match=re.escape(expected)):
        tensor_ops.silu(x)


@pytest.mark.parametrize("name", NATIVE)
def test_native_modules_refuse_what_they_would_get_wrong(name):
    module = open_backend(name).module
    with pytest.raises(TypeError, match="silu: x has dtype float64, expected float32, float16 or bfloat16"):
        module.silu(X.astype(np.float64))
    with pytest.raises(TypeError, match="silu: x has dtype >f4, expected float32"):
        module.silu(X.astype(">f4"))
    for strided in (X[:, ::2], X.T, np.broadcast_to(W, (3, 10))):
        with pytest.raises(
            ValueError, match=re.escape(f"silu: x has strides {strided.strides}, expected C-contiguous")
        ):
            module.silu(strided)
    with pytest.raises(TypeError, match="rms_norm: weight has dtype float16, expected float32"):
        module.rms_norm(X, W.astype(np.float16))
    with pytest.raises(TypeError, match="rms_norm: weight has dtype bfloat16, expected float16 or float32"):
        module.rms_norm(X.astype(np.float16), W.astype(ml_dtypes.bfloat16))
    with pytest.raises(TypeError, match="matmul: b has dtype float16, expected float32"):
        module.matmul(X, X.T.astype(np.float16, order="C"))
    with pytest.raises(TypeError, match=r"silu\(\) got an unexpected keyword argument 'scale'"):
        module.silu(X, scale=2)
    with pytest.raises((TypeError, ValueError)):
        module.silu(np.frombuffer(b"\0" * 41, np.float32, 10, 1))  # not aligned


def test_unknown_keywords_and_backends(backend):
    with pytest.raises(TypeError, match=r"silu\(\) got an unexpected keyword argument 'scale'"):
        tensor_ops.silu(X, scale=2)
    with pytest.raises(TypeError, match="eps"):
        tensor_ops.rms_norm(X, W, eps="small")
    with pytest.raises(ValueError, match=r"abacus.*cuda.*opencl.*cpp.*python"):
        tensor_ops.silu(X, backend="abacus")


def test_matmul_of_shapes_that_do_not_fit_names_what_was_found(backend):
    messages = {
        ((), (3,)): "a has shape (), expected (... m k) or (k)",
        ((3,), ()): "b has shape (), expected (... k n) or (k) with k=3",
        ((3,), (4,)): "b has shape (4,), expected (k) with k=3",
        ((2, 3), (4,)): "b has shape (4,), expected (k) with k=3",
        ((3,), (4, 2)): "b has shape (4, 2), expected (... k n) with k=3",
    }
    for shapes, message in messages.items():
        with pytest.raises(ValueError, match=re.escape(f"matmul: {message}") + "$"):
            tensor_ops.matmul(*(np.ones(shape, np.float32) for shape in shapes))
    with pytest.raises(ValueError, match=re.escape("matmul: out has shape (1, 2), expected (2,)")):
        tensor_ops.matmul(W[:3], X[:3, :2], out=np.ones((1, 2), np.float32))


def test_matmul_that_cannot_broadcast_says_so(backend):
    with pytest.raises(
        ValueError, match=r"matmul: b has shape \(3, 4, 5\), expected \(... k n\) with k=4, ...=\(2,\)"
    ):
        tensor_ops.matmul(np.ones((2, 3, 4), np.float32), np.ones((3, 4, 5), np.float32))


def test_a_mask_is_not_dropped(backend):
    with pytest.raises(TypeError, match="silu: x has type MaskedArray, expected a NumPy array"):
        tensor_ops.silu(np.ma.masked_array([1.0, 2.0], [True, False]))


def test_numbers_are_numbers(backend):
    for eps in (True, np.array(1e-6), "1e-6", 1j):
        with pytest.raises(TypeError, match=r"rms_norm: eps has type \S+, expected a number"):
            tensor_ops.rms_norm(X, W, eps=eps)
    with pytest.raises(ValueError, match="rms_norm: eps has type int, expected a number that a float holds"):
        tensor_ops.rms_norm(X, W, eps=10**400)
    expected = tensor_ops.rms_norm(X, W, eps=0.5)
    for eps in (np.float32(0.5), np.float64(0.5), Fraction(1, 2)):
        np.testing.assert_array_equal(tensor_ops.rms_norm(X, W, eps=eps), expected)


def test_an_error_keeps_no_reference(backend):
    out = np.zeros((3, 3), np.float32)
    before = sys.getrefcount(out)
    for _ in range(5):
        with pytest.raises(ValueError):
            tensor_ops.matmul(out[:2], X, out=out)
        with pytest.raises(TypeError):
            tensor_ops.rms_norm(out, out[0].copy(), eps="x", out=out)
    assert sys.getrefcount(out) == before
