"""Steps of persistent kernels over the tiny models, for tests to compare."""

import numpy as np
import pytest

from airllm import PersistentKernel
from airllm.backends import registry
from tests.support.models import tiny_models
from tests.support.models.tiny_models import DATA

TEXT = tiny_models.texts()[0]
PROMPT = 11  # tokens; windows are shorter than what follows, and some rotations stretch behind 24
BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]
LLAMA = DATA / "llama3"
having_cpp = pytest.mark.skipif("cpp" not in BACKENDS, reason="the C++ backend is not built")


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape and found.dtype == np.float32
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


def take_steps(kernel: PersistentKernel) -> np.ndarray:
    """Logits after a prompt, and after each token that follows."""
    return np.stack([kernel.prefill(TEXT[:PROMPT]), *map(kernel.step, TEXT[PROMPT:])])


def kernel_of(path, backend="python", **options) -> PersistentKernel:
    return PersistentKernel(model=path, backend=backend, **{"cache_dtype": "f32", **options}).compile()
