"""Every op, on every backend and variant that runs here, against its own definition in float64."""

import math
from contextlib import contextmanager
from functools import cache
from itertools import combinations, product

import ml_dtypes
import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from environment import ALL
from targets import targets

from airllm.tensor_ops import OPS

# Lengths around every vector width (4, 8, 16 lanes), a tile's edge, and rows too long for a cache.
LENGTHS = (1, 3, 4, 5, 8, 15, 16, 17, 31, 33, 64, 100, 257, 4099, 9001)
BATCHES = ((), (3,), (2, 2))
# Of two long axes of a cache, the one over which there is no sum: both would be gigabytes.
SHORTER = {
    "attention": {"d": 130, "s": 700},
    "attention_scores": {"s": 700},
    "weighted_sum_rows": {"d": 700},
}
ELEMENTWISE = ("silu", "gelu")
BY_ROW = ("silu", "gelu", "softmax", "rms_norm")


def sizes(length, batch=()):
    """Sizes of named axes: a length where it may be long, and others that are no multiple of anything."""
    return {
        "batch": batch,
        "d": length,
        "r": length // 2,
        "m": 1 + length % 7,
        "k": min(length, 300),
        "n": min(length, 600) + 1,
        "h": 4,
        "g": 2,
        "t": 1 + length % 5,
        "s": length,
        "e": min(length, 130) + 1,
        "v": 9,
    }


def sizes_of(op, length, batch=()):
    return sizes(length, batch) | {axis: min(length, most) for axis, most in SHORTER.get(op.name, {}).items()}


def sample(op, dtype, length, batch=(2,), seed=0):
    """Arrays of an op, as (those that must be given, those that may be)."""
    batch = (*batch, length) if op.operands[0].axes == ("...",) and op.operands[0].kind == "own" else batch
    axes = sizes_of(op, length, batch)
    return op.sample(np.random.default_rng(seed), dtype, **axes), op.sample_optional(
        np.random.default_rng(seed + 1), dtype, **axes
    )


# The ops that a table can test: floats in and out. Those of stored formats have tests of their own.
FLOATS = {
    name: op for name, op in OPS.items() if not {"quantized"} & {o.kind for o in (*op.operands, *op.outs)}
}


def pytest_generate_tests(metafunc):
    """`target` goes over all backends and variants; `op`, for each, over those that it has a kernel for."""
    if "op" in metafunc.fixturenames:
        chosen = next((m.args for m in metafunc.definition.iter_markers("ops")), list(FLOATS))
        cases = [(t, OPS[name]) for name in chosen for t in targets() if hasattr(t.module, name)]
        metafunc.parametrize("target,op", cases, ids=[f"{t}-{op.name}" for t, op in cases])
    elif "target" in metafunc.fixturenames:
        metafunc.parametrize("target", targets(), ids=str)


def assert_all_agree(actual, exact, dtype):
    """For an op of one result or of several."""
    several = isinstance(exact, tuple)
    for a, b in zip(actual if several else (actual,), exact if several else (exact,), strict=True):
        assert_agrees(a, b, dtype)


def batches_of(dtype, length):
    """Every pair of a dtype, a batch and a length meets in one of these; all three with AIRLLM_TEST_ALL=1."""
    turn = DTYPES.index(dtype) + LENGTHS.index(length)
    return BATCHES if ALL else (BATCHES[turn % len(BATCHES)],)


def test_every_pair_of_a_dtype_a_batch_and_a_length_meets():
    table = [(d, batch, length) for d in DTYPES for length in LENGTHS for batch in batches_of(d, length)]
    axes = (DTYPES, BATCHES, LENGTHS)
    for a, b in combinations(range(3), 2):
        assert {(row[a], row[b]) for row in table} == set(product(axes[a], axes[b]))


@pytest.mark.whole_table
@pytest.mark.parametrize("length", LENGTHS)
def test_agrees_with_definition(op, length, reached):
    for dtype in DTYPES:
        for batch in batches_of(dtype, length):
            leading = batch if any(o.leads for o in op.operands) else ()
            for args, given, exact in expected(op.name, dtype, length, leading):
                actual = getattr(reached, op.name)(*args, **given)
                with about(f"{np.dtype(dtype)}, batch {leading}, optional {list(given)}"):
                    assert_all_agree(actual, exact, dtype)


@cache  # every backend and instruction set asks for the same, and float64 takes longer than their kernels
def expected(name, dtype, length, leading):
    """(arrays, optional arrays, result in float64), once without and once with what may be left out."""
    args, optional = sample(OPS[name], dtype, length, leading)
    return [
        (args, given, OPS[name].exact(*args, **given)) for given in (({}, optional) if optional else ({},))
    ]


@contextmanager
def about(case):
    """Puts the case before what an assertion says."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{case}: {error}") from error


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=lambda d: np.dtype(d).name)
def test_rms_norm_takes_a_float32_weight(dtype, reached):
    x, weight = OPS["rms_norm"].sample(np.random.default_rng(1), dtype, batch=(3,), d=77)
    weight = weight.astype(np.float32) + np.float32(1e-3)
    assert_agrees(reached.rms_norm(x, weight), OPS["rms_norm"].exact(x, weight), dtype)


def test_rms_norm_takes_eps_by_name_and_place(reached):
    x, weight = OPS["rms_norm"].sample(np.random.default_rng(1), batch=(3,), d=8)
    exact = OPS["rms_norm"].exact(x, weight, eps=0.5)
    assert_agrees(reached.rms_norm(x, weight, eps=0.5), exact, np.float32)
    assert_agrees(reached.rms_norm(x, weight, 0.5), exact, np.float32)


@pytest.mark.parametrize(
    "shape", [(5, 33, 65), (1, 1, 1), (40, 300, 1200), (130, 17, 19), (2, 600, 50), (800, 20, 33)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_matmul_with_a_shared_b(shape, dtype, reached):
    m, k, n = shape
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((2, m, k)).astype(dtype), rng.standard_normal((k, n)).astype(dtype)
    assert_agrees(reached.matmul(a, b), OPS["matmul"].exact(a, b), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.ops(*BY_ROW)
def test_large_results_and_many_threads_worth_of_rows(op, dtype, reached):
    """Results of large arrays are written around the caches, and rows are unaligned to what that needs."""
    x = np.random.default_rng(3).standard_normal((1100, 8191), np.float32).astype(dtype)
    rest = [np.linspace(-1, 1, 8191, dtype=np.float32)] if op.name == "rms_norm" else []
    actual = getattr(reached, op.name)(x, *rest)
    for rows in (slice(0, 3), slice(548, 553), slice(1097, 1100)):
        assert_agrees(actual[rows], op.exact(x[rows], *rest), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_every_float16_and_bfloat16_value(name, dtype, reached):
    """All 65,536 of them: subnormal, infinite and NaN inputs too, and rounding to nearest even."""
    bits = np.arange(1 << 16, dtype=np.uint16)
    x = bits.view(dtype) if dtype != np.float32 else bits.view(np.float16).astype(np.float32)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        exact = OPS[name].exact(x)
        actual = getattr(reached, name)(x)
    np.testing.assert_array_equal(np.isnan(actual.astype(np.float64)), np.isnan(exact))
    finite = np.isfinite(exact) & (np.abs(exact) < float(ml_dtypes.finfo(dtype).max))
    steps = np.abs(actual.astype(np.float64)[finite] - exact[finite]) / ulp(exact[finite], dtype)
    assert steps.max() <= {np.float32: 128}.get(dtype, 0.51)  # exp() of -80 makes 80 of one


def ulp(exact, dtype):
    """Distance of a dtype's neighbouring numbers at each exact value, above where exp() underflows."""
    info = ml_dtypes.finfo(dtype)
    floor = max(float(info.smallest_subnormal), 2.0**-118)
    exponent = np.floor(np.log2(np.maximum(np.abs(exact), 1e-300)))
    return np.maximum(2.0 ** (exponent - info.nmant), floor)


@pytest.mark.parametrize("name", BY_ROW)
def test_nan_and_infinity_give_what_the_definition_gives(name, reached):
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 88.0, -88.0, 104.0, -104.0, 1.0]
    rows = np.array([np.roll(np.r_[special[i], np.ones(36)], i) for i in range(len(special))], np.float32)
    rest = [np.ones(37, np.float32)] if name == "rms_norm" else []
    with np.errstate(all="ignore"):
        expected = OPS[name].define(rows, *rest)  # float32, since 3e38 squared is infinite in float32 alone
        actual = getattr(reached, name)(rows, *rest)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    np.testing.assert_allclose(actual, expected, rtol=2e-6, atol=1e-30)


@pytest.mark.parametrize("bits", (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00001, 0x7F800001), ids=hex)
@pytest.mark.parametrize("length", (1, 16, 37, 9001))
@pytest.mark.parametrize("name", BY_ROW)
def test_every_nan_stays_one(name, length, bits, reached):
    """A GPU's own NaN, for one, has all its bits set: arithmetic on bits made a number of it once."""
    rest = [np.ones(length, np.float32)] if name == "rms_norm" else []
    for place in {0, length // 2, length - 1}:
        x = np.zeros((2, length), np.float32)
        x[1, place] = np.uint32(bits).view(np.float32)
        with np.errstate(invalid="ignore"):
            result = getattr(reached, name)(x, *rest)
        assert np.isnan(result[1, place]) and not np.isnan(result[0]).any()
        assert name in ELEMENTWISE or np.isnan(result[1]).all()


@pytest.mark.parametrize("rows", (1, 3, 20))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_long_sums_keep_their_digits(rows, dtype, reached, monkeypatch):
    """Added one by one to a float32, 2^16 times 0.1 is off by 2e-5 and 2^20 times by 1e-2."""
    monkeypatch.setenv("AIRLLM_CUDA_MATMUL", "tiled")  # cuBLAS does not say in what order it adds
    n = 2100 if rows == 1 else 260
    a, b = np.full((rows, 1 << 16), 0.1).astype(dtype), np.ones((1 << 16, n), dtype)
    exact = a[0].astype(np.float64).sum()
    wide = np.asarray(reached.matmul(a, b), np.float64)
    assert np.abs(wide / exact - 1).max() < max(1e-5, float(ml_dtypes.finfo(dtype).eps))


def test_softmax_gives_masked_positions_nothing(reached):
    x = np.array([[0, -np.inf, 1, -np.inf, -1e9], [-np.inf] * 5], np.float32)
    result = reached.softmax(x)
    assert result[0, [1, 3, 4]].tolist() == [0, 0, 0]
    assert math.isclose(result[0].sum(), 1, rel_tol=1e-6)
    assert result[1].tolist() == [0] * 5


class Guarded:
    """An array of a shape at any offset in memory that must stay as it is around it."""

    def __init__(self, shape, dtype, offset):
        count = math.prod(shape)
        self.memory = np.full(count + 64 + offset, 7.5, dtype)
        self.start, self.end = offset + 32, offset + 32 + count
        self.array = self.memory[self.start : self.end].reshape(shape)

    def untouched(self):
        return (self.memory[: self.start] == 7.5).all() and (self.memory[self.end :] == 7.5).all()


@pytest.mark.parametrize("length", (1, 5, 16, 33, 1000))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_writes_inside_out_only_and_leaves_inputs_alone(op, dtype, length, reached):
    args, optional = sample(op, dtype, length)
    before = [a.copy() for a in (*args, *optional.values())]
    exact = op.exact(*args, **optional)
    for offset in (0, 1, 7):  # a result at any alignment
        guarded = [Guarded(shape, dtype, offset) for shape in op.out_shapes(args)]
        out = guarded[0].array if len(guarded) == 1 else tuple(g.array for g in guarded)
        assert getattr(reached, op.name)(*args, **optional, out=out) is out
        assert_all_agree(out, exact, dtype)
        assert all(g.untouched() for g in guarded)
    for a, b in zip((*args, *optional.values()), before, strict=True):
        assert a.tobytes() == b.tobytes()


IN_PLACE = [
    name for name, op in FLOATS.items() if op.operands[0].kind == "own" and op.operands[0].axes == op.out
]


@pytest.mark.parametrize("length", (1, 5, 16, 17, 1000, 70_001))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.ops(*IN_PLACE)
def test_out_may_be_the_input(op, dtype, length, reached):
    args, optional = sample(op, dtype, length)
    exact = op.exact(*args, **optional)
    out = args[0] if len(op.outs) == 1 else tuple(args[: len(op.outs)])
    assert getattr(reached, op.name)(*args, **optional, out=out) is out
    assert_all_agree(out, exact, dtype)


def test_empty_arrays(op, target):
    for batch, length in (((0,), 4), ((2, 0), 0)):
        axes = sizes(length, batch) | {"m": length, "t": length, "k": 3, "n": 4, "e": 4, "s": 4}
        args = op.sample(np.random.default_rng(0), **axes)
        results = getattr(target.module, op.name)(*args)
        for result, shape in zip(op.each(results), op.out_shapes(args), strict=True):
            assert result.shape == shape and result.dtype == np.float32


def test_a_matmul_over_nothing_is_zero(target):
    assert (
        target.module.matmul(np.ones((2, 0), np.float32), np.ones((0, 3), np.float32)).tolist()
        == [[0] * 3] * 2
    )


def test_zero_dimensional_arrays(reached):
    assert_agrees(reached.silu(np.array(1.5, np.float32)), OPS["silu"].exact(np.array(1.5)), np.float32)
