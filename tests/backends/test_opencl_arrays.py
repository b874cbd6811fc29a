"""NumPy arrays on OpenCL: every kernel of the launch table, in place and by way of buffers, in every form."""

import math
import threading
import warnings
from fractions import Fraction

import kernel_cases
import ml_dtypes
import numpy as np
import pytest
from accuracy import assert_agrees
from device_backends import assert_all_agree, every_dtype, sample
from opencl_variants import KERNELS, every, every_op, on_a_device

import tensor_ops_opencl as opencl
from airllm import tensor_ops
from airllm.backends.gpu.launches import Call, plan_of
from airllm.tensor_ops import OPS
from tensor_ops_opencl import engine, host_arrays
from tensor_ops_opencl.selection import choice


def may_be_input(op):
    """Whether `out` may be the first array."""
    return len(op.outs) == 1 and op.operands[0].axes == op.out and op.operands[0].kind == "own"


# ---- the launch table ----


@every
@pytest.mark.parametrize("shared", [True, False], ids=["in place", "through buffers"])
def test_every_kernel_computes_its_definition(variant, shared, monkeypatch):
    """The launch table with what the ops' own functions do not pass on, too."""
    opened = engine.engine(choice.in_use())
    monkeypatch.setattr(opened, "shares_memory", shared)
    for case in kernel_cases.cases(opened.program.form):
        results = {name: np.empty(exact.shape, case.dtype) for name, exact in case.exact.items()}
        monkeypatch.setattr(opened.program, "compute_units", case.compute_units)
        host_arrays.run(opened, case.op, case.arrays, case.parameters, results)
        for name, out in results.items():
            assert_agrees(out, case.exact[name], case.dtype)


class KernelWithoutNone:
    """A kernel as of pyopencl 2025.2.7, whose set_arg() takes no None."""

    def __init__(self, kernel):
        self.kernel = kernel

    def set_arg(self, index, argument):
        assert argument is not None
        self.kernel.set_arg(index, argument)


@every
def test_an_absent_array_is_not_none_for_pyopencl(variant, monkeypatch):
    import pyopencl as cl

    opened = engine.engine(choice.in_use())
    found, enqueue = opened.program.kernel, cl.enqueue_nd_range_kernel

    def kernel(family, name):
        own, known = found(family, name)
        return KernelWithoutNone(own), [engine._NOT_SET] * len(known)

    monkeypatch.setattr(opened.program, "kernel", kernel)

    def enqueue_wrapped(queue, wrapped, *rest, **more):
        return enqueue(queue, wrapped.kernel, *rest, **more)

    monkeypatch.setattr(cl, "enqueue_nd_range_kernel", enqueue_wrapped)
    x = np.random.default_rng(3).standard_normal((4, 6, 32)).astype(np.float32)
    expected = tensor_ops.attention(*[x.astype(np.float64)] * 3)
    assert_agrees(tensor_ops.attention(x, x, x, backend="opencl"), expected, x.dtype)


@every
def test_only_what_is_needed_is_compiled(variant):
    used = choice.in_use()
    program = engine.Program(engine.engine(used).context, used.handle, used.form)
    program.kernel("elements", f"{'cpu_' if used.form == 'cpu' else ''}silu_f32")
    assert list(program._built) == ["elements"]


# ---- NumPy arrays ----


@every
def test_cpu_devices_work_in_place_of_the_arrays(variant):
    if ", CPU, " not in opencl.device():
        pytest.skip("a device with memory of its own")
    for op in KERNELS:
        before = opencl.copies(), opencl.calls()
        getattr(opencl, op)(*sample(op, np.float32))
        assert opencl.copies() == before[0] and opencl.calls() > before[1]


@every
@every_dtype
@every_op
def test_devices_with_memory_of_their_own(variant, dtype, op, monkeypatch):
    """A CPU device is used as a GPU would be: values go through pooled buffers."""
    monkeypatch.setattr(engine.engine(choice.in_use()), "shares_memory", False)
    for d in (77, 5, 512):
        args = sample(op.name, dtype, d=d)
        before = opencl.copies()
        assert_all_agree(getattr(opencl, op.name)(*args), op.exact(*args), dtype)
        assert opencl.copies() == before + len(args) + len(op.outs)
    if may_be_input(op):
        exact, x = op.exact(*args), args[0]
        assert getattr(opencl, op.name)(*args, out=x) is x
        assert_agrees(x, exact, np.dtype(dtype))


@every
def test_arrays_that_share_memory(variant):
    """Two buffers upon overlapping memory are undefined in OpenCL, so these must not become that."""
    whole = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
    for a, b in ((whole[:6], whole[:6]), (whole[:6], whole[1:])):
        assert_agrees(opencl.matmul(a, b), OPS["matmul"].exact(a, b), np.dtype(np.float32))
    row = whole[:1]
    assert_agrees(opencl.rms_norm(row, row[0]), OPS["rms_norm"].exact(row, row[0]), np.dtype(np.float32))


@every
@pytest.mark.parametrize("m, k, n", [(1, 40, 300), (4, 7, 130), (5, 40, 70), (130, 20, 300), (513, 33, 260)])
@every_dtype
def test_every_size_of_matmul(variant, dtype, m, k, n):
    """Rows, small and large tiles: which one runs depends on the size."""
    args = sample("matmul", dtype, m=m, k=k, n=n, batch=(2,))
    assert_agrees(opencl.matmul(*args), OPS["matmul"].exact(*args), np.dtype(dtype))


@every
@pytest.mark.parametrize("m, k, compute_units", [(1, 2**20, None), (5, 2**20, None), (5, 2**17, 0)])
def test_long_sums_keep_their_digits(variant, m, k, compute_units, monkeypatch):
    """One float32 sum of all k products is 1 % off here; rows, small tiles, and large ones by no units."""
    program = engine.engine(choice.in_use()).program
    if compute_units is not None and program.form == "gpu":
        monkeypatch.setattr(program, "compute_units", compute_units)
    found = opencl.matmul(np.full((m, k), 0.1, np.float32), np.ones((k, 2), np.float32))
    np.testing.assert_allclose(found, np.full((m, 2), np.float64(np.float32(0.1)) * k), rtol=1e-5)


def _with_nans(dtype, d):
    """Rows with a NaN each, whose bits are every sign and payload that arithmetic or memory can hold."""
    bits = {"float32": (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00001, 0x7F800001)}
    bits["float16"] = (0x7FFF, 0xFFFF, 0x7E01, 0x7C01)
    bits["bfloat16"] = (0x7FFF, 0xFFFF, 0x7FC1, 0x7F81)
    dtype = np.dtype(dtype)
    x = np.random.default_rng(0).standard_normal((8, d)).astype(dtype)
    for i, payload in enumerate(2 * bits[dtype.name]):  # in the middle of packs, and at the end
        x[i].view(f"u{dtype.itemsize}")[d // 2 if i < 4 else -1] = payload
    return x


@every
@every_dtype
@pytest.mark.parametrize("d", [1, 5, 8, 77, 9001])
def test_every_nan_stays_one(variant, dtype, d):
    x = _with_nans(dtype, d)
    with np.errstate(invalid="ignore"):  # said of NaNs that are to trap
        nan = np.isnan(x)
    assert nan.sum() == 8
    for op in ("silu", "gelu"):
        assert (np.isnan(getattr(opencl, op)(x)) == nan).all(), op
    for found in (opencl.softmax(x), opencl.rms_norm(x, np.ones(d, dtype))):
        assert np.isnan(found).all()
    weighted = opencl.rms_norm(np.ones((2, d), dtype), x[0])
    assert (np.isnan(weighted) == nan[0]).all()


def test_the_largest_tile_is_used_where_it_fills_the_device():
    a, b = np.empty((1024, 8), np.float32), np.empty((8, 1024), np.float32)

    def kernel(units, form, m=1024):
        call = Call("matmul", {"a": a[:m], "b": b}, {}, (m, 1024), form, units)
        return plan_of(call).launches[0].kernel

    assert kernel(4, "gpu") == "matmul_f32_tile128" and kernel(100, "gpu") == "matmul_f32_tile64"
    assert kernel(4, "cpu") == "cpu_matmul_f32"
    assert kernel(4, "gpu", m=2) == "matmul_row_f32"


@every
def test_many_threads_at_once(variant):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((5, 100 + 13 * i)).astype(np.float32) for i in range(8)]
    wrong = []

    def work(x):
        for _ in range(20):
            for op in ("silu", "softmax"):
                found, exact = getattr(opencl, op)(x), OPS[op].exact(x)
                if not np.allclose(found, exact, rtol=1e-4, atol=1e-6):
                    wrong.append((op, x.shape))

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@every
@every_dtype
@every_op
@pytest.mark.parametrize("d", [1, 7, 8, 9, 100])
def test_writes_nothing_around_its_output(variant, dtype, op, d):
    args = sample(op.name, dtype, d=d, r=d // 2, m=d, n=d + 2)
    shapes = op.out_shapes(args)
    guarded = [np.full(math.prod(shape) + 64, 7, dtype) for shape in shapes]
    outs = tuple(g[32 : 32 + math.prod(s)].reshape(s) for g, s in zip(guarded, shapes, strict=True))
    out = outs if len(outs) > 1 else outs[0]
    assert getattr(opencl, op.name)(*args, out=out) is out
    assert all((g[:32] == 7).all() and (g[-32:] == 7).all() for g in guarded)
    assert_all_agree(out, op.exact(*args), dtype)


@every
def test_what_a_number_is(variant):
    x, weight = sample("rms_norm", np.float32)
    for eps in ("1e-6", "small", True, None, [1e-6], np.ones(1, np.float32), np.array(1e-6), 1j):
        with pytest.raises(TypeError, match="^rms_norm: eps has type [a-zA-Z]+, expected a number$"):
            opencl.rms_norm(x, weight, eps=eps)
    with pytest.raises(ValueError, match="^rms_norm: eps has .*expected a number that"):
        opencl.rms_norm(x, weight, eps=10**400)
    for eps in (1, np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int8(1), Fraction(1, 3)):
        exact = OPS["rms_norm"].exact(x, weight, eps=float(eps))
        assert_agrees(opencl.rms_norm(x, weight, eps=eps), exact, np.dtype(np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not opencl.rms_norm(x, weight, eps=1e300).any()


@every
@pytest.mark.parametrize("format", opencl.stored_formats())
def test_every_stored_format(variant, format):
    """Unpacked bit for bit as defined; multiplied as near as float32 can."""
    rng = np.random.default_rng(0)
    weight = kernel_cases.blocks(rng, format, 70, 512)
    values = weight.dequantize()
    assert (opencl.dequantize(weight) == values).all()
    ids = rng.integers(0, 70, (2, 5))
    assert (opencl.embedding(ids, weight) == values[ids]).all()
    for rows in (1, 8, 9, 70):
        x = rng.standard_normal((rows, 512), np.float32)
        assert_agrees(opencl.linear(x, weight), x.astype(np.float64) @ values.T.astype(np.float64), x.dtype)


@every
def test_more_broadcast_axes_than_a_kernel_knows(variant):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 3, 2, 3, 4, 5, 8), np.float32)
    k = rng.standard_normal((2, 1, 2, 1, 2, 7, 8), np.float32)
    assert_agrees(opencl.attention(q, k, k), OPS["attention"].exact(q, k, k), q.dtype)
    x = rng.standard_normal((2, 2, 2, 2, 2, 2, 3), np.float32)
    mask = rng.standard_normal((2, 1, 2, 1, 2, 1, 1), np.float32)
    assert_agrees(opencl.softmax(x, mask=mask), OPS["softmax"].exact(x, mask=mask), x.dtype)


@on_a_device
def test_bfloat16_arrays_of_the_host_in_every_rank():
    for shape in ((), (3,), (2, 1, 3)):
        x = np.ones(shape, ml_dtypes.bfloat16)
        assert_agrees(opencl.silu(x), OPS["silu"].exact(x), x.dtype)
