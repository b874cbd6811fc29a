"""What an op makes of shapes besides the plain ones, of ids and of overflow: the same on every backend."""

import tracemalloc
import warnings

import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from argument_cases import X

from airllm import tensor_ops
from airllm.tensor_ops import OPS


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


def test_overflow_is_infinite_without_a_warning(backend):
    huge = np.full((4, 4), 1e38, np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(tensor_ops.matmul(huge, huge)).all()
        half = np.full((4, 4), 6e4, np.float16)
        assert np.isinf(tensor_ops.matmul(half, half)).all()
