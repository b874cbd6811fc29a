"""What an op takes besides dense arrays, and what it says to the rest: the same on every backend."""

import collections
import re
import sys
import tracemalloc
import warnings
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from hypothesis import given, settings
from hypothesis import strategies as st

from airllm import tensor_ops
from airllm.backends import available, open_backend
from airllm.tensor_ops import OPS

X = np.random.default_rng(0).standard_normal((6, 10), np.float32)
W = np.linspace(-1, 1, 10, dtype=np.float32)
FLOATS = [o for o in OPS.values() if "quantized" not in {p.kind for p in (*o.operands, *o.outs)}]
NATIVE = [name for name in available() if open_backend(name).module]


@pytest.fixture(params=available())
def backend(request):
    with tensor_ops.use_backend(request.param) as used:
        yield used


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


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


# Arrays of the same shape whose memory is not what a kernel reads.
STRIDED = {
    "every second column": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "reversed": lambda x: x[..., ::-1].copy()[..., ::-1],
    "Fortran order": np.asfortranarray,
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), x.dtype, offset=1).reshape(x.shape),
    "read-only": read_only,
    "a subclass": lambda x: x.view(np.memmap),
}
AXES = {"d": 10, "r": 4, "m": 3, "k": 10, "n": 4, "h": 4, "g": 2, "t": 3, "s": 7, "e": 5, "v": 9}


def sample(op, dtype=np.float32):
    """All arrays of an op by name, those that may be left out too."""
    rng = np.random.default_rng(0)
    batch = (6, 10) if op.operands[0].axes == ("...",) else (6,)
    required = op.sample(rng, dtype, batch, **AXES)
    names = [operand.name for operand in op.operands if not operand.optional]
    return dict(zip(names, required, strict=True)) | op.sample_optional(rng, dtype, batch, **AXES)


def all_agree(actual, exact, dtype):
    several = isinstance(exact, tuple)
    for a, b in zip(actual if several else (actual,), exact if several else (exact,), strict=True):
        assert_agrees(a, b, dtype)


@pytest.mark.parametrize("change", STRIDED.values(), ids=STRIDED)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", FLOATS, ids=lambda op: op.name)
def test_any_strides_give_right_answers(op, dtype, change, backend):
    given = {name: change(array) for name, array in sample(op, dtype).items()}
    exact = op.exact(**given)
    function = getattr(tensor_ops, op.name)
    all_agree(function(**given), exact, dtype)
    shapes = op.out_shapes([given[operand.name] for operand in op.operands])
    outs = [np.zeros((*shape, 3), dtype)[..., 1] for shape in shapes]
    out = outs[0] if len(outs) == 1 else tuple(outs)
    assert function(**given, out=out) is out
    all_agree(out, exact, dtype)


@pytest.mark.parametrize("op", FLOATS, ids=lambda op: op.name)
def test_float64_is_never_narrowed(op, backend):
    given = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in sample(op).items()}
    result, exact = getattr(tensor_ops, op.name)(**given), op.exact(**given)
    several = isinstance(exact, tuple)
    for r, e in zip(result if several else (result,), exact if several else (exact,), strict=True):
        assert r.dtype == np.float64
        np.testing.assert_allclose(r, e, rtol=1e-14)


def test_lists_are_float64_as_in_numpy(backend):
    result = tensor_ops.rms_norm([[1.0, 2.0]], [1.0, 0.5])
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, OPS["rms_norm"].exact([[1.0, 2.0]], [1.0, 0.5]), rtol=1e-14)


@pytest.mark.parametrize("weight", (np.float32, np.float16, ml_dtypes.bfloat16, np.float64))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_mixed_dtypes_give_the_first_ones(dtype, weight, backend):
    x, w = X.astype(dtype), W.astype(weight)
    assert_agrees(tensor_ops.rms_norm(x, w), OPS["rms_norm"].exact(x, w), dtype)
    assert_agrees(tensor_ops.matmul(x, w[:, None]), OPS["matmul"].exact(x, w[:, None]), dtype)


@pytest.mark.parametrize(
    "shapes", [((2, 1, 3, 4), (5, 4, 6)), ((3, 4), (2, 4, 6)), ((2, 3, 4), (1, 4, 5)), ((0, 3, 4), (4, 5))]
)
def test_matmul_broadcasts_leading_axes(shapes, backend):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape, np.float32) for shape in shapes)
    result = tensor_ops.matmul(a, b)
    assert result.shape == np.matmul(a, b).shape
    np.testing.assert_allclose(result, np.matmul(a, b), atol=1e-5)


# The shapes of ONNX's cases of MatMul, whose meaning is numpy.matmul's, and more of the same.
VECTORS = [
    ((3,), (3,)),
    ((2,), (3, 2, 1)),
    ((3, 1, 4, 2), (2,)),
    ((3,), (3, 4)),
    ((4, 3), (3,)),
    ((20, 3), (3,)),
    ((3,), (2, 1, 3, 4)),
    ((0, 5, 3), (3,)),
    ((0,), (0,)),
    ((3, 1, 3, 4), (1, 2, 4, 2)),
]


@pytest.mark.parametrize("shapes", VECTORS, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_matmul_takes_vectors_as_numpy_does(shapes, dtype, backend):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    result = tensor_ops.matmul(a, b)
    assert result.shape == np.shape(exact) and result.dtype == dtype
    assert_agrees(result, exact, dtype)
    out = np.full((2, *np.shape(exact)), 7, dtype)
    assert tensor_ops.matmul(a, b, out=out[1, ...]).base is out
    assert_agrees(out[1, ...], exact, dtype)
    assert (out[0] == 7).all()


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


@pytest.mark.parametrize("mask_shape", [(), (1,), (6, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("dtype", (np.bool_, np.float32, np.float16))
def test_a_mask_of_softmax_broadcasts_along_its_last_axis_too(mask_shape, dtype, backend):
    mask = (np.arange(np.prod(mask_shape, dtype=int)).reshape(mask_shape) % 3 != 1).astype(dtype)
    full = np.broadcast_to(mask, X.shape)
    added = np.where(full, 0.0, -np.inf) if dtype == np.bool_ else full.astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.exp(X + added)
        exact = np.nan_to_num(e / e.sum(-1, keepdims=True))
    assert_agrees(tensor_ops.softmax(X, mask=mask), exact, np.float32)
    out = np.empty_like(X)
    assert_agrees(tensor_ops.softmax(X, mask=mask, out=out), exact, np.float32)


def test_attention_over_no_dimension_is_an_average(backend):
    """All scores are sums over nothing: a query sees every key alike."""
    v = np.random.default_rng(0).standard_normal((2, 5, 3), np.float32)
    result = tensor_ops.attention(np.ones((4, 2, 0), np.float32), np.ones((2, 5, 0), np.float32), v)
    assert_agrees(result, np.repeat(v.mean(1, keepdims=True), 2, axis=0).repeat(2, axis=1), np.float32)


@pytest.mark.parametrize("native", (False, True))
@pytest.mark.parametrize("kind", (np.int64, np.int32))
def test_the_rows_of_an_embedding_may_not_be_put_on_its_ids(kind, native, backend):
    """Ids that are written over while they are read would lead anywhere in memory."""
    memory = np.zeros((4096, 64), np.float32)
    ids = memory.reshape(-1)[: 4096 * np.dtype(kind).itemsize // 4].view(kind)
    table, embedding = np.ones((100, 64), np.float32), tensor_ops.embedding
    if native:
        embedding = getattr(backend.module, "embedding", embedding)
    with pytest.raises(ValueError, match="embedding: out overlaps ids, expected memory of its own"):
        embedding(ids, table, out=memory)
    apart = np.zeros((4096, 64), np.float32)
    assert (embedding(ids, table, out=apart) == 1).all()


@pytest.mark.parametrize("stored", ("float16", "bfloat16", "q8_0"))
def test_the_definition_of_embedding_converts_only_the_rows_that_it_takes(stored):
    table = np.random.default_rng(0).standard_normal((4000, 256), np.float32)
    table = tensor_ops.quantize(table, stored) if stored == "q8_0" else table.astype(stored)
    ids = np.array([3, 3999])
    tracemalloc.start()
    result = tensor_ops.embedding(ids, table, backend="python")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    values = table.dequantize() if stored == "q8_0" else table
    assert result.dtype == values.dtype and result.tobytes() == values[ids].tobytes()
    assert OPS["embedding"].exact(ids, table).dtype == np.float64
    assert peak < table.nbytes / 10


def test_matmul_that_cannot_broadcast_says_so(backend):
    with pytest.raises(
        ValueError, match=r"matmul: b has shape \(3, 4, 5\), expected \(... k n\) with k=4, ...=\(2,\)"
    ):
        tensor_ops.matmul(np.ones((2, 3, 4), np.float32), np.ones((3, 4, 5), np.float32))


def test_out_that_is_the_input_may_have_strides(backend):
    x = np.ascontiguousarray(X.T).T
    exact = OPS["softmax"].exact(x)
    assert tensor_ops.softmax(x, out=x) is x
    assert_agrees(x, exact, np.float32)
    with pytest.raises(ValueError, match="silu: out overlaps x, expected memory of its own or exactly x"):
        tensor_ops.silu(x, out=x[::-1])


def test_arrays_of_another_library_come_back_as_its_kind(backend):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = torch.randn(3, 8)
    result = tensor_ops.silu(x)
    assert isinstance(result, torch.Tensor)
    torch.testing.assert_close(result, torch.nn.functional.silu(x))
    assert tensor_ops.silu(x, out=x) is x
    torch.testing.assert_close(x, result)
    half = torch.randn(3, 8).to(torch.bfloat16)
    result = tensor_ops.silu(half)
    assert result.dtype == torch.bfloat16
    torch.testing.assert_close(result, torch.nn.functional.silu(half))
    assert tensor_ops.silu(half, out=half) is half
    torch.testing.assert_close(half, result)
    with pytest.raises(TypeError, match="silu: x has type Tensor, expected an array: .*grad"):
        tensor_ops.silu(torch.ones(3, requires_grad=True))


class Exporting:
    """An array of a library that is not NumPy: DLPack is all there is."""

    def __init__(self, array, device=(1, 0)):
        self._array, self._device = array, device

    def __dlpack__(self, **keywords):
        return self._array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self._device


def test_dlpack_arrays_are_read(backend):
    np.testing.assert_array_equal(tensor_ops.silu(Exporting(X)), tensor_ops.silu(X))


def test_arrays_on_a_device_are_not_for_the_host():
    with tensor_ops.use_backend("python"):
        with pytest.raises(TypeError, match="silu: x has device cuda:0, expected host memory"):
            tensor_ops.silu(Exporting(X, (2, 0)))
        with pytest.raises(TypeError, match="rms_norm: weight has device rocm:1, expected host memory"):
            tensor_ops.rms_norm(X, Exporting(W, (10, 1)))


def test_halves_of_one_array_do_not_overlap(backend):
    both = np.ones((4, 16), np.float32)  # as a gate and an up projection lie
    tensor_ops.silu(both[:, :8], out=both[:, 8:])
    np.testing.assert_allclose(both[:, 8:], 0.7310586, rtol=1e-6)
    assert (both[:, :8] == 1).all()


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


def test_a_mapped_weight_is_taken_as_it_is(tmp_path):
    np.save(tmp_path / "weight.npy", W)
    mapped = np.load(tmp_path / "weight.npy", mmap_mode="r")
    for name in set(NATIVE) & {"cpp"}:
        np.testing.assert_array_equal(
            open_backend(name).module.rms_norm(X, mapped), tensor_ops.rms_norm(X, W, backend=name)
        )


def test_overflow_is_infinite_without_a_warning(backend):
    huge = np.full((4, 4), 1e38, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(tensor_ops.matmul(huge, huge)).all()
        half = np.full((4, 4), 6e4, np.float16)
        assert np.isinf(tensor_ops.matmul(half, half)).all()


def test_an_error_keeps_no_reference(backend):
    out = np.zeros((3, 3), np.float32)
    before = sys.getrefcount(out)
    for _ in range(5):
        with pytest.raises(ValueError):
            tensor_ops.matmul(out[:2], X, out=out)
        with pytest.raises(TypeError):
            tensor_ops.rms_norm(out, out[0].copy(), eps="x", out=out)
    assert sys.getrefcount(out) == before


@settings(max_examples=200, deadline=None)
@given(
    shape=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    steps=st.lists(st.sampled_from([1, 2, 3, -1]), min_size=4, max_size=4),
    order=st.permutations(range(4)),
    dtype=st.sampled_from(DTYPES),
    name=st.sampled_from(["silu", "softmax", "rms_norm", "gelu"]),
    backend=st.sampled_from(available()),
)
def test_any_view_of_any_shape(shape, steps, order, dtype, name, backend):
    full = np.random.default_rng(1).standard_normal([n * 3 for n in shape], np.float32).astype(dtype)
    x = full[tuple(slice(None, None, step) for step in steps[: len(shape)])]
    x = x.transpose([axis for axis in order if axis < len(shape)])
    rest = [np.ones(x.shape[-1], np.float32)] if name == "rms_norm" else []
    assert_agrees(getattr(tensor_ops, name)(x, *rest, backend=backend), OPS[name].exact(x, *rest), dtype)
