"""Attention on arrays as they lie in memory, into `out`, and on wrong ones."""

import numpy as np
import pytest
from accuracy import assert_agrees
from attention_cases import attends, check, exact, sample
from targets_with import of_dtype


@attends
@pytest.mark.parametrize("t", (1, 20, 50))
@of_dtype
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
@of_dtype
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
@of_dtype
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
@of_dtype
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
    (ValueError, r"attention: sinks has shape \(2, 4\), expected \(h\)", {"sinks": (2, 4)}),
    (ValueError, r"attention: sinks has shape \(3,\), expected \(h\) with h=4", {"sinks": (3,)}),
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
