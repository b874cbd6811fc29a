"""Which arrays an op takes besides dense ones of its dtypes: the same on every backend."""

import ml_dtypes
import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from argument_cases import NATIVE, W, X, read_only
from hypothesis import given, settings
from hypothesis import strategies as st

from airllm import tensor_ops
from airllm.backends import available, open_backend
from airllm.tensor_ops import OPS

FLOATS = [o for o in OPS.values() if "quantized" not in {p.kind for p in (*o.operands, *o.outs)}]

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


def test_a_mapped_weight_is_taken_as_it_is(tmp_path):
    np.save(tmp_path / "weight.npy", W)
    mapped = np.load(tmp_path / "weight.npy", mmap_mode="r")
    for name in set(NATIVE) & {"cpp"}:
        np.testing.assert_array_equal(
            open_backend(name).module.rms_norm(X, mapped), tensor_ops.rms_norm(X, W, backend=name)
        )


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
