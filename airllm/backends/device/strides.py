"""Sizes and strides for kernels that take broadcast or strided arrays."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_LEADING_AXES, _BATCH_AXES = 4, 2  # axes that a kernel's row index, or batch index, has


class TooManyAxes(Exception):
    """A kernel cannot take the whole result; the caller must split it along the first axis."""


def leading_strides(lead: Sequence[int], array: Any, inner: int) -> tuple:
    """Sizes (n1, n2, n3) of a result's leading axes and the array's strides (s0, s1, s2, s3) along them.

    The array's last `inner` axes are not leading ones. Strides are in elements; 0 if the array is broadcast
    or not given. TooManyAxes if it is broadcast along more groups of axes than a kernel supports.
    """
    sizes, strides = _join_axes(lead, [element_strides(array, len(lead), inner)], _LEADING_AXES)
    return tuple(map(np.uint64, (*sizes[1:], *strides[0])))


def batch_strides(lead: Sequence[int], arrays: Sequence[Any], inner: int) -> tuple[int, list[list[int]]]:
    """The size of the inner one of the two batch axes, and each array's strides along both."""
    sizes, strides = _join_axes(lead, [element_strides(a, len(lead), inner) for a in arrays], _BATCH_AXES)
    return sizes[-1], strides


def element_strides(array: Any, count: int, inner: int) -> list[int]:
    """Strides in elements along the `count` axes before the last `inner`; 0 along broadcast axes."""
    if array is None:
        return [0] * count
    lead = max(len(array.shape) - inner, 0)
    own = [
        0 if n == 1 else stride // array.dtype.itemsize
        for n, stride in zip(array.shape[:lead], array.strides[:lead], strict=True)
    ]
    return ([0] * (count - len(own)) + own)[-count:] if count else []


def _join_axes(
    sizes: Sequence[int], strides: Sequence[list[int]], most: int
) -> tuple[list[int], list[list[int]]]:
    """Merge axes into `most` axes: neighbours are merged if every array has one stride across both."""
    axes: list[tuple[int, tuple[int, ...]]] = []
    for size, *steps in zip(sizes, *strides, strict=True):
        if size == 1:
            continue
        if axes and all(outer == size * step for outer, step in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, tuple(steps))
        else:
            axes.append((size, tuple(steps)))
    if len(axes) > most:
        raise TooManyAxes(f"broadcast along {len(axes)} groups of axes, expected at most {most}")
    axes = [(1, (0,) * len(strides))] * (most - len(axes)) + axes
    return [size for size, _ in axes], [[steps[i] for _, steps in axes] for i in range(len(strides))]


def shared_axes(shape: Sequence[int], arrays: Sequence[Any]) -> tuple[list[int], list[list[int]]]:
    """Sizes (n1, n2, n3) of the leading axes of arrays of one shape, and each array's strides along the four
    leading ones and the last, in elements.
    """
    lead = shape[:-1]
    leading = [element_strides(array, len(lead), 1) for array in arrays]
    sizes, strides = _join_axes(lead, leading, _LEADING_AXES)
    last = [array.strides[-1] // array.dtype.itemsize if array is not None else 0 for array in arrays]
    return sizes[1:], [[*steps, end] for steps, end in zip(strides, last, strict=True)]
