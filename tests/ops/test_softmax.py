"""Corner cases of softmax: scales, masks of every dtype and how they broadcast."""

import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from targets_with import LENGTHS, NAMES, normal, of_dtype, on


def softmax(x):
    top = x.max(-1, keepdims=True)
    e = np.exp(x - np.where(top == -np.inf, 0, top))
    total = e.sum(-1, keepdims=True)
    return e / np.where(total == 0, 1, total)


@on("softmax", parameters=("mask",))
@of_dtype
@pytest.mark.parametrize("scale", (0.125, 3.0, -0.5, 0.0))
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_scales(target, dtype, scale, length, reached):
    x = normal((3, length), dtype)
    assert_agrees(reached.softmax(x, scale), softmax(x.astype(np.float64) * scale), dtype)


MASKS = {**{f"{NAMES[d]} mask": d for d in DTYPES}, "bool mask": np.bool_}


def mask_of(shape, dtype):
    rng = np.random.default_rng(5)
    kept = rng.random(shape) < 0.6
    if dtype == np.bool_:
        return kept, np.where(kept, 0.0, -np.inf)
    mask = np.where(kept, rng.standard_normal(shape), -np.inf).astype(dtype)
    return mask, mask.astype(np.float64)


@on("softmax", parameters=("mask",))
@of_dtype
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("length", LENGTHS)
def test_softmax_masks(target, dtype, kind, length, reached):
    x = normal((2, 3, length), dtype)
    mask, added = mask_of((3, length), MASKS[kind])
    exact = softmax(x.astype(np.float64) * 0.3 + added)
    result = reached.softmax(x, 0.3, mask)
    assert_agrees(result, exact, dtype)
    assert not result[np.broadcast_to(added == -np.inf, x.shape)].any()
    assert reached.softmax(x, scale=0.3, mask=mask, out=x) is x
    assert_agrees(x, exact, dtype)


@on("softmax", parameters=("mask",))
@pytest.mark.parametrize(
    "leading",
    [(), (1,), (5,), (1, 1), (4, 1), (3, 1, 1), (3, 1, 5), (2, 1, 4, 1), (2, 3, 4, 5), (1, 3, 1, 5)],
)
@pytest.mark.parametrize("kind", ("float32 mask", "bool mask"))
def test_masks_broadcast_over_leading_axes(target, kind, leading, reached):
    x = normal((2, 3, 4, 5, 7), np.float32)
    mask, added = mask_of((*leading, 7), MASKS[kind])
    assert_agrees(reached.softmax(x, mask=mask), softmax(x.astype(np.float64) + added), np.float32)


@on("softmax", parameters=("mask",))
def test_masks_broadcast_over_rows_shared_among_threads(target, reached):
    x = normal((6, 50, 600), np.float32)
    for leading in ((50,), (6, 1), (1, 1), (6, 50)):
        mask, added = mask_of((*leading, 600), np.bool_)
        assert_agrees(reached.softmax(x, mask=mask), softmax(x.astype(np.float64) + added), np.float32)


@on("softmax", parameters=("mask",))
def test_rows_without_a_kept_element_are_zero(target, reached):
    x = normal((3, 40), np.float32)
    keep = np.ones((3, 40), bool)
    keep[1] = False
    assert not reached.softmax(x, mask=keep)[1].any()
    added = np.where(keep, 0, -np.inf).astype(np.float32)
    result = reached.softmax(x, mask=added)
    assert not result[1].any() and np.allclose(result[[0, 2]].sum(-1), 1)


@on("softmax", parameters=("mask",))
def test_what_a_bool_mask_leaves_out_does_not_matter(target, reached):
    x = normal((2, 40), np.float32)
    keep = np.arange(40) < 33
    expected = reached.softmax(np.ascontiguousarray(x[:, keep]))
    for hidden in (np.nan, np.inf, 3e38):
        x[:, ~keep] = hidden
        result = reached.softmax(x, mask=keep)
        assert not result[:, ~keep].any()
        np.testing.assert_allclose(result[:, keep], expected, rtol=1e-6)


@on("softmax", parameters=("mask",))
@pytest.mark.parametrize("kind", MASKS)
def test_nan_among_masked_rows(target, kind, reached):
    x = normal((2, 9001), np.float32)
    x[1, 8999] = np.nan
    mask = np.ones(9001, MASKS[kind])
    result = reached.softmax(x, mask=mask)
    assert np.isnan(result[1]).all() and not np.isnan(result[0]).any()


@on("softmax", parameters=("mask",), only="cpp")  # others make copies of views in Python
def test_masks_are_read_from_views(target, reached):
    x = normal((4, 7, 64), np.float32)
    mask, added = mask_of((50, 100), np.bool_)
    exact = softmax(x.astype(np.float64) + added[3:17:2, 5:69])
    assert_agrees(reached.softmax(x, mask=mask[3:17:2, 5:69]), exact, np.float32)
    with pytest.raises(ValueError, match=r"^softmax: mask has strides .*, expected the last axis contiguous"):
        reached.softmax(x, mask=mask[:7, 5 : 5 + 128 : 2][:, :64].T)
