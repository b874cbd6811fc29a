"""`tensor_ops_cpp.assign`, which puts keys and values into a cache."""

import ml_dtypes
import numpy as np
import pytest

from airllm.backends import open_backend

cpp = open_backend("cpp").module
pytestmark = pytest.mark.skipif(cpp is None, reason="tensor_ops_cpp is not built")


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", [(1,), (7, 5), (3, 40, 64), (2, 3, 600, 33), (4, 0, 3), (0,)])
def test_rounds_as_numpy_does_and_writes_nothing_beside(shape, dtype):
    rng = np.random.default_rng(len(shape))
    source = np.float32(rng.standard_normal((*shape[:-2][::-1], *shape[-2:]))).transpose(
        *range(len(shape) - 2)[::-1], *range(max(len(shape) - 2, 0), len(shape))
    )
    memory = np.full((*shape[:-1], shape[-1] + 4), 7.5, dtype)
    target = memory[..., 2:-2]
    cpp.assign(target, source)
    assert target.tobytes() == source.astype(dtype).tobytes()
    assert (np.delete(memory, range(2, 2 + shape[-1]), axis=-1) == 7.5).all()


@pytest.mark.parametrize(
    "target, source, message",
    [
        (np.zeros((2, 3)), np.zeros((2, 3), np.float32), "target has dtype float64"),
        (np.zeros((2, 3), np.float16), np.zeros((2, 3), np.float16), "source has dtype float16, expected fl"),
        (np.zeros((2, 4), np.float16), np.zeros((2, 3), np.float32), r"target has shape \(2, 4\), expected"),
        (np.zeros((3, 2), np.float16).T, np.zeros((2, 3), np.float32), "target has strides"),
    ],
)
def test_what_it_does_not_take(target, source, message):
    with pytest.raises((TypeError, ValueError), match=f"assign: {message}"):
        cpp.assign(target, source)
