"""Corner cases of apply_rope: widths, tables of other dtypes and how they broadcast."""

import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from targets_with import NAMES, normal, of_dtype, on, wide


def rotate(x, cos, sin, interleaved):
    r = cos.shape[-1]
    pairs = (slice(0, 2 * r, 2), slice(1, 2 * r, 2)) if interleaved else (slice(0, r), slice(r, 2 * r))
    a, b = (x[..., each] for each in pairs)
    result = x.copy()
    result[..., pairs[0]] = a * cos - b * sin
    result[..., pairs[1]] = b * cos + a * sin
    return result


def angles(shape, dtype, seed=0):
    turns = np.random.default_rng(seed).uniform(0, 2 * np.pi, shape)
    return np.cos(turns).astype(dtype), np.sin(turns).astype(dtype)


@on("apply_rope")
@of_dtype
@pytest.mark.parametrize("interleaved", (False, True), ids=("halves", "neighbours"))
@pytest.mark.parametrize(("d", "r"), [(2, 1), (3, 1), (8, 4), (9, 3), (16, 8), (17, 8), (30, 15), (32, 16)])
def test_small_rotary_widths(target, dtype, d, r, interleaved, reached):
    check_rope(reached, dtype, (2, 3, 5, d), (5, r), interleaved)


@on("apply_rope")
@of_dtype
@pytest.mark.parametrize("interleaved", (False, True), ids=("halves", "neighbours"))
@pytest.mark.parametrize(
    ("d", "r"), [(64, 32), (66, 33), (80, 16), (96, 17), (128, 64), (256, 47), (1000, 500)]
)
def test_rotary_widths(target, dtype, d, r, interleaved, reached):
    check_rope(reached, dtype, (2, 3, 5, d), (5, r), interleaved)


def check_rope(module, dtype, shape, table, interleaved, table_dtype=np.float32):
    x, (cos, sin) = normal(shape, dtype), angles(table, table_dtype)
    exact = rotate(*wide(x, cos, sin), interleaved)
    memory = np.full(x.size + 64, 7.5, dtype)
    out = memory[32:-32].reshape(shape)
    assert module.apply_rope(x, cos, sin, interleaved, out=out) is out
    assert_agrees(out, exact, dtype)
    assert (memory[:32] == 7.5).all() and (memory[-32:] == 7.5).all()
    copied = slice(2 * cos.shape[-1], None)
    np.testing.assert_array_equal(out[..., copied], x[..., copied])
    assert module.apply_rope(x, cos, sin, interleaved=interleaved, out=x) is x
    assert_agrees(x, exact, dtype)


@on("apply_rope")
@of_dtype
@pytest.mark.parametrize("interleaved", (False, True), ids=("halves", "neighbours"))
@pytest.mark.parametrize("table_dtype", DTYPES, ids=NAMES.get)
def test_tables_have_a_dtype_of_their_own(target, dtype, table_dtype, interleaved, reached):
    check_rope(reached, dtype, (3, 5, 80), (5, 40), interleaved, table_dtype)
    check_rope(reached, dtype, (3, 5, 20), (5, 10), interleaved, table_dtype)


@on("apply_rope")
@pytest.mark.parametrize(
    "leading", [(), (1,), (5,), (1, 5), (3, 1), (2, 1, 5), (2, 1, 1), (2, 3, 5), (1, 1, 1)]
)
def test_tables_broadcast_over_leading_axes(target, leading, reached):
    check_rope(reached, np.float32, (2, 3, 5, 64), (*leading, 32), False)


@on("apply_rope")
@pytest.mark.parametrize("shape", [(32, 1, 128), (9, 300, 64), (2, 40, 33, 96)])
def test_tables_broadcast_over_rows_shared_among_threads(target, shape, reached):
    check_rope(reached, np.float32, shape, (shape[-2], shape[-1] // 2), False)


@on("apply_rope")
def test_one_row_has_no_leading_axes(target, reached):
    check_rope(reached, np.float32, (64,), (32,), False)


@on("apply_rope")
def test_nothing_to_turn_is_a_copy(target, reached):
    x, empty = normal((3, 10), np.float32), np.empty((3, 0), np.float32)
    np.testing.assert_array_equal(reached.apply_rope(x, empty, empty), x)


@on("apply_rope")
def test_rope_says_what_is_wrong_with_its_tables(target):
    rope, x = target.module.apply_rope, np.ones((2, 3, 8), np.float32)
    table = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"^apply_rope: cos has shape \(3, 5\), expected \(\.\.\. r\)"):
        rope(x, np.ones((3, 5), np.float32), np.ones((3, 5), np.float32))
    with pytest.raises(ValueError, match=r"^apply_rope: sin has shape \(3, 3\), expected .* with r=4"):
        rope(x, table, table[:, :3].copy())
    with pytest.raises(ValueError, match=r"^apply_rope: cos has shape \(4, 4\), expected \(\.\.\. r\)"):
        rope(x, np.ones((4, 4), np.float32), np.ones((4, 4), np.float32))
    with pytest.raises(TypeError, match=r"^apply_rope: interleaved has type int, expected a bool"):
        rope(x, table, table, 1)


@on("apply_rope")
def test_tables_are_read_from_views(target, reached):
    """A cache is allocated once, for the longest sequence; ops get slices of it."""
    cos, sin = angles((100, 2, 32), np.float32)
    x = normal((4, 7, 64), np.float32)
    part = (slice(90, 83, -1), 1, slice(0, 32))
    exact = rotate(*wide(x, cos[part], sin[part]), False)
    assert_agrees(reached.apply_rope(x, cos[part], sin[part]), exact, np.float32)
