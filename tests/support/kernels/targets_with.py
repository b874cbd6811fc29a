"""What tests of ops share: on which targets and dtypes they run, and samples."""

import inspect

import numpy as np
import pytest
from accuracy import DTYPES
from targets import targets

LENGTHS = (1, 3, 4, 7, 8, 15, 16, 17, 31, 32, 33, 63, 100, 257, 4099, 8192, 9001)
NAMES = {dtype: np.dtype(dtype).name for dtype in DTYPES}


def has(target, op, *parameters):
    """Whether a target has a kernel for an op, with these parameters."""
    function = getattr(target.module, op, None)
    return function and {*parameters} <= {*inspect.signature(function).parameters}


def on(*ops, parameters=(), but="", only=""):
    """Every target that has these ops, but those of a backend that is known to fall short, or of one only."""
    able = [target for target in targets() if all(has(target, op, *parameters) for op in ops)]
    found = [t for t in able if t.backend != but and only in ("", t.backend)]
    return pytest.mark.parametrize("target", found, ids=str)


of_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.get)


def wide(*arrays):
    return [a.astype(np.float64) for a in arrays]


def normal(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)
