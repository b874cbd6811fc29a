"""How near a kernel's result must be to the float64 result, by dtype."""

import ml_dtypes
import numpy as np

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
# Largest error, relative to the largest exact value of its row.
TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3, np.dtype(ml_dtypes.bfloat16): 1e-2}


def assert_agrees(actual: np.ndarray, exact: np.ndarray, dtype: np.dtype) -> None:
    """`actual` has `dtype` and is as near to the float64 result as the dtype allows."""
    assert isinstance(actual, np.ndarray) and actual.dtype == dtype and actual.shape == exact.shape
    if not exact.size:
        return
    error = np.abs(actual.astype(np.float64) - exact)
    scale = np.abs(exact).max(axis=-1, keepdims=True) if exact.ndim else np.abs(exact)
    worst = np.max(error / np.maximum(scale, 1e-30))
    assert worst <= TOLERANCE[np.dtype(dtype)], f"error of {worst:.2e} of the row's largest value"
