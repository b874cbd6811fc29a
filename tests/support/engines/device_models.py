"""Whole models on a device, for tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from airllm.backends import registry
from airllm.backends.device.counters import Counts
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.environment import REQUIRED
from tests.support.models.tiny_models import SHORT, texts

PLACES = ("opencl", "webgpu", "cuda", "rocm")  # backends with a `Place`
BACKENDS = (*PLACES, "mlx")  # those that keep models on their device


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    """The name of a backend that keeps models on its device."""
    return running(request.param)


@pytest.fixture(params=PLACES)
def placed(request: pytest.FixtureRequest) -> str:
    """The name of a backend whose memory and transfers are a `Place`'s."""
    return running(request.param)


@pytest.fixture
def kernels_of_gpus() -> Iterator[None]:
    """OpenCL's kernels of GPUs, on the device in use."""
    opencl = pytest.importorskip("tensor_ops_opencl")
    if registry.open_backend("opencl").why_not:
        pytest.skip(registry.open_backend("opencl").why_not)
    label = next((each for each in opencl.variants() if "gpu kernels" in each), None)
    if label is None:
        pytest.skip("no device runs both forms of the kernels")
    opencl.select(label)
    yield
    opencl.select(None)


def running(name: str) -> str:
    """The backend, which runs here; else the test is skipped, or fails if the backend is required."""
    if why_not := registry.open_backend(name).why_not:
        assert name not in REQUIRED, why_not
        pytest.skip(why_not)
    gc.collect()  # what tests before this one left on the device would be freed, and counted, during it
    return name


def open_engine(path: Path, backend: str, there: bool = True, **options: Any) -> LayerWiseInferenceEngine:
    """An engine whose model is on the device, or not."""
    engine = LayerWiseInferenceEngine(path, backend=backend, **{"cache_dtype": "f32", **options})
    assert bool(engine.model.on_device) == there, engine.model.why_not_on_device
    return engine


def counts(backend: str) -> Counts:
    """What a backend has done so far."""
    return registry.open_backend(backend).module.counters.read()


def keep_one_recording(tokens: Sequence[Counts]) -> None:
    """Assert that decoded tokens take no memory, but one of them, whose launches are recorded with theirs."""
    assert sorted(each.resident for each in tokens)[:-1] == [0] * (len(tokens) - 1)
    assert all(0 <= each.resident <= 64 * 1024 for each in tokens)


def agree(found: np.ndarray, wanted: np.ndarray, within: float = 2e-4) -> None:
    """Assert that logits are those wanted, within a part of their range."""
    assert found.shape == wanted.shape and found.dtype == np.float32
    assert np.abs(found - wanted).max() <= within * np.ptp(wanted)


def agree_with_all(engine: LayerWiseInferenceEngine, wanted: Sequence[np.ndarray]) -> None:
    """Assert that the logits of `tiny_models.texts()` are those wanted: at prefill, token by token, after
    going back, and as those of a batch.
    """
    given = texts()
    cache = engine.new_cache()
    agree(engine.forward(given[1], cache, all_positions=True), wanted[1])
    cache.truncate(SHORT - 9)
    first = cache.length  # a recurrent state goes back to the beginning only
    steps = [engine.forward([token], cache) for token in given[1][first:]]
    agree(np.stack(steps), wanted[1][first:])
    caches = [engine.new_cache() for _ in given]
    engine.forward([text[:-2] for text in given], caches)
    found = engine.forward([text[-2:] for text in given], caches, all_positions=True)
    for text, logits in zip(wanted, found, strict=True):
        agree(logits, text[-2:])
