"""Products with blocks that WebGPU reads as words, of few rows and by tiles."""

import numpy as np
import pytest

from airllm.backends import registry
from airllm.formats import FORMATS
from tensor_ops_webgpu.kernel_text import stored_formats
from tests.support.engines.device_models import running
from tests.support.models.stored import blocks


@pytest.mark.parametrize("rows", (1, 3, 70))
@pytest.mark.parametrize("name", stored_formats())
def test_products_are_those_of_float64(name, rows):
    """Of an odd number of columns, and of rows that the invocations do not share evenly."""
    ops = registry.open_backend(running("webgpu")).module.device_ops()
    k = 96 if FORMATS[name].values == 32 else 768
    stored, x = blocks(name, (7, k), largest=0.5), np.random.default_rng(rows).standard_normal((rows, k))
    x, exact = x.astype(np.float32), stored.dequantize().astype(np.float64)
    found = ops.linear(ops.to_device(x), ops.to_device(stored)).numpy()
    assert np.abs(found - x @ exact.T).max() <= 1e-6 * np.abs(exact).max() * np.sqrt(k)
