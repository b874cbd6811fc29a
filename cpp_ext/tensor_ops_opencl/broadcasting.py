"""Leading axes of an array that is broadcast inside a kernel, as the kernel takes them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

AXES = 4  # that a kernel's index of a row is taken apart into


def leading(lead: Sequence[int], array: Any, inner: int) -> tuple:
    """Sizes (n1, n2, n3) of a result's leading axes and the array's strides (s0, s1, s2, s3) along them.

    `inner` axes of the array are no leading ones. Strides are in elements; 0 where the array is broadcast, or
    not given. ValueError if the array is broadcast along more groups of axes than a kernel knows.
    """
    axes = _grouped(lead, _strides(array, len(lead), inner))
    if len(axes) > AXES:
        raise ValueError(f"broadcast along {len(axes)} groups of axes, expected at most {AXES}")
    axes = [(1, 0)] * (AXES - len(axes)) + axes
    return tuple(np.uint64(n) for n, _ in axes[1:]) + tuple(np.uint64(stride) for _, stride in axes)


def _strides(array: Any, count: int, inner: int) -> list[int]:
    """Strides in elements along `count` leading axes, which are aligned at their ends."""
    if array is None:
        return [0] * count
    shape, strides = array.shape[: len(array.shape) - inner], array.strides
    own = [0 if n == 1 else s // array.dtype.itemsize for n, s in zip(shape, strides, strict=False)]
    return [0] * (count - len(own)) + own


def _grouped(lead: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """(size, stride) of the axes, those joined that one stride goes through."""
    groups: list[tuple[int, int]] = []
    for size, stride in zip(lead, strides, strict=True):
        if size == 1:
            continue
        if groups and groups[-1][1] == stride * size:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    return groups
