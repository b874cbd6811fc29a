"""A clean machine for every check, samples of every op, and what a check says."""

import ctypes
import gc
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from arrays import Memory, runtime

import tensor_ops_cuda as cuda
from airllm.formats import Quantized
from airllm.tensor_ops import OPS

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
CUBLAS = Path(cuda.__file__).parent / "nvidia" / "cu13" / "lib" / "libcublas.so.13"
AXES = {"d": 40, "r": 12, "m": 5, "k": 32, "n": 7, "h": 4, "g": 2, "t": 3, "s": 37, "e": 9, "v": 11}
HERE = [op for op in OPS.values() if hasattr(cuda, op.name)]  # the ops that this backend has
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
    gc.freeze()  # what is there already need not be gone through again: that took longer than the checks
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


def use_cublas(monkeypatch):
    """cuBLAS's stand-in, which products go to."""
    library = ctypes.CDLL(str(CUBLAS))
    library.on_host_use(runtime.on_host_enqueue)
    monkeypatch.setenv("AIRLLM_CUDA_MATMUL", "cublas")
    return library


def sample(op, dtype=np.float32):
    """Arrays of every argument of an op, those that may be left out too, by their names."""
    batch = (2, 40) if op.operands[0].axes == ("...",) and op.operands[0].kind == "own" else (2,)
    rng = np.random.default_rng(1)
    required = op.sample(rng, dtype, batch, **AXES)
    names = [operand.name for operand in op.operands if not operand.optional]
    return dict(zip(names, required, strict=True)) | op.sample_optional(rng, dtype, batch, **AXES)


def on_device(value, to_device=cuda.to_device):
    """An argument as `to_device` makes it one of a device's memory."""
    return (
        Quantized(to_device(value.data), value.format) if isinstance(value, Quantized) else to_device(value)
    )


def all_of(results):
    return results if isinstance(results, tuple) else (results,)


def assert_agrees(actual, op, *args, **kwargs):
    """One result or all of them, NumPy arrays, with the definition in float64."""
    exact = all_of(op.exact(*args, **kwargs))
    dtype = result_dtype(op, op.signature.bind(*args, **kwargs).arguments)
    for a, e in zip(all_of(actual), exact, strict=True):
        assert isinstance(a, np.ndarray) and a.dtype == dtype and a.shape == e.shape
        scale = np.abs(e).max(initial=1e-30)
        assert np.abs(a.astype(np.float64) - e).max(initial=0) <= TOLERANCE[dtype.name] * scale


def result_dtype(op, given):
    """That of the first array of the op's own floats; of an embedding's table, or of values unpacked."""
    own = (given[operand.name] for operand in op.operands if operand.kind == "own")
    return np.dtype(getattr(next(own, given.get("table")), "dtype", np.float32))


def message(error, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)
