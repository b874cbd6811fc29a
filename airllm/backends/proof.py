"""Whether a backend, or one of its devices, is there: it has compiled an op and computed it right."""

from collections.abc import Callable
from typing import Any

import numpy as np

_ONE = 0.7310586  # silu(1)


def prove(silu: Callable[[np.ndarray], Any]) -> None:
    """Lets `silu` compute. AssertionError if the result is wrong; else raises what it raises."""
    answer = silu(np.ones(8, np.float32))
    if not np.allclose(answer, _ONE, rtol=1e-5, atol=0):  # not np.testing, which loads unittest
        raise AssertionError(f"silu(1) is wrong: {answer}, expected {_ONE}")


def prove_device(module: Any) -> str:
    """The device of a backend's module, in a line, that has just computed right; raises as `prove` does."""
    device = module.device()
    prove(module.silu)
    return device
