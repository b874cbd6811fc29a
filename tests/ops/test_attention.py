"""Attention, on every backend that has it, against its definition in float64 and against PyTorch's."""

import ml_dtypes
import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from attention_cases import attends, check, exact, sample, visible
from targets_with import NAMES, of_dtype, on


@attends
@of_dtype
@pytest.mark.parametrize("s", (1, 3, 8, 16, 17, 31, 127, 128, 129, 300))
@pytest.mark.parametrize("t", (1, 2, 5, 16, 50))
@pytest.mark.parametrize("h, g", [(1, 1), (9, 3), (8, 2), (7, 1)])
def test_agrees_with_definition(h, g, t, s, dtype, reached):
    check(reached, *sample(h, g, t, s, dtype=dtype))
    check(reached, *sample(h, g, t, s, dtype=dtype), causal=True)


@attends
@of_dtype
@pytest.mark.parametrize("d, e", [(1, 1), (3, 5), (8, 4), (16, 17), (33, 31), (64, 128), (80, 64), (256, 8)])
@pytest.mark.parametrize("t", (1, 20))
def test_any_length_of_queries_and_of_values(t, d, e, dtype, reached):
    check(reached, *sample(t=t, d=d, e=e, s=45, dtype=dtype), causal=True)


@attends
@pytest.mark.parametrize("kv_dtype", DTYPES, ids=NAMES.get)
@of_dtype
@pytest.mark.parametrize("t", (1, 20))
def test_a_cache_of_another_dtype(t, dtype, kv_dtype, reached):
    check(reached, *sample(t=t, d=36, e=20, dtype=dtype, kv_dtype=kv_dtype))


@attends
@pytest.mark.parametrize(
    "h, g, t", [(1, 1, 1), (3, 1, 1), (4, 1, 2), (12, 3, 1), (6, 1, 1), (32, 1, 1), (1, 1, 64)]
)
def test_keys_shared_out_and_merged(h, g, t, reached):
    """So many keys for so few rows that threads share the keys."""
    check(reached, *sample(h, g, t, 6000, 64, batch=()))
    check(reached, *sample(h, g, t, 6000, 64, batch=()), causal=True, window=1500)


# Which keys a query sees


@attends
@pytest.mark.parametrize("h, t, s", [(1, 1, 9), (2, 4, 7), (4, 20, 70), (2, 70, 20), (1, 9, 1), (3, 40, 40)])
def test_causal_aligns_the_last_query_to_the_last_key(h, t, s, reached):
    q, k, v = sample(h, 1, t, s)
    result = reached.attention(q, k, v, causal=True)
    assert_agrees(result, exact(q, k, v, mask=visible(t, s, causal=True)), np.float32)
    if t > s:  # these stand before the first key
        assert (result[..., : t - s, :] == 0).all()
    else:
        alone = reached.attention(q[..., -1:, :], k, v)
        np.testing.assert_allclose(result[..., -1:, :], alone, rtol=1e-5)


@attends
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("window", (1, 2, 15, 16, 129, 199, 200, 201, 10**9, 2**70))
@pytest.mark.parametrize("t, s", [(1, 200), (3, 200), (60, 200), (200, 200), (200, 60)])
def test_window(t, s, window, causal, reached):
    q, k, v = sample(2, 1, t, s, batch=())
    check(reached, q, k, v, window=window, causal=causal)
    if window == 1 and causal and t <= s:  # only itself
        np.testing.assert_allclose(
            reached.attention(q, k, v, window=1, causal=True), np.broadcast_to(v[:, s - t :], q.shape), 1e-6
        )


MASK_SHAPES = (
    (37,),
    (5, 37),
    (1, 37),
    (5, 1),
    (1,),
    (),
    (4, 1, 37),
    (4, 5, 37),
    (2, 1, 1, 37),
    (2, 4, 5, 37),
    (2, 1, 5, 1),
)


@attends
@pytest.mark.parametrize("kind", (bool, *DTYPES), ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("shape", MASK_SHAPES, ids=str)
@pytest.mark.parametrize("t", (5, 45))
def test_masks_broadcast(t, shape, kind, reached):
    shape = tuple(t if n == 5 else n for n in shape)
    rng = np.random.default_rng(4)
    keep = rng.random(shape) < 0.7
    mask = keep if kind is bool else np.where(keep, rng.standard_normal(shape), -np.inf).astype(kind)
    for dtype in DTYPES:
        check(reached, *sample(t=t, dtype=dtype), mask=np.asarray(mask))
    check(reached, *sample(t=t), mask=np.asarray(mask), causal=True, softcap=3.0, window=30)


@attends
@pytest.mark.parametrize("t", (2, 30))
def test_rows_without_a_key_give_zeros(t, reached):
    q, k, v = sample(t=t)
    keep = np.ones((t, 37), bool)
    keep[1] = False
    for mask in (keep, np.where(keep, np.float32(0), np.float32(-np.inf))):
        result = reached.attention(q, k, v, mask)
        assert (result[..., 1, :] == 0).all()
        assert_agrees(result, exact(q, k, v, mask), np.float32)
    assert (reached.attention(q, k, v, np.zeros((), bool)) == 0).all()


@attends
@pytest.mark.parametrize("t", (2, 30))
@of_dtype
def test_a_mask_of_the_lowest_number_is_not_infinite(t, dtype, reached):
    """Many models mask so; where all keys have it, softmax gives each of them the same."""
    q, k, v = sample(t=t, dtype=dtype)
    lowest = np.full((t, 37), ml_dtypes.finfo(dtype).min, dtype)
    lowest[0, :5] = 0
    result = reached.attention(q, k, v, lowest)
    assert_agrees(result[..., :1, :], exact(q[..., :1, :], k[..., :5, :], v[..., :5, :]), dtype)
    if dtype != np.float16:  # in which the lowest number leaves a score its digits
        mean = v.astype(np.float64).mean(axis=-2).repeat(2, axis=-2)
        assert_agrees(result[..., 1, :], mean, dtype)


# Numbers that are none


@attends
@pytest.mark.parametrize("t", (3, 30))
def test_nan_and_infinity_stay_in_their_rows(t, reached):
    q, k, v = sample(2, 2, t, 40, batch=())
    q[0, 1, 3] = np.nan
    result = reached.attention(q, k, v)
    assert np.isnan(result[0, 1]).all() and not np.isnan(np.delete(result[0], 1, 0)).any()
    assert not np.isnan(result[1]).any()
    q, k, v = sample(2, 2, t, 40, batch=())
    k[1, 7, 0] = np.nan
    result = reached.attention(q, k, v)
    assert not np.isnan(result[0]).any() and np.isnan(result[1]).all()
    q, k, v = sample(2, 2, t, 40, batch=())
    v[0, 7, 2], v[1, 39, 4] = np.nan, np.inf
    result = reached.attention(q, k, v)
    assert np.isnan(result[0, :, 2]).all() and np.isinf(result[1, :, 4]).all()
    result[0, :, 2] = result[1, :, 4] = 0
    assert np.isfinite(result).all()


@attends
@pytest.mark.parametrize("t", (3, 30))
@pytest.mark.parametrize("special", (np.nan, np.inf))
@pytest.mark.parametrize("key", (0, 5, 199))
def test_nan_and_infinity_in_a_mask(key, special, t, reached):
    q, k, v = sample(2, 2, t, 200, batch=())
    mask = np.zeros((t, 200), np.float32)
    mask[1, key] = special
    result = reached.attention(q, k, v, mask)
    assert np.isnan(result[:, 1]).all() and not np.isnan(np.delete(result, 1, 1)).any()


@attends
@pytest.mark.parametrize("t", (3, 30))
def test_a_hidden_key_may_be_anything_finite(t, reached):
    q, k, v = sample(2, 2, t, 40, batch=())
    expected = exact(q, k[:, :29], v[:, :29])
    k[:, 29:], v[:, 29:] = 3e38, -1e38
    assert_agrees(reached.attention(q, k, v, np.arange(40) < 29), expected, np.float32)


@attends
@pytest.mark.parametrize("t", (1, 20))
def test_scores_far_apart_and_large(t, reached):
    q, k, v = sample(t=t, s=300, seed=5)
    check(reached, 30 * q, 30 * k, v, scale=0.005)
    k[..., 250, :] = 20 * q[..., ::2, 0, :]  # a late key that outweighs all before
    check(reached, q, k, v)


# Parameters


@attends
@pytest.mark.parametrize("t", (1, 20))
@pytest.mark.parametrize("scale", (0, 0.0, -0.5, 1, 0.125, np.float32(2.5), None))
def test_scale(scale, t, reached):
    check(reached, *sample(t=t), scale=scale)


@attends
@pytest.mark.parametrize("t", (1, 20))
@pytest.mark.parametrize("softcap", (0.5, 5, 50.0, 1e4))
@pytest.mark.parametrize("size", (0.01, 1, 10))
def test_softcap(size, softcap, t, reached):
    q, k, v = sample(t=t, s=200)
    mask = np.random.default_rng(1).standard_normal((t, 200)).astype(np.float32)
    check(reached, q * np.float32(size), k, v, softcap=softcap)
    check(reached, q * np.float32(size), k, v, mask=mask, softcap=softcap, scale=0.7)


@attends
@of_dtype
@pytest.mark.parametrize("h, g, t, s, d", [(4, 2, 1, 37, 16), (4, 1, 20, 300, 36), (6, 2, 1, 6000, 64)])
@pytest.mark.parametrize("sinks_dtype", ("float32", "own"))
def test_sinks(sinks_dtype, h, g, t, s, d, dtype, reached):
    """Small ones, and some that are larger than all scores, in a cut of rows and keys of each kind."""
    q, k, v = sample(h, g, t, s, d, dtype=dtype)
    sinks = np.linspace(-3, 9, h).astype(np.float32 if sinks_dtype == "float32" else dtype)
    check(reached, q, k, v, sinks=sinks)
    check(reached, q, k, v, sinks=sinks, causal=True, window=50, softcap=3.0, scale=0.3)


@attends
@pytest.mark.parametrize("t", (2, 20))
def test_sinks_of_rows_without_a_key_and_of_no_size(t, reached):
    q, k, v = sample(t=t, s=20)
    mask = np.ones((t, 20), bool)
    mask[0] = False
    sinks = np.array([0.0, -np.inf, 1e4, -1e4], np.float32)
    result = reached.attention(q, k, v, mask=mask, sinks=sinks)
    assert_agrees(result, exact(q, k, v, mask=mask, sinks=sinks), np.float32)
    assert (result[..., 0, :] == 0).all()
    assert (result[:, 2] == 0).all()  # its sink has all of the softmax
    none = reached.attention(q, k, v, mask=mask)
    np.testing.assert_array_equal(result[:, [1, 3]], none[:, [1, 3]])  # theirs have nothing of it


@attends
@pytest.mark.parametrize("t", (1, 20))
def test_a_sink_that_is_no_number_is_that_of_its_head_alone(t, reached):
    q, k, v = sample(t=t, s=20)
    sinks = np.array([0.0, np.nan, 1.0, 2.0], np.float32)
    result = reached.attention(q, k, v, sinks=sinks)
    assert np.isnan(result[:, 1]).all()
    others = [0, 2, 3]
    assert_agrees(result[:, others], exact(q, k, v, sinks=np.nan_to_num(sinks))[:, others], np.float32)


@attends
def test_parameters_by_place(reached):
    q, k, v = sample(t=5)
    mask = visible(5, 37, window=20)
    expected = exact(q, k, v, mask, True, 0.3, 4.0, 9)
    assert_agrees(reached.attention(q, k, v, mask, True, 0.3, 4.0, 9), expected, np.float32)
    assert_agrees(reached.attention(q, k, v, None, False, None, None, None), exact(q, k, v), np.float32)


# Digits


@on("attention", but="opencl")  # 1.6e-5, for the same reason
@pytest.mark.parametrize("t", (1, 20))
@of_dtype
def test_very_long_keys_keep_their_digits(t, dtype, reached):
    """Added one by one to a float32, 2^17 times 0.1 is off by 1e-4."""
    s = 1 << 17
    q, k = np.zeros((1, t, 4), dtype), np.zeros((1, s, 4), dtype)
    v = np.full((1, s, 3), 0.1).astype(dtype)
    v[..., 1] *= -1
    expected = np.broadcast_to(v[:, :1].astype(np.float64), (1, t, 3))
    assert_agrees(reached.attention(q, k, v), expected, dtype)


# Another project's


@attends
@of_dtype
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("t", (1, 40))
@pytest.mark.parametrize("h, g", [(6, 6), (6, 2)])
def test_agrees_with_pytorch(h, g, t, causal, dtype, reached):
    torch = pytest.importorskip("torch")
    q, k, v = sample(h, g, t, 40, 32, dtype=dtype)
    if causal:
        k, v = (
            np.ascontiguousarray(k[..., :t, :]),
            np.ascontiguousarray(v[..., :t, :]),
        )  # its alignment differs
    wide = [torch.from_numpy(a.astype(np.float64)) for a in (q, k, v)]
    peer = torch.nn.functional.scaled_dot_product_attention
    expected = peer(*wide, is_causal=causal, enable_gqa=True).numpy()
    assert_agrees(reached.attention(q, k, v, causal=causal), expected, dtype)
    mask = np.random.default_rng(9).random((2, 1, t, k.shape[-2])) < 0.7
    expected = peer(*wide, attn_mask=torch.from_numpy(mask), enable_gqa=True, scale=0.4).numpy()
    assert_agrees(reached.attention(q, k, v, mask, scale=0.4), np.nan_to_num(expected), dtype)
