"""Searches the scales of sub-blocks that make the weighted error of rounding small, as ggml's quantizers do.

Arrays are float32 (values, sub-blocks): a sub-block is a column. Every step rounds to float32, and sums add
value after value: another order would now and then choose another scale, and so other bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

LEAST = np.float32(1e-15)  # sub-blocks without a larger magnitude count as zeros

Rounding = Callable[[np.ndarray], np.ndarray]  # numbers -> the nearest of those that a code can be
Products = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # q -> w x q and w q q, value by value


def nearest(x: np.ndarray) -> np.ndarray:
    """The nearest integers, ties to even, by adding 1.5 * 2^23 as ggml does: a NaN gives 0."""
    return ((x + np.float32(12582912)).view(np.int32) & 0x7FFFFF) - 0x400000


def nearest_in(x: np.ndarray, least: int, most: int) -> np.ndarray:
    """The nearest integers from `least` to `most`, as float32."""
    return nearest(x).clip(least, most).astype(np.float32)


def add_rows(terms: np.ndarray) -> np.ndarray:
    """The sum of each column, from the first row to the last."""
    total = np.zeros(terms.shape[1:], np.float32)
    for row in terms:
        total += row
    return total


def largest_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The value of largest magnitude in each column, the first of several, and whether it counts as zero."""
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], axis=0)[0]
    return largest, np.abs(largest) < LEAST


def search_scale(
    x: np.ndarray, inverses: Iterable[np.ndarray], rounding: Rounding, products: Products
) -> tuple[np.ndarray, np.ndarray]:
    """Of the scales d that `inverses` lead to, the one whose d q fits x best; and its q.

    The best d for some q is the sum of w x q over the sum of w q q.
    """
    scale, q, best = np.zeros(x.shape[1], np.float32), np.zeros_like(x), np.float32(-1)
    for inverse in inverses:
        tried = rounding(inverse * x)
        xq, qq = map(add_rows, products(tried))
        better = (qq > 0) & (xq * xq > best * qq)
        scale = np.where(better, xq / qq, scale)
        best = np.where(better, scale * xq, best)
        q = np.where(better, tried, q)
    return scale, q


def search_symmetric(x: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Scale and q of each column, for q from -most to most - 1: 19 scales are tried. Weights are squares."""
    largest, zero = largest_of(x)
    weights = x * x
    xw = weights * x
    steps = [0, *(i for i in range(-9, 10) if i)]
    scale, q = search_scale(
        x,
        (-(np.float32(most) + np.float32(0.1) * np.float32(i)) / largest for i in steps),
        lambda scaled: nearest_in(scaled, -most, most - 1),
        lambda q: (xw * q, weights * q * q),
    )
    return np.where(zero, np.float32(0), scale), np.where(zero, np.float32(-most), q)


def search_one_by_one(x: np.ndarray, most: int, passes: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """The same, for few bits: one scale, after which each q changes if the error becomes smaller."""
    largest, zero = largest_of(x)
    weights = x * x
    xw = weights * x
    q = nearest_in(np.float32(-most) / largest * x, -most, most - 1)
    xq, qq = add_rows(xw * q), add_rows(weights * q * q)
    for row in [*range(len(x))] * passes:
        rest_xq, rest_qq = xq - xw[row] * q[row], qq - weights[row] * q[row] * q[row]
        new = nearest_in(x[row] * rest_qq / rest_xq, -most, most - 1)
        new_xq, new_qq = rest_xq + xw[row] * new, rest_qq + weights[row] * new * new
        better = (rest_xq > 0) & (new != q[row]) & (new_qq > 0)
        better &= new_xq * new_xq * qq > xq * xq * new_qq
        q[row] = np.where(better, new, q[row])
        xq, qq = np.where(better, new_xq, xq), np.where(better, new_qq, qq)
    scale = np.where(qq > 0, xq / qq, np.float32(0))
    return np.where(zero, np.float32(0), scale), np.where(zero, np.float32(-most), q)


def search_with_offset(
    x: np.ndarray, weights: np.ndarray, most: int, first: float, steps: int, absolute: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale, offset and q of each column for x = scale q - offset, with q from 0 to `most`, offset >= 0.

    The range from -offset to the greatest x is mapped to most + first, + 0.1, + 0.2 ... in turn. Each gives
    a q, and a regression for this q scale and offset; those of the smallest error are kept, and the offset is
    used for the next q. `absolute`: the error is a sum of magnitudes, not of squares.
    """
    least, greatest = np.minimum(x.min(axis=0), 0), x.max(axis=0)
    total, total_x = add_rows(weights), add_rows(weights * x)

    def error_of(scale: np.ndarray, start: np.ndarray, q: np.ndarray) -> np.ndarray:
        difference = scale * q + start - x
        return add_rows(weights * (np.abs(difference) if absolute else difference * difference))

    inverse = np.float32(most) / (greatest - least)
    scale, start = np.float32(1) / inverse, least
    q = nearest_in(inverse * (x - start), 0, most)
    error = error_of(scale, start, q)
    for i in range(steps + 1):
        inverse = (np.float32(first) + np.float32(0.1) * np.float32(i) + np.float32(most)) / (
            greatest - start
        )
        tried = nearest_in(inverse * (x - start), 0, most)
        new_scale, new_start, determinant = _regress(x, weights, tried, total, total_x)
        new_error = error_of(new_scale, new_start, tried)
        better = (determinant > 0) & (new_error < error)
        scale, start = np.where(better, new_scale, scale), np.where(better, new_start, start)
        q, error = np.where(better, tried, q), np.where(better, new_error, error)
    flat = greatest == least
    scale, q = np.where(flat, np.float32(0), scale), np.where(flat, np.float32(0), q)
    return scale, -np.where(flat, least, start), q


def _regress(
    x: np.ndarray, weights: np.ndarray, q: np.ndarray, total: np.ndarray, total_x: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scale and start <= 0 of the weighted least squares x = scale q + start, and the determinant."""
    by_q = weights * q
    sum_q, sum_qq, sum_xq = add_rows(by_q), add_rows(by_q * q), add_rows(by_q * x)
    determinant = total * sum_qq - sum_q * sum_q
    scale = (total * sum_xq - total_x * sum_q) / determinant
    start = (sum_qq * total_x - sum_q * sum_xq) / determinant
    above = start > 0
    return np.where(above, sum_xq / sum_qq, scale), np.where(above, np.float32(0), start), determinant
