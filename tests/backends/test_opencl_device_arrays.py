"""pyopencl's arrays: computed on their own queue, with any strides, and never copied to the host."""

import math

import numpy as np
import pytest
from accuracy import assert_agrees
from device_backends import assert_all_agree, every_dtype, results, sample
from opencl_variants import every_op, every_queue

import tensor_ops_opencl as opencl
from airllm import tensor_ops
from airllm.formats import FORMATS, Quantized
from airllm.tensor_ops import OPS
from tensor_ops_opencl.selection import choice


@pytest.fixture
def queue(variant):
    import pyopencl as cl

    return cl.CommandQueue(cl.Context([choice.in_use().handle]))


def put(queue, array):
    """The array on the device; pyopencl's own transfers cannot bfloat16."""
    import pyopencl.array

    return pyopencl.array.to_device(queue, array.view(np.uint8 if array.ndim else None)).view(array.dtype)


def got(array):
    return array.view(np.uint8).get().view(array.dtype)


@every_queue
@every_dtype
@every_op
def test_device_arrays_stay_on_the_device(queue, dtype, op):
    args = sample(op.name, dtype)
    arrays = [put(queue, array) for array in args]
    before = opencl.copies(), opencl.calls()
    outs = results(getattr(opencl, op.name)(*arrays))
    assert opencl.copies() == before[0] and opencl.calls() > before[1]
    assert all(type(out) is type(arrays[0]) and out.queue is queue and out.dtype == dtype for out in outs)
    assert_all_agree(tuple(map(got, outs)), results(op.exact(*args)), dtype)


@every_queue
@pytest.mark.parametrize("start", [0, 1, 32, 33], ids="offset {}".format)
@every_op
def test_parts_of_device_arrays(queue, op, start):
    """A part may begin where the device cannot make a buffer begin: then it is copied, on the device."""
    args = sample(op.name, np.float32, d=9)
    shapes = op.out_shapes(args)
    padded = [put(queue, np.concatenate([np.zeros(start, a.dtype), a.ravel()])) for a in args]
    arrays = [p[start:].reshape(array.shape) for p, array in zip(padded, args, strict=True)]
    around = [put(queue, np.full(start + math.prod(shape) + 8, 7, np.float32)) for shape in shapes]
    parts = zip(around, shapes, strict=True)
    outs = tuple(a[start : start + math.prod(shape)].reshape(shape) for a, shape in parts)
    out = outs if len(outs) > 1 else outs[0]
    before = opencl.copies()
    assert getattr(opencl, op.name)(*arrays, out=out) is out
    assert opencl.copies() == before
    assert_all_agree(tuple(map(got, outs)), results(op.exact(*args)), np.float32)
    for whole in map(got, around):
        assert (whole[:start] == 7).all() and (whole[-8:] == 7).all()


@every_queue
@pytest.mark.parametrize("start", [0, 1, 32])
def test_device_arrays_in_place(queue, start):
    x = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    for op in ("silu", "gelu", "softmax"):
        array = put(queue, np.concatenate([np.zeros(start, np.float32), x.ravel()]))[start:].reshape(x.shape)
        assert getattr(opencl, op)(array, out=array) is array
        assert_agrees(got(array), OPS[op].exact(x), np.dtype(np.float32))


@every_queue
def test_an_out_of_order_queue(variant):
    import pyopencl as cl

    context = cl.Context([choice.in_use().handle])
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    x = np.random.default_rng(0).standard_normal((40, 5000)).astype(np.float32)
    array = put(cl.CommandQueue(context, properties=properties), x)
    exact = x.astype(np.float64)
    for _ in range(5):
        array, exact = opencl.silu(array), OPS["silu"].exact(exact)
    assert_agrees(got(array), exact, np.dtype(np.float32))


@every_queue
def test_empty_device_arrays(queue):
    import pyopencl.array

    def empty(*shape):
        return pyopencl.array.Array(queue, shape, np.float32)

    before = opencl.calls()
    assert opencl.silu(empty(0, 4)).shape == (0, 4)
    product = opencl.matmul(empty(3, 0), empty(0, 5))
    assert product.shape == (3, 5) and not got(product).any()
    assert opencl.calls() == before


@every_queue
def test_bad_device_arrays_are_named(queue):
    import pyopencl as cl

    host, w = np.ones((2, 6), np.float32), np.ones(6, np.float32)
    x, y, weight = put(queue, host), put(queue, np.ones((6, 2), np.float32)), put(queue, w)
    other = put(cl.CommandQueue(cl.Context([queue.device])), w)
    bad = [
        (lambda: opencl.rms_norm(x, w), TypeError, "weight has type ndarray, expected a pyopencl Array"),
        (lambda: opencl.rms_norm(host, weight), TypeError, "weight has type Array, expected a NumPy array"),
        (lambda: opencl.silu(x, out=host), TypeError, "out has type ndarray, expected a pyopencl Array"),
        (
            lambda: opencl.rms_norm(x, other),
            TypeError,
            "weight has another OpenCL context, expected that of x",
        ),
        (lambda: opencl.silu(x.with_queue(None)), TypeError, "x has no queue, expected one"),
        (lambda: opencl.silu(x.astype(np.float64)), TypeError, "x has dtype float64, expected float32"),
        (lambda: opencl.silu(x, out=y.T), ValueError, r"out has strides \(4, 8\), expected C-contiguous"),
        (
            lambda: opencl.rms_norm(x, weight[:5]),
            ValueError,
            r"weight has shape \(5,\), expected \(d\) with d=6",
        ),
        (lambda: opencl.silu(x, out=weight), ValueError, r"out has shape \(6,\), expected \(2, 6\)"),
        (
            lambda: opencl.silu(x[:1], out=x.reshape(12)[1:7].reshape(1, 6)),
            ValueError,
            "out overlaps x, expected memory",
        ),
    ]
    before = opencl.calls()
    for call, error, message in bad:
        with pytest.raises(error, match=message):
            call()
    square = put(queue, np.ones((3, 3), np.float32))
    with pytest.raises(ValueError, match=r"matmul: out overlaps a, expected memory of its own$"):
        opencl.matmul(square, square, out=square)
    assert opencl.calls() == before


@every_queue
def test_attention_on_parts_of_a_cache(queue):
    """Keys and values are strided views of a cache that is longer; the mask is of bytes."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 5, 4, 8), np.float32)
    cache = rng.standard_normal((2, 2, 30, 8), np.float32)
    mask = rng.random((5, 20)) > 0.3
    exact = OPS["attention"].exact(q.transpose(0, 2, 1, 3), cache[:, :, :20], cache[:, :, 5:25], mask)
    on_device, queries = put(queue, cache), put(queue, q).transpose((0, 2, 1, 3))
    before = opencl.copies()
    found = opencl.attention(
        queries, on_device[:, :, :20], on_device[:, :, 5:25], mask=put(queue, mask.view(np.uint8))
    )
    assert opencl.copies() == before
    assert_agrees(got(found), exact, np.dtype(np.float32))


@every_queue
def test_a_decoder_layer_stays_on_the_device(queue):
    """A chain of ops on device arrays, with weights stored as blocks, makes no copy to or from the host."""
    rng = np.random.default_rng(0)
    heads, groups, d, width = 4, 2, 16, 64

    def random_weights(*shape, format="q8_0"):
        return Quantized(FORMATS[format].encode(rng.standard_normal(shape, np.float32) / 8), format)

    wq, wk, wv = (
        random_weights(heads * d, width),
        random_weights(groups * d, width),
        random_weights(groups * d, width, format="q4_0"),
    )
    wo, w1, w2, w3 = (
        random_weights(width, heads * d),
        random_weights(96, width),
        random_weights(width, 96),
        random_weights(96, width),
    )
    norm, table = rng.standard_normal(width, np.float32), random_weights(9, width)
    cos, sin = tensor_ops.rope_table(np.array([7]), d)

    def layer(ops, put, ids):
        w = {name: put(value) for name, value in weights.items()}

        x = ops.embedding(put(ids), w["table"])
        y = ops.rms_norm(x, w["norm"])
        q, k, v = (ops.linear(y, w[name]) for name in ("wq", "wk", "wv"))
        q, k = (ops.apply_rope(a.reshape(-1, 1, d), w["cos"], w["sin"]) for a in (q, k))
        a = ops.attention(q, k, v.reshape(groups, 1, d), mask=w["mask"], causal=True)
        a = a.reshape(1, heads * d)
        x, y = ops.add_rms_norm(x, ops.linear(a, w["wo"]), w["norm"])
        return ops.linear(ops.swiglu(ops.linear(y, w["w1"]), ops.linear(y, w["w3"])), w["w2"])

    def put_all(value):
        if isinstance(value, Quantized):
            return Quantized(put(queue, value.data), value.format)
        return put(queue, value)

    mask = rng.random((heads, 1, 1)) > 0.2
    weights = {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "w1": w1, "w2": w2, "w3": w3, "norm": norm}
    weights |= {"table": table, "cos": cos, "sin": sin, "mask": mask}
    ids = np.array([4], np.int32)
    before = opencl.copies()
    found = layer(opencl, put_all, ids)
    assert opencl.copies() == before
    with tensor_ops.use_backend("python"):
        expected = layer(tensor_ops, lambda value: value, ids)
    np.testing.assert_allclose(got(found), expected, atol=1e-4 * np.abs(expected).max())


@every_queue
@every_dtype
def test_strides_of_device_arrays(queue, dtype):
    """What a kernel takes dense is copied on the device where it is not; pyopencl itself cannot."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 2, 40), np.float32).astype(dtype)
    array = put(queue, x)
    before = opencl.copies()
    for view, same in (
        (x.transpose(2, 0, 1, 3), array.transpose((2, 0, 1, 3))),
        (x[:, :, :, :7], array[:, :, :, :7]),
        (x.T, array.T),
        (x[:, 1:], array[:, 1:]),
    ):
        found = opencl.silu(same)
        assert opencl.copies() == before
        assert_agrees(got(found), OPS["silu"].exact(view), np.dtype(dtype))


@every_queue
def test_an_index_out_of_range_gives_nan_on_the_device(queue):
    table = np.ones((3, 40), np.float32)
    blocks = Quantized(FORMATS["q8_0"].encode(table[:, :32]), "q8_0")
    ids = put(queue, np.array([1, 3, -1, 1 << 40]))
    for found, values in (
        (opencl.embedding(ids, put(queue, table)), table),
        (opencl.embedding(ids, Quantized(put(queue, blocks.data), "q8_0")), blocks.dequantize()),
    ):
        assert (got(found)[0] == values[1]).all() and np.isnan(got(found)[1:]).all()
