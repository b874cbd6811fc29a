"""A clean machine for every check, samples, and what a check says."""

import gc
import sys

import ml_dtypes
import numpy as np
import pytest
from arrays import Memory, runtime

import tensor_ops_cuda as cuda

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
rng = np.random.default_rng(0)
X = rng.standard_normal((3, 40)).astype(np.float32)
W = rng.standard_normal(40).astype(np.float32)


@pytest.fixture(autouse=True)
def clean_machine(monkeypatch):
    """Two devices; afterwards no memory is left allocated, nothing pending, no device switched."""
    monkeypatch.delenv("AIRLLM_CUDA_DEVICE", raising=False)
    runtime.on_host_reset()
    cuda.select(None)
    gc.collect()
    Memory.release_all()
    before = runtime.on_host_live_blocks()
    yield
    for library in ("torch", "cupy"):
        sys.modules.pop(library, None)
    gc.collect()
    Memory.release_all()
    assert runtime.on_host_live_blocks() == before
    assert runtime.on_host_current_device() == 0
    assert runtime.on_host_unused_failures() == 0


def sample(op, dtype=np.float32):
    return op.sample(np.random.default_rng(1), dtype, batch=(2,), d=40, m=5, k=24, n=7)


def assert_agrees(actual, op, *args, **parameters):
    exact = op.exact(*args, **parameters)
    dtype = args[0].dtype
    assert isinstance(actual, np.ndarray) and actual.dtype == dtype and actual.shape == exact.shape
    scale = np.abs(exact).max(initial=1e-30)
    assert np.abs(actual.astype(np.float64) - exact).max(initial=0) <= TOLERANCE[dtype.name] * scale


def message(error, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)
