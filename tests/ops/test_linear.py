"""Products with stored weights, and rows of stored tables, on every backend that has them."""

import ml_dtypes
import numpy as np
import pytest
import stored
from conftest import DTYPES, TOLERANCE, assert_agrees, targets

from airllm.formats import FORMATS, Quantized

ROWS = (1, 3, 4, 5, 8, 13, 16, 20)
BLOCKS = (1, 2, 3, 5, 6, 9)  # in a row: around a group of 1, 2 or 4, half a group of 4


def having(op):
    return pytest.mark.parametrize("target", [t for t in targets() if hasattr(t.module, op)], ids=str)


def storing(op, names=tuple(FORMATS)):
    """Every target that has an op, with the formats of weights that its kernel takes."""
    able = [(target, stored.read_by(target.module)) for target in targets() if hasattr(target.module, op)]
    taken = [(target, name) for target, read in able for name in names if name in read or name not in FORMATS]
    return pytest.mark.parametrize("target,name", taken, ids=[f"{name}-{target}" for target, name in taken])


of_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)


def exact(x, weight, bias=None):
    values = weight.dequantize() if isinstance(weight, Quantized) else weight
    product = x.astype(np.float64) @ values.astype(np.float64).T
    return product if bias is None else product + bias.astype(np.float64)


def assert_within(actual, expected, share, dtype=np.float32):
    """Relative L2, and what rounding the result to its dtype adds."""
    assert actual.dtype == dtype and actual.shape == expected.shape
    error = np.linalg.norm(actual.astype(np.float64) - expected) / np.linalg.norm(expected)
    assert error < share + float(ml_dtypes.finfo(dtype).eps), f"{error:.2e}"


@storing("linear")
@of_dtypes
@pytest.mark.parametrize("count", BLOCKS)
def test_within_a_hundredth_of_the_exact_product(count, name, dtype, reached):
    k = count * FORMATS[name].values
    for rows in ROWS:
        weight = stored.blocks(name, (67, k), rows)
        x = np.random.default_rng(rows).standard_normal((rows, k)).astype(dtype)
        assert_within(reached.linear(x, weight), exact(x, weight), 0.01, dtype)


@storing("linear")
@pytest.mark.parametrize("count", BLOCKS)
def test_whole_numbers_that_int8_holds_lose_nothing(count, name, reached):
    """Every block of x has 127 times its scale in it, which makes the others whole steps of it."""
    k, block = count * FORMATS[name].values, FORMATS[name].values
    rng = np.random.default_rng(count)
    for rows in (1, 2, 5, 8, 16):
        weight = stored.blocks(name, (35, k), rows)
        steps = rng.integers(-127, 128, (rows, k))
        steps[:, ::block] = 127
        scales = np.repeat(2.0 ** rng.integers(-3, 3, (rows, count)), block, axis=1)
        assert_agrees(
            reached.linear((steps * scales).astype(np.float32), weight),
            exact(steps * scales, weight),
            np.float32,
        )


@storing("linear")
def test_extreme_codes_and_inputs_do_not_overflow(name, reached):
    of = FORMATS[name]
    for byte in (0x00, 0x7F, 0x80, 0xFF):
        data = np.full((5, 4, of.bytes), byte, np.uint8)
        scales = np.full((5, 4, stored.scales(name)), 0.5)
        weight = Quantized(stored.with_scales(data, name, scales).reshape(5, -1), name)
        for sign in (1, -1):
            x = np.full((3, 4 * of.values), sign * 3.0, np.float32)
            expected = exact(x, weight)
            np.testing.assert_allclose(reached.linear(x, weight), expected, rtol=1e-5, atol=1e-3)


@having("linear")
@of_dtypes
@pytest.mark.parametrize("stored_as", DTYPES, ids=lambda d: "weight_" + np.dtype(d).name)
@pytest.mark.parametrize("k", (1, 3, 4, 8, 15, 16, 17, 33, 257, 4099))
def test_weights_that_are_floats(k, stored_as, dtype, reached):
    rng = np.random.default_rng(k)
    for rows in (1, 2, 5, 8, 9):
        x = rng.standard_normal((rows, k)).astype(dtype)
        weight = rng.standard_normal((19, k)).astype(stored_as)
        assert_agrees(reached.linear(x, weight), exact(x, weight), dtype)


@storing("linear", ("q8_0", "q4_k", None))
@of_dtypes
@pytest.mark.parametrize("rows", (1, 8, 9, 33))
def test_a_bias_of_any_float_is_added(name, rows, dtype, reached):
    x = np.random.default_rng(0).standard_normal((rows, 512)).astype(dtype)
    weight = stored.blocks(name, (70, 512)) if name else np.ones((70, 512), dtype)
    for of_bias in DTYPES:
        bias = np.linspace(-30, 30, 70).astype(of_bias)
        result = reached.linear(x, weight, bias)
        assert_within(result, exact(x, weight, bias), 0.01, dtype)
        without = reached.linear(x, weight)
        difference = result.astype(np.float64) - without.astype(np.float64) - bias.astype(np.float64)
        scale = np.abs(exact(x, weight, bias)).max()
        assert np.abs(difference).max() <= 2 * TOLERANCE[np.dtype(dtype)] * scale


@storing("linear", ("q8_0", "q4_1"))
def test_an_infinite_scale_makes_its_row_infinite(name, reached):
    """Also beside lanes that stand for no block: zero times infinity would be NaN."""
    of, count = FORMATS[name], 6
    data = np.full((count, count, of.bytes), 0x11, np.uint8)
    data[..., : of.bytes % 16] = 0  # the scales, and offsets
    data[range(count), range(count), :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    weight = Quantized(data.reshape(count, -1), name)
    assert (reached.linear(np.ones((1, count * of.values), np.float32), weight) == np.inf).all()


@storing("linear")
def test_long_rows_keep_their_digits(name, reached):
    k = 1 << 16
    weight = stored.blocks(name, (3, k))
    x = np.ones((1, k), np.float32)  # exactly representable
    values = weight.dequantize().astype(np.float64)
    error = np.abs(reached.linear(x, weight)[0] - values.sum(1))
    assert (error <= 1e-6 * np.abs(values).sum(1)).all()


@storing("linear")
@pytest.mark.parametrize("rows", (1, 3, 8))
def test_nan_and_infinity_give_what_the_definition_gives(name, rows, reached):
    weight = stored.blocks(name, (40, 512))
    for special in (np.nan, np.inf, -np.inf):
        x = np.random.default_rng(1).standard_normal((rows, 512)).astype(np.float32)
        x[rows - 1, 300] = special
        with np.errstate(all="ignore"):
            expected = exact(x, weight).astype(np.float32)
            actual = reached.linear(x, weight)
        np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
        np.testing.assert_array_equal(np.isinf(actual), np.isinf(expected))


@storing("linear")
def test_tiny_and_huge_inputs_keep_their_size(name, reached):
    weight = stored.blocks(name, (300, 512))
    for size in (1e-37, 1e-30, 1e30):
        x = (np.random.default_rng(2).standard_normal((2, 512)) * size).astype(np.float32)
        assert_within(reached.linear(x, weight) / np.float32(size), exact(x, weight) / size, 0.01)


@storing("linear", ("q8_0", "q4_0", "q6_k", "f32"))
def test_many_rows_of_weights_on_many_threads(name, reached):
    weight = (
        stored.blocks(name, (3001, 768))
        if name in FORMATS
        else np.random.default_rng(0).standard_normal((3001, 768), np.float32)
    )
    x = np.random.default_rng(3).standard_normal((2, 768), np.float32)
    assert_within(reached.linear(x, weight), exact(x, weight), 0.01)


@storing("linear")
@of_dtypes
def test_writes_inside_out_only_and_reads_nothing_beyond_the_weights(name, dtype, reached):
    """NaN scales before and after the weights would show in the result."""
    k = FORMATS[name].values * 3
    weight = stored.blocks(name, (13, k))
    guard = 5 * weight.data.shape[-1]
    memory = np.full(weight.data.size + 2 * guard, 0xFF, np.uint8)
    memory[guard:-guard] = weight.data.reshape(-1)
    weight = Quantized(memory[guard:-guard].reshape(13, -1), name)
    before = memory.copy()
    for rows in (1, 3, 8):
        x = np.random.default_rng(rows).standard_normal((rows, k)).astype(dtype)
        results = np.full(rows * 13 + 64, 7.5, dtype)
        out = results[32 : 32 + rows * 13].reshape(rows, 13)
        assert reached.linear(x, weight, out=out) is out
        assert_within(out, exact(x, weight), 0.02, dtype)  # 13 numbers are too few for an average
        assert (results[:32] == 7.5).all() and (results[32 + rows * 13 :] == 7.5).all()
    np.testing.assert_array_equal(memory, before)


@storing("linear", ("q4_0", "f32"))
def test_leading_axes_and_empty_arrays(name, target):
    weight = stored.blocks(name, (5, 64)) if name in FORMATS else np.ones((5, 64), np.float32)
    linear = target.module.linear
    assert linear(np.ones((2, 3, 64), np.float32), weight).shape == (2, 3, 5)
    assert linear(np.ones(64, np.float32), weight).shape == (5,)
    assert linear(np.ones((0, 64), np.float32), weight).shape == (0, 5)
    assert linear(np.ones((2, 64), np.float32), weight[:0]).shape == (2, 0)
    nothing = linear(np.ones((2, 0), np.float32), np.ones((3, 0), np.float32), np.arange(3, dtype=np.float32))
    assert nothing.tolist() == [[0, 1, 2], [0, 1, 2]]


@storing("matmul_vec")
@of_dtypes
def test_matmul_vec(name, dtype, reached):
    weight = stored.blocks(name, (300, 512))
    x = np.random.default_rng(0).standard_normal(512).astype(dtype)
    assert_within(reached.matmul_vec(weight, x), exact(x, weight), 0.01, dtype)


@storing("embedding")
@pytest.mark.parametrize("ids_dtype", (np.int32, np.int64))
def test_rows_of_a_quantized_table(name, ids_dtype, reached):
    table = stored.blocks(name, (50, 512))
    ids = np.array([[0, 49, 7], [7, 7, 31]], ids_dtype)
    np.testing.assert_array_equal(reached.embedding(ids, table), table.dequantize()[ids])
    out = np.empty((2, 3, 512), np.float32)
    assert reached.embedding(ids, table, out=out) is out
    np.testing.assert_array_equal(out, table.dequantize()[ids])


@having("embedding")
@of_dtypes
def test_rows_of_a_plain_table(dtype, reached):
    table = np.random.default_rng(0).standard_normal((50, 33)).astype(dtype)
    ids = np.arange(49, -1, -1)
    result = reached.embedding(ids, table)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, table[ids])


@having("embedding")
@pytest.mark.parametrize("wrong", (-1, 50, 2**40))
def test_an_id_that_is_no_row_is_an_error(wrong, target):
    table = stored.blocks("q8_0", (50, 64))
    with pytest.raises(ValueError, match=f"embedding: ids has value {wrong}, expected 0 to 49"):
        target.module.embedding(np.array([3, wrong, 4]), table)
