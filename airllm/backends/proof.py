"""The test that a backend or a device works: it compiles an op and computes it correctly."""

from collections.abc import Callable
from typing import Any

import numpy as np

_ONE = 0.7310586  # silu(1)


def prove(silu: Callable[[np.ndarray], Any]) -> None:
    """Run `silu`. AssertionError if the result is wrong; exceptions of `silu` pass through."""
    answer = silu(np.ones(8, np.float32))
    if not np.allclose(answer, _ONE, rtol=1e-5, atol=0):  # not np.testing, which loads unittest
        raise AssertionError(f"silu(1) is wrong: {answer}, expected {_ONE}")


def prove_device(module: Any) -> str:
    """The device of a backend's module in one line, after a successful `prove`, whose errors it raises."""
    device = module.device()
    prove(module.silu)
    return device
