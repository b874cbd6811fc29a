"""Attention and its two halves, on every backend that has them, against their definition in float64."""

import ml_dtypes
import numpy as np
import pytest
from conftest import DTYPES, assert_agrees, targets

BFLOAT16 = ml_dtypes.bfloat16
NAMES = {np.dtype(dtype): np.dtype(dtype).name for dtype in DTYPES}


def having(op, but=""):
    """Every target but those of a backend that is known to fall short; one whose module has no such kernel is
    skipped, with the reason.
    """
    return pytest.mark.parametrize(
        "target",
        [
            pytest.param(
                target,
                marks=pytest.mark.skipif(
                    not hasattr(target.module, op), reason=f"tensor_ops_{target.backend} has no {op}"
                ),
                id=str(target),
            )
            for target in targets()
            if target.backend != but
        ],
    )


attends = having("attention")
by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)


def visible(t, s, causal=False, window=None):
    """Which keys each query may see; the last query stands at the last key."""
    query, key = np.arange(t)[:, None] + s - t, np.arange(s)
    seen = np.ones((t, s), bool)
    if causal:
        seen &= key <= query
    if window is not None:
        seen &= key > query - min(window, s + t)
    return seen


def exact(q, k, v, mask=None, causal=False, scale=None, softcap=None, window=None):
    q, k, v = (np.asarray(a).astype(np.float64) for a in (q, k, v))
    (h, t, d), (g, s) = q.shape[-3:], k.shape[-3:-1]
    if s == 0:
        return np.zeros((*q.shape[:-1], v.shape[-1]))
    k, v = (np.repeat(a, h // g, axis=-3) for a in (k, v))
    scores = q @ np.swapaxes(k, -1, -2) * (d**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if mask is not None and mask.dtype == bool:
        scores = np.where(mask, scores, -np.inf)
    elif mask is not None:
        scores = scores + mask.astype(np.float64)
    scores = np.where(visible(t, s, causal, window), scores, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    e = np.exp(scores - np.where(top == -np.inf, 0, top))
    total = e.sum(axis=-1, keepdims=True)
    return (e / np.where(total == 0, 1, total)) @ v


def sample(h=4, g=2, t=5, s=37, d=16, e=None, batch=(2,), dtype=np.float32, kv_dtype=None, seed=0):
    """q, k and v. The values have a mean, so that a result's scale is not that of its last digits."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((*batch, h, t, d), np.float32).astype(dtype)
    k = rng.standard_normal((*batch, g, s, d), np.float32).astype(kv_dtype or dtype)
    v = (rng.standard_normal((*batch, g, s, e or d), np.float32) + 1).astype(kv_dtype or dtype)
    return q, k, v


def check(module, q, k, v, **options):
    assert_agrees(module.attention(q, k, v, **options), exact(q, k, v, **options), q.dtype)


@attends
@by_dtype
@pytest.mark.parametrize("s", (1, 3, 8, 16, 17, 31, 127, 128, 129, 300))
@pytest.mark.parametrize("t", (1, 2, 5, 16, 50))
@pytest.mark.parametrize("h, g", [(1, 1), (9, 3), (8, 2), (7, 1)])
def test_agrees_with_definition(h, g, t, s, dtype, reached):
    check(reached, *sample(h, g, t, s, dtype=dtype))
    check(reached, *sample(h, g, t, s, dtype=dtype), causal=True)


@attends
@by_dtype
@pytest.mark.parametrize("d, e", [(1, 1), (3, 5), (8, 4), (16, 17), (33, 31), (64, 128), (80, 64), (256, 8)])
@pytest.mark.parametrize("t", (1, 20))
def test_any_length_of_queries_and_of_values(t, d, e, dtype, reached):
    check(reached, *sample(t=t, d=d, e=e, s=45, dtype=dtype), causal=True)


@attends
@pytest.mark.parametrize("kv_dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@by_dtype
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
@by_dtype
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
def test_parameters_by_place(reached):
    q, k, v = sample(t=5)
    mask = visible(5, 37, window=20)
    expected = exact(q, k, v, mask, True, 0.3, 4.0, 9)
    assert_agrees(reached.attention(q, k, v, mask, True, 0.3, 4.0, 9), expected, np.float32)
    assert_agrees(reached.attention(q, k, v, None, False, None, None, None), exact(q, k, v), np.float32)


# Memory


@attends
@pytest.mark.parametrize("t", (1, 20, 50))
@by_dtype
def test_caches_and_projections_as_they_lie(t, dtype, reached):
    rng = np.random.default_rng(6)
    cache = (rng.standard_normal((2, 2, 3, 128, 24)) + 1).astype(dtype)  # k and v of the longest context
    k, v = cache[0, ..., :99, :], cache[1, ..., :99, :]
    packed = rng.standard_normal((2, t, 10, 24)).astype(
        dtype
    )  # heads side by side, as a projection gives them
    q = packed[:, :, :9].swapaxes(1, 2)
    check(reached, q, k, v, causal=True)
    by_token = (rng.standard_normal((2, 99, 3, 40)) + 1).astype(dtype)
    check(reached, q, by_token[..., :24].swapaxes(1, 2), by_token[..., 16:].swapaxes(1, 2), causal=True)
    mask = rng.standard_normal((2 * t, 200)).astype(dtype)[::2, 50:149]
    check(reached, q, k, v, mask=mask)
    check(reached, q[:, ::-1, ::-1], k[:, ::-1, ::-1], v[:, ::-1, ::-1], mask=mask[::-1])


@attends
@pytest.mark.parametrize("t", (1, 20))
@by_dtype
def test_rows_that_share_their_place_in_a_cache(t, dtype, reached):
    rows = (np.random.default_rng(7).standard_normal((300, 2, 1, 1024)) + 1).astype(dtype)
    q = sample(2, 1, t, 1, 64, batch=(), dtype=dtype)[0]
    check(reached, q, rows[:, 0, :, :64].swapaxes(0, 1), rows[:, 1, :, :64].swapaxes(0, 1))


@attends
@pytest.mark.parametrize("t", (1, 20))
def test_leading_axes_that_are_shared(t, reached):
    q, _, _ = sample(t=t, batch=(3, 2))
    _, k, v = sample(batch=())
    expected = exact(q, k, v)
    everywhere = [np.broadcast_to(a, (3, 2, *a.shape)) for a in (k, v)]
    assert_agrees(reached.attention(q, *everywhere), expected, np.float32)
    mask = np.random.default_rng(8).random((3, 1, 1, t, 37)) < 0.6
    assert_agrees(reached.attention(q, *everywhere, mask), exact(q, k, v, mask), np.float32)


@attends
@by_dtype
@pytest.mark.parametrize(
    "h, t, s, d, e", [(1, 1, 1, 1, 1), (3, 3, 5, 3, 7), (4, 1, 33, 16, 17), (2, 25, 140, 20, 33)]
)
def test_writes_inside_out_only_and_leaves_inputs_alone(h, t, s, d, e, dtype, reached):
    arrays = [*sample(h, 1, t, s, d, e, dtype=dtype), np.ones((t, s), bool)]
    before = [a.tobytes() for a in arrays]
    shape = (2, h, t, e)
    count = int(np.prod(shape))
    for offset in (0, 1, 7):
        memory = np.full(count + 64 + offset, 7.5, dtype)
        out = memory[offset + 32 : offset + 32 + count].reshape(shape)
        assert reached.attention(*arrays, causal=True, out=out) is out
        assert_agrees(out, exact(*arrays, causal=True), dtype)
        assert (memory[: offset + 32] == 7.5).all() and (memory[offset + 32 + count :] == 7.5).all()
    assert [a.tobytes() for a in arrays] == before


@attends
@by_dtype
@pytest.mark.parametrize("h, t, s, d, e", [(3, 3, 5, 3, 7), (4, 1, 33, 16, 17), (2, 25, 140, 20, 33)])
def test_out_of_heads_that_lie_beside_each_other(h, t, s, d, e, dtype, target, reached):
    if target.backend != "cpp":
        pytest.skip("other backends fill such an out in Python")
    arrays = sample(h, 1, t, s, d, e, dtype=dtype)
    memory = np.full((2, t, h, e + 2), 7.5, dtype)
    out = memory[..., 1:-1].swapaxes(1, 2)
    assert reached.attention(*arrays, causal=True, out=out) is out
    assert_agrees(out, exact(*arrays, causal=True), dtype)
    assert (memory[..., [0, -1]] == 7.5).all()
    reached.attention(arrays[0], *(a[..., :0, :] for a in arrays[1:]), out=out)
    assert (out == 0).all() and (memory[..., [0, -1]] == 7.5).all()


@attends
@pytest.mark.parametrize("shape", [(2, 4, 0, 5), (0, 4, 3, 5)])
def test_no_keys_give_zeros_and_no_queries_nothing(shape, target):
    b, h, s, d = shape
    q, k, v = sample(h, 2, 3, s, d, e=4, batch=(b,))
    result = target.module.attention(q, k, v, causal=True)
    assert_agrees(result, exact(q, k, v, causal=True), np.float32)
    assert s or (result.size and not result.any())
    for none in ((q[..., :0, :], k, v), (q, k, v[..., :0]), (q[:, :0], k[:, :0], v[:, :0])):
        assert target.module.attention(*none).shape == (b, *none[0].shape[1:3], none[2].shape[-1])


# Digits


@having("attention", but="opencl")  # 1.6e-5, for the same reason
@pytest.mark.parametrize("t", (1, 20))
@by_dtype
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
@by_dtype
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


# Wrong arguments

WRONG = [
    (ValueError, r"attention: q has shape \(5, 16\), expected \(\.\.\. h t d\)", {"q": (5, 16)}),
    (
        ValueError,
        r"attention: k has shape \(2, 37, 8\), expected \(\.\.\. g s d\) with d=16",
        {"k": (2, 37, 8)},
    ),
    (
        ValueError,
        r"attention: v has shape \(2, 36, 16\), expected \(\.\.\. g s e\) with g=2, s=37",
        {"v": (2, 36, 16)},
    ),
    (
        ValueError,
        r"attention: k has shape \(2, 37, 16\), .* h a multiple of g, found h=3, g=2",
        {"q": (3, 5, 16)},
    ),
    (ValueError, r"attention: mask has shape \(5, 36\)", {"mask": (5, 36)}),
    (ValueError, r"attention: mask has shape \(1, 4, 5, 37\)", {"mask": (1, 4, 5, 37)}),
    (ValueError, r"attention: out has shape \(4, 5, 37\), expected \(4, 5, 16\)", {"out": (4, 5, 37)}),
    (ValueError, r"attention: window has value 0, expected 1 or more", {"window": 0}),
    (ValueError, r"attention: window has value -3, expected 1 or more", {"window": -3}),
    (ValueError, r"attention: softcap has value -1\S*, expected more than 0", {"softcap": -1.0}),
    (ValueError, r"attention: softcap has value 0\S*, expected more than 0", {"softcap": 0.0}),
    (TypeError, r"attention: window has type float, expected a whole number or None", {"window": 2.0}),
    (TypeError, r"attention: scale has type str, expected a number or None", {"scale": "1"}),
    (TypeError, r"attention: softcap has type str, expected a number or None", {"softcap": "1"}),
    (TypeError, r"attention: causal has type int, expected a bool", {"causal": 1}),
    (TypeError, r"attention: mask has type list, expected a NumPy array", {"mask": [[True]]}),
    (TypeError, r"attention\(\) missing required argument 'v'", {"v": None}),
]


@attends
@pytest.mark.parametrize("kind, message, wrong", WRONG, ids=lambda value: str(value)[:40])
def test_wrong_arguments(kind, message, wrong, target):
    q, k, v = sample(batch=())
    arguments = {"q": q, "k": k, "v": v}
    for name, value in wrong.items():
        arguments[name] = np.ones(value, np.float32) if isinstance(value, tuple) else value
    with pytest.raises(kind, match=message):
        target.module.attention(**{name: a for name, a in arguments.items() if name != "v" or a is not None})


@attends
def test_dtypes_that_do_not_go_together(target):
    q, k, v = sample(batch=())
    with pytest.raises(TypeError, match="attention: v has dtype float16, expected float32"):
        target.module.attention(q, k, v.astype(np.float16))
    with pytest.raises(
        TypeError, match="attention: q has dtype float64, expected float32, float16 or bfloat16"
    ):
        target.module.attention(q.astype(np.float64), k, v)
    with pytest.raises(TypeError, match="attention: mask has dtype int8, expected bool, float32"):
        target.module.attention(q, k, v, np.ones((5, 37), np.int8))


@attends
def test_out_may_not_overlap_an_input(target):
    q, k, v = sample(batch=())
    with pytest.raises(ValueError, match="attention: out overlaps q, expected memory of its own"):
        target.module.attention(q, k, v, out=q)


# The two halves, for one query


@having("attention_scores")
@pytest.mark.parametrize("kv_dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@by_dtype
@pytest.mark.parametrize("s, d", [(1, 1), (3, 17), (16, 64), (17, 5), (127, 80), (129, 64), (4099, 128)])
def test_attention_scores(s, d, dtype, kv_dtype, reached):
    rng = np.random.default_rng(10)
    query = rng.standard_normal(d).astype(dtype)
    keys = rng.standard_normal((s, 3, d)).astype(kv_dtype)[:, 1]
    expected = keys.astype(np.float64) @ query.astype(np.float64)
    assert_agrees(reached.attention_scores(query, keys), expected, query.dtype)
    memory = np.full(s + 32, 7.5, dtype)
    out = memory[16:-16]
    assert reached.attention_scores(query, keys, scale=0.25, out=out) is out
    assert_agrees(out, 0.25 * expected, query.dtype)
    assert (memory[:16] == 7.5).all() and (memory[-16:] == 7.5).all()


@having("weighted_sum_rows")
@pytest.mark.parametrize("kv_dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@by_dtype
@pytest.mark.parametrize("s, d", [(1, 1), (3, 17), (16, 64), (17, 5), (127, 80), (129, 64), (4099, 130)])
def test_weighted_sum_rows(s, d, dtype, kv_dtype, reached):
    rng = np.random.default_rng(11)
    weights = rng.random(s).astype(dtype)
    matrix = (rng.standard_normal((s, 3, d)) + 1).astype(kv_dtype)[:, 1]
    expected = weights.astype(np.float64) @ matrix.astype(np.float64)
    assert_agrees(reached.weighted_sum_rows(weights, matrix), expected, weights.dtype)
    memory = np.full(d + 32, 7.5, dtype)
    out = memory[16:-16]
    assert reached.weighted_sum_rows(weights, matrix, out=out) is out
    assert_agrees(out, expected, weights.dtype)
    assert (memory[:16] == 7.5).all() and (memory[-16:] == 7.5).all()


@having("weighted_sum_rows", but="opencl")  # 3.9e-5 on 2^17 rows: their sum is one float32
def test_long_weighted_sums_keep_their_digits(reached):
    weights, matrix = np.full(1 << 20, 0.1, np.float32), np.ones((1 << 20, 5), np.float32)
    expected = np.full(5, weights[0].astype(np.float64) * (1 << 20))
    assert_agrees(reached.weighted_sum_rows(weights, matrix), expected, np.float32)


@having("attention_scores")
def test_halves_of_nothing(target):
    none = np.ones((0, 4), np.float32)
    assert target.module.attention_scores(np.ones(4, np.float32), none).shape == (0,)
    assert target.module.weighted_sum_rows(np.ones(0, np.float32), none).tolist() == [0] * 4
    assert target.module.attention_scores(none[:, 0], np.ones((3, 0), np.float32)).tolist() == [0] * 3


@having("attention_scores")
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
