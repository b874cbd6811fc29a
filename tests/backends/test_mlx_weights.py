"""Stored weights in MLX's memory: their values are the definition's, and their products those of float64."""

import numpy as np
import pytest
from environment import REQUIRED

from airllm.backends import registry
from airllm.formats import FORMATS, Quantized
from tests.support.models.stored import blocks, with_scales

if "mlx" in REQUIRED or not registry.open_backend("mlx").why_not:
    import mlx.core as mx

    from tensor_ops_mlx import weights
    from tensor_ops_mlx.model_ops import DeviceOps
else:
    pytest.skip(f"mlx: {registry.open_backend('mlx').why_not}", allow_module_level=True)

ROWS, WIDTH = 7, 512


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_the_definition(name):
    stored = blocks(name, (ROWS, WIDTH))
    held, wanted = weights.hold(stored), stored.dequantize()
    if name in weights.GROUPINGS:
        np.testing.assert_array_equal(np.asarray(held.values()), wanted)
        assert held.nbytes <= 1.5 * stored.nbytes
    else:
        assert held.dtype == mx.float16
        np.testing.assert_array_equal(np.asarray(held), wanted.astype(np.float16))


@pytest.mark.parametrize("rows", (1, 5))
@pytest.mark.parametrize("name", ("q4_0", "q5_1", "mxfp4", "q6_k", "tq1_0"))
def test_products_and_rows_are_those_of_the_definition(name, rows):
    stored, x = blocks(name, (ROWS, WIDTH)), np.random.default_rng(1).standard_normal((rows, WIDTH))
    ops, x = DeviceOps(), x.astype(np.float32)
    held, exact = ops.to_device(stored), stored.dequantize().astype(np.float64)
    within = {"rtol": 0, "atol": 3e-6 if name in weights.GROUPINGS else 1e-3}
    unit = np.abs(exact).max() * np.sqrt(WIDTH)
    found = ops.linear(ops.to_device(x), held).numpy() / unit
    np.testing.assert_allclose(found, x @ exact.T / unit, **within)
    found = ops.embedding(np.array([3, 0, 3]), held).numpy() / unit
    np.testing.assert_allclose(found, exact[[3, 0, 3]] / unit, **within)
    parts = ops.stack([stored[:2], stored[2:]])
    found = ops.linear(ops.to_device(x), parts[1]).numpy() / unit
    np.testing.assert_allclose(found, x @ exact[2:].T / unit, **within)


def test_a_scale_that_mlx_takes_for_nan_leaves_floats():
    data = FORMATS["mxfp4"].encode(np.ones((2, 64), np.float32)).reshape(-1, 17)
    largest = with_scales(data, "mxfp4", np.full((len(data), 1), np.inf))
    stored = Quantized(np.where(np.arange(len(data))[:, None] == 1, largest, data).reshape(2, -1), "mxfp4")
    assert (stored.data.reshape(-1, 17)[:, 0] == 255).any()
    np.testing.assert_array_equal(np.asarray(weights.hold(stored)), stored.dequantize())


def test_what_is_written_to_a_view_is_in_its_base():
    ops, x = DeviceOps(), np.arange(24, dtype=np.float32).reshape(4, 6)
    array = ops.to_device(x)
    array[1:3].reshape(2, 2, 3).swapaxes(0, 1)[1] = np.zeros((2, 3))
    x[1:3, 3:] = 0
    np.testing.assert_array_equal(array.numpy(), x)
    copy = array.copy()
    array *= 2
    np.testing.assert_array_equal(copy.numpy(), x)
    np.testing.assert_array_equal(array.numpy(), 2 * x)
    with pytest.raises(TypeError, match="assign: an array has dtype int64, expected one of float32, float16"):
        ops.assign(ops.to_device(np.zeros(3, np.int64)), 1.0)
