"""Calls that devices fuse: their results, and that they are one launch."""

from typing import Any

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.backends import registry
from airllm.formats import Quantized
from tests.support.engines import device_models
from tests.support.engines.device_models import counts, running

EPS = 0.125
kernels_of_gpus = device_models.kernels_of_gpus


@pytest.fixture(params=("opencl", "webgpu", "kernels of GPUs"))
def ops(request):
    """The ops of a device, and of OpenCL's kernels of GPUs."""
    if request.param == "kernels of GPUs":
        request.getfixturevalue("kernels_of_gpus")
    placed = running("webgpu" if request.param == "webgpu" else "opencl")
    return registry.open_backend(placed).module.device_ops()


@pytest.mark.parametrize("formats", (("q4_0", "q8_0", "q5_1"), ("q8_0", "float32", "q4_0")))
def test_products_of_a_row_with_three_formats(formats, ops):
    """The row is there, or the norm of a sum; the sum and its norm are there afterwards."""
    rng, k = np.random.default_rng(6), 96
    x, y = rng.standard_normal((2, 1, k), np.float32)
    post, norm = rng.standard_normal((2, k), np.float32)
    scale = np.full(1, 0.75, np.float32)
    stored, exact = zip(*(
        weight_of(rng, each, (n, k)) for n, each in zip((7, 5, 9), formats, strict=True)
    ), strict=True)  # fmt: skip
    biases = [rng.standard_normal(len(each), np.float32) for each in stored]
    weights, of_biases = ops.stack(stored), ops.stack(biases)
    there = [ops.to_device(each) for each in (x, y, post, norm, scale)]

    def check(row: Any, wanted: np.ndarray, launches: int = 1) -> None:
        start = launched(ops)
        found = [ops.linear(row, *each) for each in zip(weights, of_biases, strict=True)]
        found = [each.numpy()[0] for each in found]
        if ops.name() == "opencl":
            assert launched(ops) - start == launches
        for one, weight, bias in zip(found, exact, biases, strict=True):
            right = weight @ wanted[0] + bias
            np.testing.assert_allclose(one, right, rtol=1e-5, atol=2e-5 * np.abs(right).max())

    check(there[0], x)
    total = np.add(there[1], ops.rms_norm(there[0], there[2], EPS) * np.float32(0.5))
    total = total * there[4]
    normed = ops.rms_norm(total, there[3], EPS)
    wide = [each.astype(np.float64) for each in (x, y)]
    of_total = (wide[1] + rms(wide[0], post) * 0.5) * 0.75
    check(normed, rms(of_total, norm))
    start = launched(ops)
    np.testing.assert_allclose(total.numpy(), of_total, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(normed.numpy(), rms(of_total, norm), rtol=1e-5, atol=1e-5)
    assert launched(ops) == start
    total = np.add(there[1], ops.rms_norm(there[0], there[2], EPS))
    check(total, wide[1] + rms(wide[0], post))
    np.testing.assert_allclose(total.numpy(), wide[1] + rms(wide[0], post), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("of", ("q4_0", "float32"))
def test_some_products_of_a_row_are_scaled(of, ops):
    """One of several is multiplied in place, as part of their launch. Asked for again, it is the product."""
    rng, k = np.random.default_rng(11), 96
    x, factors = rng.standard_normal((1, k), np.float32), rng.standard_normal(9, np.float32)
    stored, exact = zip(*(weight_of(rng, of, (n, k)) for n in (7, 9)), strict=True)
    there, scale, weights = ops.to_device(x), ops.to_device(factors), ops.stack(stored)
    start = launched(ops)
    second = ops.linear(there, weights[1])
    second *= scale
    near(second.numpy()[0], exact[1] @ x[0] * factors)
    near(ops.linear(there, weights[0]).numpy()[0], exact[0] @ x[0])
    if ops.name() == "opencl":
        assert launched(ops) - start == 1
    near(ops.linear(there, weights[1]).numpy()[0], exact[1] @ x[0])


@pytest.mark.parametrize("used", ("", "gate", "changed"))
@pytest.mark.parametrize("of", ("q4_0", "q5_1", "float32"))
def test_a_gate_times_a_number_is_part_of_the_gated_product(of, used, ops):
    """`used`: the gate is used before, or has other values before it gates."""
    rng, k = np.random.default_rng(12), 96
    x = rng.standard_normal((1, k), np.float32)
    stored, exact = zip(*(weight_of(rng, of, (9, k)) for _ in range(2)), strict=True)
    there, weights = ops.to_device(x), ops.stack(stored)
    start = launched(ops)
    first, up = (ops.linear(there, each) for each in weights)
    gate = first * np.float32(0.5)
    of_gate = exact[0] @ x[0]
    if used == "gate":
        near(gate.numpy()[0], of_gate / 2)
    if used == "changed":
        first += first
    wanted = of_gate / 2 / (1 + np.exp(-of_gate / 2)) * (exact[1] @ x[0])
    near(ops.swiglu(gate, up).numpy()[0], wanted)
    if ops.name() == "opencl" and not used:
        assert launched(ops) - start == 1


@pytest.mark.parametrize("in_place", (False, True))
@pytest.mark.parametrize("formats", (("q4_0", "q4_0"), ("q8_0", "q6_k"), ("float32", "q4_0")))
def test_the_sum_of_two_products_is_one_launch(formats, in_place, ops):
    """Each times a number, or not; rows of two lengths. What one of them reads may get other values."""
    rng, lengths = np.random.default_rng(13), (256, 512)
    rows = [rng.standard_normal((1, k), np.float32) / np.float32(np.sqrt(k)) for k in lengths]
    stored, exact = zip(
        *(weight_of(rng, of, (9, k)) for of, k in zip(formats, lengths, strict=True)), strict=True
    )
    there, weights = [ops.to_device(each) for each in rows], [ops.to_device(each) for each in stored]
    parts = [weight @ row[0] for weight, row in zip(exact, rows, strict=True)]
    for factors in ((1.0, 1.0), (0.5, 1.0), (0.5, 0.25)):
        start = launched(ops)
        products = (ops.linear(row, weight) for row, weight in zip(there, weights, strict=True))
        one, other = (
            each if f == 1 else each * np.float32(f) for each, f in zip(products, factors, strict=True)
        )
        total = np.add(one, other, out=one) if in_place else one + other
        found = (total + total).numpy()[0] / 2
        if ops.name() == "opencl":
            assert launched(ops) - start == 2
        near(found, parts[0] * factors[0] + parts[1] * factors[1])
    one, other = (ops.linear(row, weight) for row, weight in zip(there, weights, strict=True))
    total = one + other
    there[0] += there[0]
    near(total.numpy()[0], sum(parts))
    near(one.numpy()[0], parts[0])


def test_a_product_does_not_wait_beyond_its_layer(ops):
    """A layer ends with a sum. Then the memory of its matrices may get those of another."""
    if ops.name() != "opencl":
        pytest.skip("launches of WebGPU wait")
    rng = np.random.default_rng(14)
    x, residual = (ops.to_device(rng.standard_normal((1, 64), np.float32)) for _ in range(2))
    weight = ops.to_device(rng.standard_normal((64, 64), np.float32))
    for factor in (1, 0.5):
        start = launched(ops)
        change = ops.linear(x, weight) * np.float32(factor)
        total = np.add(residual, change, out=change)
        assert launched(ops) - start == 1
        total.numpy()


def near(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5 * np.abs(wanted).max())


def test_products_are_of_the_values_that_a_row_had(ops):
    """A row that is a sum gets other values before its product is used."""
    rng = np.random.default_rng(9)
    x, y, z = rng.standard_normal((3, 1, 64), np.float32)
    weight = rng.standard_normal((32, 64), np.float32) / 8
    of_x, of_y, of_z = map(ops.to_device, (x, y, z))
    total = np.add(of_x, of_y)
    product = ops.linear(total, ops.to_device(weight))
    total += of_z
    np.testing.assert_allclose(product.numpy(), (x + y) @ weight.T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(total.numpy(), x + y + z, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("formats", (("q4_0", "q8_0"), ("q8_0", "q5_1"), ("float32", "q4_0")))
@pytest.mark.parametrize("place", range(3))
def test_products_of_a_row_with_several_formats(place, formats, ops):
    """Any of three matrices has another format than the rest; odd numbers of rows, with biases. And two of
    them as gate and up.
    """
    rng, k = np.random.default_rng(5), 96
    x = rng.standard_normal((1, k), np.float32)
    stored, exact = zip(*(
        weight_of(rng, formats[i == place], (n, k)) for i, n in enumerate((7, 5, 9))
    ), strict=True)  # fmt: skip
    biases = [rng.standard_normal(len(each), np.float32) for each in stored]
    order = sorted(range(3), key=lambda i: (i == place) != (place == 0))  # those of the first's format first
    there = ops.to_device(x)
    weights = dict(zip(order, ops.stack([stored[i] for i in order]), strict=True))
    of_bias = dict(zip(order, ops.stack([biases[i] for i in order]), strict=True))
    start = launched(ops)
    found = [ops.linear(there, weights[i], of_bias[i]) for i in range(3)]
    found = [each.numpy()[0] for each in found]
    if ops.name() == "opencl":
        assert launched(ops) - start == 1
    for one, weight, bias in zip(found, exact, biases, strict=True):
        np.testing.assert_allclose(one, weight @ x[0] + bias, rtol=1e-5, atol=1e-5)
    stored, exact = zip(*(weight_of(rng, each, (9, k)) for each in formats), strict=True)
    gate, up = (ops.linear(there, each) for each in ops.stack(stored))
    start = launched(ops)
    gated = ops.swiglu(gate, up).numpy()[0]
    if ops.name() == "opencl":
        assert launched(ops) - start == 1
    of_gate = exact[0] @ x[0]
    wanted = of_gate / (1 + np.exp(-of_gate)) * (exact[1] @ x[0])
    np.testing.assert_allclose(gated, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def weight_of(rng: np.random.Generator, name: str, shape: tuple[int, int]) -> tuple[Any, np.ndarray]:
    """A weight as stored, and its values in float64."""
    floats = rng.standard_normal(shape, np.float32) / 8
    if name == "float32":
        return floats, floats.astype(np.float64)
    stored = tensor_ops.quantize(floats, name)
    return stored, stored.dequantize().astype(np.float64)


def rms(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * weight


def launched(ops: Any) -> int:
    return counts(ops.name()).launches


@pytest.mark.parametrize("rows", (1, 3))
@pytest.mark.parametrize("width", (64, 75))
def test_what_a_half_adds_and_the_norms_around_it_are_one_launch(width, rows, ops):
    """With each norm and factor, and without; a row has the bits that it has alone."""
    rng = np.random.default_rng(7)
    x, y, residual = (rng.standard_normal((rows, width), np.float32) for _ in range(3))
    w = [rng.standard_normal(width, np.float32) for _ in range(5)]
    bias, scale = rng.standard_normal((2, width), np.float32), np.full(1, 0.75, np.float32)
    there = [ops.to_device(each) for each in w]
    of_bias, of_scale = ops.to_device(bias), ops.to_device(scale)

    def chains(x: Any, y: Any, residual: Any, w: Any, norm: Any, scale: Any, centered: Any) -> Any:
        """Sums with their norms, by functions that devices and NumPy have."""
        one = norm(x, w[0]) * np.float32(0.5)
        total = np.add(residual, one)
        yield norm(total, w[1]), total
        both = norm(np.add(norm(x, w[0]), norm(y, w[2])), w[3])
        total = np.add(residual, both)
        total = total * scale
        yield norm(total, w[4]), total
        total = np.add(np.add(residual, x * 1), y)
        yield centered(total), total
        total = np.add(residual, x)
        total = np.add(total, y)
        yield centered(total), total

    def on_device(some: slice) -> list[np.ndarray]:
        given = [ops.to_device(each[some]) for each in (x, y, residual)]
        norm = lambda x, w: ops.rms_norm(x, w, EPS)  # noqa: E731
        centered = lambda x: ops.layer_norm(x, of_bias[0], of_bias[1], EPS)  # noqa: E731
        found = []
        for normed, total in chains(*given, there, norm, of_scale, centered):
            start = launched(ops)
            found += [normed.numpy(), total.numpy()]
            if ops.name() == "opencl":  # WebGPU's launches wait
                assert launched(ops) - start <= 2
        return found

    def exactly(x: np.ndarray) -> np.ndarray:
        apart = x - x.mean(axis=-1, keepdims=True)
        return apart / np.sqrt((apart**2).mean(axis=-1, keepdims=True) + EPS) * bias[0] + bias[1]

    exact = [each.astype(np.float64) for each in (x, y, residual)]
    wanted = [each for pair in chains(*exact, w, rms, scale[0], exactly) for each in pair]
    found = on_device(slice(None))
    for one, other in zip(found, wanted, strict=True):
        assert np.abs(one - other).max() <= 2e-6 * np.abs(other).max()
    for row in range(rows):
        for one, among in zip(on_device(slice(row, row + 1)), found, strict=True):
            np.testing.assert_array_equal(one[0], among[row])


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    r = len(cos)
    a, b = x[..., :r], x[..., r : 2 * r]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, x[..., 2 * r :]], axis=-1)


@pytest.mark.parametrize("norms", ("", "head", "row", "late", "values", "gated"))
@pytest.mark.parametrize("pairs", (0, 5, 8))
def test_heads_go_to_the_cache_in_one_launch(pairs, norms, ops):
    """Rotated or not, with a factor of the queries; values from matrices of their own, or the keys'. `gated`:
    each head of queries has a gate beside it, so queries are a copy, which is part of the launch.
    """
    rng, heads, kv_heads, dim = np.random.default_rng(8), 3, 2, 16
    sizes = [heads * dim, kv_heads * dim, kv_heads * dim][: 2 if norms == "values" else 3]
    sizes[0] *= 2 if norms == "gated" else 1
    matrices = [rng.standard_normal((n, 64), np.float32) / 8 for n in sizes]
    x, cos, sin = (rng.standard_normal(s, np.float32) for s in ((1, 64), (1, 1, pairs), (1, 1, pairs)))
    spans = sizes[:2] if norms == "row" else (dim, dim) if norms else ()
    weights = [rng.standard_normal(n, np.float32) for n in spans]
    moved_x, c, s, *w = map(ops.to_device, (x, cos, sin, *weights))
    kept = ops.to_device(np.zeros((2, kv_heads, 4, dim), np.float32))
    parts = [ops.linear(moved_x, each) for each in ops.stack(matrices)]
    parts = [part.reshape(1, -1, dim) for part in parts]
    if norms == "gated":
        parts[0] = parts[0].reshape(1, heads, -1)[:, :, :dim].copy()
    start = launched(ops)

    def normalized(i: int, part: Any) -> Any:
        if not w:
            return part
        flat = part.reshape(1, -1) if norms == "row" else part
        return ops.rms_norm(flat, w[i], EPS).reshape(part.shape)

    def placed_part(i: int) -> Any:
        part = parts[i] if norms == "late" else normalized(i, parts[i])
        part = ops.apply_rope_into(part, c, s, False, None) if pairs else part
        return normalized(i, part) if norms == "late" else part

    q, k = placed_part(0) * np.full((1, 1, 1), 0.5, np.float32), placed_part(1)
    v = ops.rms_norm(parts[1], w[0], EPS) if norms == "values" else parts[2]
    ops.append(kept, 1, k, v)
    found = q.numpy(), kept.numpy()
    if ops.name() == "opencl":
        assert launched(ops) - start == 1
    exact = [(each.astype(np.float64) @ x[0]).reshape(-1, dim) for each in matrices]
    exact[0] = exact[0][:: 2 if norms == "gated" else 1]

    def placed_exactly(i: int) -> np.ndarray:
        part = exact[i]
        weight = None if not weights else weights[i].reshape(-1, dim)
        whole = lambda x: rms(x.reshape(1, -1), weight.reshape(-1)).reshape(-1, dim)  # noqa: E731
        each = (lambda x: x) if weight is None else whole if norms == "row" else lambda x: rms(x, weight)
        turned = (lambda x: rotate(x, cos[0, 0], sin[0, 0])) if pairs else lambda x: x
        return each(turned(part)) if norms == "late" else turned(each(part))

    wanted = np.zeros((2, kv_heads, 4, dim))
    wanted[0, :, 1] = placed_exactly(1)
    wanted[1, :, 1] = rms(exact[1], weights[0]) if norms == "values" else exact[2]
    np.testing.assert_allclose(found[0][0], placed_exactly(0) / 2, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(found[1], wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("of_queries", ("there", "product", "product of a norm"))
@pytest.mark.parametrize("formats", (("float32", "float32"), ("q8_0", "q4_0"), ("q4_0", "q6_k")))
@pytest.mark.parametrize("cache_dtype", ("float32", "float16", "uint8"))
def test_queries_for_latents_and_what_a_token_keeps_are_one_launch(cache_dtype, formats, of_queries, ops):
    """Then attention takes the queries in parts. `of_queries`: where they come from."""
    rng, heads, plain, rank, k = np.random.default_rng(9), 3, 96, 64, 256
    r = 32 if cache_dtype == "uint8" else 24  # rows of whole blocks, or a slice that is not full
    dim, wide, interleaved = plain + 2 * r, rank + 2 * r, formats[0] == "q8_0"
    of_heads, exact_heads = weight_of(rng, formats[0], (heads * rank, plain))
    of_row, exact_row = weight_of(rng, formats[1], (heads * dim, k))
    exact_heads = exact_heads.reshape(heads, rank, plain)
    if formats[0] == "float32":
        of_heads = of_heads.reshape(heads, rank, plain)
    else:
        of_heads = Quantized(of_heads.data.reshape(heads, rank, -1), formats[0])
    x, before = rng.standard_normal((1, k), np.float32), rng.standard_normal((1, 1, 8, wide), np.float32)
    keep, cos, sin = (rng.standard_normal(s, np.float32) for s in ((1, 10 + wide), (1, 1, r), (1, 1, r)))
    x_norm, keep_norm = rng.standard_normal(k, np.float32), rng.standard_normal(rank, np.float32)
    q = exact_row @ (rms(x[0].astype(np.float64), x_norm) if "norm" in of_queries else x[0])
    there = ops.to_device(q.astype(np.float32)[None])
    c, s, of_heads, of_row = map(ops.to_device, (cos, sin, of_heads, of_row))
    moved, of_norm, of_keep_norm = map(ops.to_device, (x, x_norm, keep_norm))
    kept = ops.empty((1, 1, 8, wide // 32 * 34 if cache_dtype == "uint8" else wide), cache_dtype)
    kept_before = ops.to_device(before)
    (ops.assign_blocks if cache_dtype == "uint8" else ops.assign)(kept, kept_before)
    found_keep = ops.to_device(keep)[:, 10:].reshape(1, 1, wide)
    start = launched(ops)
    if of_queries != "there":
        row = ops.rms_norm(moved, of_norm, EPS) if "norm" in of_queries else moved
        there = ops.linear(row, of_row)
    queries = there.reshape(1, heads, dim)
    turned = ops.apply_rope_into(queries[..., plain:], c, s, interleaved, None)
    queries = ops.join(ops.linear_heads(queries[..., :plain], of_heads), turned) * np.full((1, 1, 1), 0.5)
    latent = ops.rms_norm(found_keep[..., :rank], of_keep_norm, EPS)
    new = ops.join(latent, ops.apply_rope_into(found_keep[..., rank:], c, s, interleaved, None))
    ops.append(kept, 5, new)
    out = ops.empty((heads, 1, rank))
    ops.extension("cached_attention")(queries.swapaxes(0, 1), kept, 6, out, value_dim=rank, scale=0.125)
    values = out.numpy()[:, 0]
    if ops.name() == "opencl":
        assert launched(ops) - start == 2

    def turn(part: np.ndarray) -> np.ndarray:
        order = np.arange(2 * r).reshape(r, 2).T.reshape(-1) if interleaved else np.arange(2 * r)
        found = np.empty_like(part)
        found[..., order] = rotate(part[..., order], cos[0, 0], sin[0, 0])
        return found

    by_head = q.reshape(heads, dim)
    wanted = np.einsum("hk,hnk->hn", by_head[:, :plain], exact_heads)
    wanted = np.concatenate([wanted, turn(by_head[:, plain:])], axis=-1) / 2
    exact_keep = keep[0, 10:].astype(np.float64)
    new_row = np.concatenate([rms(exact_keep[:rank], keep_norm), turn(exact_keep[rank:])])
    rows = (ops.read_blocks(kept) if cache_dtype == "uint8" else kept).numpy().astype(np.float64)[0, 0]
    steps = {"float32": 1e-6, "float16": 1e-3, "uint8": 1 / 127}[cache_dtype]
    whole = np.concatenate([before[0, 0, :5], new_row[None], before[0, 0, 6:]])
    np.testing.assert_allclose(rows, whole, rtol=steps, atol=steps * np.abs(whole).max() + 1e-5)
    rows = rows[:6]
    np.testing.assert_allclose(queries.numpy()[0], wanted, rtol=2e-5, atol=2e-5 * np.abs(wanted).max())
    weights = np.exp(0.125 * (scores := wanted @ rows.T) - 0.125 * scores.max(axis=-1, keepdims=True))
    exact = weights / weights.sum(axis=-1, keepdims=True) @ rows[:, :rank]
    np.testing.assert_allclose(values, exact, rtol=1e-4, atol=1e-4 * np.abs(exact).max())
