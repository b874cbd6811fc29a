"""Stored weights of every format: linear, matmul_vec, embedding, dequantize; the products of one query."""

import numpy as np
import pytest
from arrays import DLPackArray, imported, runtime
from machine import DTYPES, assert_agrees, clean_machine, message, on_device, rng, use_cublas  # noqa: F401
from stored import scales, with_scales

import tensor_ops_cuda as cuda
from airllm.formats import FORMATS, Quantized
from airllm.tensor_ops import OPS

BLOCKS = list(cuda.stored_formats())
STORED = [*(np.dtype(d).name for d in DTYPES), *BLOCKS]


def stored(kind, *shape):
    """A weight of this dtype, or of blocks of this format whose bits are random but for finite scales."""
    if kind not in FORMATS:
        return rng.standard_normal(shape).astype(next(d for d in DTYPES if np.dtype(d).name == kind))
    of = FORMATS[kind]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // of.values, of.bytes), np.uint8)
    blocks = with_scales(blocks, kind, rng.uniform(0.01, 0.1, (*blocks.shape[:-1], scales(kind))))
    return Quantized(blocks.reshape(*shape[:-1], shape[-1] // of.values * of.bytes), kind)


def check(name, *args):
    """On host memory, and on the same on the device, where nothing is copied."""
    function, op = getattr(cuda, name), OPS[name]
    host = function(*args)
    assert_agrees(host, op, *args)
    moved = [on_device(a) for a in args]
    copies = cuda.copies()
    result = function(*moved)
    assert cuda.copies() == copies and result.numpy().tobytes() == host.tobytes()


# ---- products


@pytest.fixture
def cublas(monkeypatch):
    return use_cublas(monkeypatch)


@pytest.mark.parametrize("m", (1, 8, 9, 65))
@pytest.mark.parametrize("kind", STORED)
def test_linear(kind, m):
    weight = stored(kind, 7, 512)
    check("linear", rng.standard_normal((m, 512), np.float32), weight, np.arange(7, dtype=np.float32))


@pytest.mark.parametrize("m", (3, 20))
@pytest.mark.parametrize("bias", (None, *DTYPES))
@pytest.mark.parametrize("kind", ("float32", "bfloat16", "q8_0", "q6_k"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_of_every_dtype(dtype, kind, bias, m):
    x, weight = rng.standard_normal((2, m, 256)).astype(dtype), stored(kind, 3, 256)
    check("linear", x, weight, *([] if bias is None else [rng.standard_normal(3).astype(bias)]))


@pytest.mark.parametrize("k", (0, 1, 15, 17, 100, 300))
@pytest.mark.parametrize("m", (2, 9))
@pytest.mark.parametrize("kind", STORED[:3])
def test_linear_of_every_length(kind, m, k):
    x = rng.standard_normal((m, k), np.float32)
    for n in (1, 65):
        check("linear", x, stored(kind, n, k), np.ones(n, np.float32))


@pytest.mark.parametrize("kind", ("float32", "float16", "q8_0", "q4_k"))
@pytest.mark.parametrize("dtype", DTYPES)
def test_many_rows_by_cublas(cublas, dtype, kind):
    """Blocks are unpacked for it, and floats widened to those of x, but not narrowed."""
    x, weight = rng.standard_normal((12, 256)).astype(dtype), stored(kind, 5, 256)
    check("linear", x, weight)
    check("linear", x, weight, np.arange(5, dtype=np.float32))
    calls = cuda.calls()
    cuda.linear(x, weight, np.ones(5, dtype))
    same = kind == np.dtype(dtype).name
    converted = not same and (kind in FORMATS or dtype == np.float32)
    assert cuda.calls() - calls == (3 if converted else 2 if same else 1)


def test_scratch_memory_that_is_missing_is_named(cublas):
    x, weight = np.ones((9, 1024), np.float32), stored("q8_0", 1024, 1024)
    runtime.on_host_fail(b"cudaMallocAsync", 4, 2)
    assert message(MemoryError, cuda.linear, x, weight).startswith("linear: allocating 4194304 bytes")
    assert_agrees(cuda.linear(x, weight), OPS["linear"], x, weight)


@pytest.mark.parametrize("kind", STORED)
def test_matmul_vec(kind):
    for dtype in DTYPES:
        check("matmul_vec", stored(kind, 9, 256), rng.standard_normal(256).astype(dtype))


@pytest.mark.parametrize("kind", STORED[:3])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("s, d", [(1, 1), (5, 64), (33, 65), (300, 40), (0, 8), (8, 0)])
def test_products_of_one_query(s, d, dtype, kind):
    matrix = stored(kind, s, d)
    check("attention_scores", rng.standard_normal(d).astype(dtype), matrix)
    check("weighted_sum_rows", rng.standard_normal(s).astype(dtype), matrix)
    if s * d:
        query = rng.standard_normal(d).astype(dtype)
        found = cuda.attention_scores(query, matrix, scale=0.25)
        assert_agrees(found, OPS["attention_scores"], query, matrix, scale=0.25)


# ---- embedding, dequantize


@pytest.mark.parametrize("shape", ((), (5,), (2, 3), (0,)))
@pytest.mark.parametrize("ids_dtype", (np.int32, np.int64))
@pytest.mark.parametrize("kind", STORED)
def test_embedding(kind, ids_dtype, shape):
    table, ids = stored(kind, 11, 256), rng.integers(0, 11, shape).astype(ids_dtype)
    exact = table.dequantize() if kind in FORMATS else table
    assert cuda.embedding(ids, table).tobytes() == exact[ids].tobytes()
    moved = [cuda.to_device(ids), on_device(table)]
    copies = cuda.copies()
    result = cuda.embedding(*moved)
    assert cuda.copies() == copies
    assert result.shape == (*shape, 256) and result.numpy().tobytes() == exact[ids].tobytes()


@pytest.mark.parametrize("kind", ("float32", "float16", "q4_0"))
def test_ids_out_of_range(kind):
    table = stored(kind, 11, 256)
    for ids, wrong in (([0, 11], 11), ([-1, 20], -1)):
        for dtype in (np.int32, np.int64):
            text = message(ValueError, cuda.embedding, np.array(ids, dtype), table)
            assert text == f"embedding: ids has value {wrong}, expected 0 to 10"
    found = cuda.embedding(cuda.to_device(np.array([3, 11, -1])), on_device(table)).numpy()
    assert np.isnan(found[1:].astype(np.float32)).all() and not np.isnan(found[0].astype(np.float32)).any()


@pytest.mark.parametrize("shape", ((256,), (3, 512), (2, 3, 256), (0, 256)))
@pytest.mark.parametrize("kind", BLOCKS)
def test_dequantize(kind, shape):
    q = stored(kind, *shape)
    assert cuda.dequantize(q).tobytes() == q.dequantize().tobytes()
    out = np.empty(shape, np.float32)
    assert cuda.dequantize(q, out=out) is out and out.tobytes() == q.dequantize().tobytes()
    assert cuda.dequantize(on_device(q)).numpy().tobytes() == q.dequantize().tobytes()


# ---- where they lie


def test_to_device_of_a_quantized():
    q = stored("q5_0", 4, 64)
    moved = cuda.to_device(q)
    assert isinstance(moved, Quantized) and isinstance(moved.data, cuda.DeviceArray)
    assert (moved.format, moved.shape, moved.nbytes) == ("q5_0", (4, 64), q.nbytes)
    assert moved.data.numpy().tobytes() == q.data.tobytes()
    assert cuda.to_device(q, device="cuda:1").data.device == "cuda:1"


def test_blocks_of_other_libraries():
    q, x = stored("q4_k", 4, 256), rng.standard_normal((2, 256), np.float32)
    torch = imported("torch", 1)
    for data in (DLPackArray(q.data), torch.Tensor(q.data)):
        found = cuda.linear(cuda.to_device(x), Quantized(data, "q4_k"))
        assert_agrees(found.numpy(), OPS["linear"], x, q)
    found = cuda.matmul_vec(cuda.to_device(q), torch.Tensor(x[0]))
    assert type(found) is torch.Tensor
    assert_agrees(found.values(), OPS["matmul_vec"], q, x[0])
    assert "odd address" in message(
        ValueError, cuda.dequantize, Quantized(DLPackArray(q.data, offset=1), "q4_k")
    )


def test_messages():
    q, x = stored("q8_0", 4, 64), np.ones((2, 64), np.float32)
    here = cuda.to_device(x)
    assert message(TypeError, cuda.linear, here, q) == (
        "linear: weight has host memory, expected device cuda:0 (pass tensor_ops_cuda.to_device(weight))"
    )
    assert message(TypeError, cuda.linear, x, cuda.to_device(q)) == (
        "linear: weight has device cuda:0, expected host memory"
    )
    assert message(TypeError, cuda.linear, x, [1.0]) == (
        "linear: weight has type list, expected a NumPy array or a Quantized"
    )
    assert message(TypeError, cuda.dequantize, x) == ("dequantize: q has type ndarray, expected a Quantized")
    assert message(ValueError, cuda.linear, x[:, :32].copy(), q) == (
        "linear: weight has shape (4, 64), expected (n k) with k=32"
    )
    assert message(ValueError, cuda.linear, x, q, np.ones(3, np.float32)) == (
        "linear: bias has shape (3,), expected (n) with n=4"
    )
    assert message(TypeError, cuda.embedding, x, q) == (
        "embedding: ids has dtype float32, expected int64 or int32"
    )
    assert message(TypeError, cuda.dequantize, q, out=np.empty((4, 64), np.float16)) == (
        "dequantize: out has dtype float16, expected float32"
    )
    assert message(ValueError, cuda.linear, x, x, out=x[:, :2].copy()[:1]) == (
        "linear: out has shape (1, 2), expected (2, 2)"
    )


# ---- a chain


def test_a_decoder_layer_on_the_device_copies_nothing():
    """What a Llama layer does from token ids to its output, by the ops, and by their definitions."""
    ids = rng.integers(0, 50, 6)
    shapes = {"table": (50, 64), "q": (128, 64), "k": (64, 64), "v": (64, 64), "o": (64, 32)}
    shapes |= {"gate": (96, 64), "up": (96, 64), "down": (64, 96)}
    weights = {name: stored("q8_0", *shape) for name, shape in shapes.items()}
    norm, angles = np.linspace(0.5, 1.5, 64, dtype=np.float32), rng.standard_normal((6, 1, 16))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def layer(op, ids, w, norm, cos, sin):
        h = op("rms_norm")(op("embedding")(ids, w["table"]), norm)
        q, k, v = (op("linear")(h, w[name]).reshape(6, -1, 32) for name in "qkv")  # tokens, heads, width
        q, k = (op("apply_rope")(a, cos, sin) for a in (q, k))
        found = op("attention")(*(a.swapaxes(0, 1) for a in (q, k, v)), causal=True)
        found = op("linear")(found, w["o"])
        total, h = op("add_rms_norm")(found, found, norm)
        return op("linear")(op("swiglu")(op("linear")(h, w["gate"]), op("linear")(h, w["up"])), w["down"])

    exact = layer(lambda name: OPS[name].exact, ids, weights, norm, cos, sin)
    moved = {name: cuda.to_device(weight) for name, weight in weights.items()}
    arrays = [cuda.to_device(a) for a in (norm, cos, sin)]
    tokens = cuda.to_device(ids)
    copies, calls = cuda.copies(), cuda.calls()
    result = layer(lambda name: getattr(cuda, name), tokens, moved, *arrays)
    assert (cuda.copies(), cuda.calls()) == (copies, calls + 14)
    assert np.abs(result.numpy() - exact).max() < 1e-4 * np.abs(exact).max()
