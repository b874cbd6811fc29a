"""The two halves of attention, for one query: attention_scores and weighted_sum_rows."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from targets_with import NAMES, of_dtype, on


def check_between_guards(function: Callable, exact: np.ndarray, dtype: np.dtype) -> None:
    """The function writes its result into `out`, and nothing beside it."""
    memory = np.full(exact.size + 32, 7.5, dtype)
    out = memory[16:-16]
    assert function(out=out) is out
    assert_agrees(out, exact, dtype)
    assert (memory[:16] == 7.5).all() and (memory[-16:] == 7.5).all()


@on("attention_scores")
@pytest.mark.parametrize("kv_dtype", DTYPES, ids=NAMES.get)
@of_dtype
@pytest.mark.parametrize("s, d", [(1, 1), (3, 17), (16, 64), (17, 5), (127, 80), (129, 64), (4099, 128)])
def test_attention_scores(s, d, dtype, kv_dtype, reached):
    rng = np.random.default_rng(10)
    query = rng.standard_normal(d).astype(dtype)
    keys = rng.standard_normal((s, 3, d)).astype(kv_dtype)[:, 1]
    expected = keys.astype(np.float64) @ query.astype(np.float64)
    assert_agrees(reached.attention_scores(query, keys), expected, query.dtype)
    scores = partial(reached.attention_scores, query, keys, scale=0.25)
    check_between_guards(scores, 0.25 * expected, query.dtype)


@on("weighted_sum_rows")
@pytest.mark.parametrize("kv_dtype", DTYPES, ids=NAMES.get)
@of_dtype
@pytest.mark.parametrize("s, d", [(1, 1), (3, 17), (16, 64), (17, 5), (127, 80), (129, 64), (4099, 130)])
def test_weighted_sum_rows(s, d, dtype, kv_dtype, reached):
    rng = np.random.default_rng(11)
    weights = rng.random(s).astype(dtype)
    matrix = (rng.standard_normal((s, 3, d)) + 1).astype(kv_dtype)[:, 1]
    expected = weights.astype(np.float64) @ matrix.astype(np.float64)
    assert_agrees(reached.weighted_sum_rows(weights, matrix), expected, weights.dtype)
    check_between_guards(partial(reached.weighted_sum_rows, weights, matrix), expected, weights.dtype)


@on("weighted_sum_rows", but="opencl")  # 3.9e-5 on 2^17 rows: their sum is one float32
def test_long_weighted_sums_keep_their_digits(reached):
    weights, matrix = np.full(1 << 20, 0.1, np.float32), np.ones((1 << 20, 5), np.float32)
    expected = np.full(5, weights[0].astype(np.float64) * (1 << 20))
    assert_agrees(reached.weighted_sum_rows(weights, matrix), expected, np.float32)


@on("attention_scores")
def test_halves_of_nothing(target):
    none = np.ones((0, 4), np.float32)
    assert target.module.attention_scores(np.ones(4, np.float32), none).shape == (0,)
    assert target.module.weighted_sum_rows(np.ones(0, np.float32), none).tolist() == [0] * 4
    assert target.module.attention_scores(none[:, 0], np.ones((3, 0), np.float32)).tolist() == [0] * 3


@on("attention_scores")
def test_halves_with_wrong_shapes(target):
    ones = np.ones((3, 4), np.float32)
    with pytest.raises(
        ValueError, match=r"attention_scores: keys has shape \(3, 4\), expected \(s d\) with d=3"
    ):
        target.module.attention_scores(ones[:, 0].copy(), ones)
    with pytest.raises(
        ValueError, match=r"weighted_sum_rows: matrix has shape \(3, 4\), expected \(s d\) with s=4"
    ):
        target.module.weighted_sum_rows(ones[0], ones)
    with pytest.raises(ValueError, match=r"weighted_sum_rows: weights has shape \(3, 4\), expected \(s\)"):
        target.module.weighted_sum_rows(ones, ones)
