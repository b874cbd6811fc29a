"""The stored formats, bit for bit against ggml's own Python package."""

import re
import subprocess
import sys

import gguf
import libgguf
import ml_dtypes
import numpy as np
import pytest
import stored
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from targets import targets

from airllm import formats, tensor_ops
from airllm.backends.device import launch_plan
from airllm.backends.gpu import kernel_text as gpu_text
from airllm.formats import FORMATS, Quantized
from airllm.formats.codebooks import CODEBOOKS
from cpp_ext.commands import write_codebooks
from tensor_ops_webgpu import kernel_text as webgpu_text

ALL, PACKING = list(FORMATS), [name for name, f in FORMATS.items() if f.pack]
HALVES = [0.0, -0.0, 1.0, -1.0, 6e-8, -6e-8, 6e-5, 65504, -65504, np.inf, -np.inf, 0.013]


def ggml(name):
    return gguf.GGMLQuantizationType[name.upper()]


def assert_same_floats(actual, expected):
    """The same bits, though a NaN is any NaN."""
    assert actual.dtype == expected.dtype == np.float32 and actual.shape == expected.shape
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(actual.view(np.uint32)[numbers], expected.view(np.uint32)[numbers])


def decoders():
    """The definition, and every backend and variant that has its own."""
    yield pytest.param(lambda q: q.dequantize(), id="definition")
    for target in targets():
        if hasattr(target.module, "dequantize"):
            yield pytest.param(lambda q, t=target: dequantized_on(t, q), id=str(target))


def dequantized_on(target, q):
    """By the target's kernel, or, where it has none for this format, by the definition."""
    if q.format in stored.read_by(target.module):
        return on(target, target.module.dequantize, q)
    with pytest.raises(NotImplementedError):
        target.module.dequantize(q)
    return tensor_ops.dequantize(q, backend=target.backend)


def encoders():
    yield pytest.param(lambda x, name: FORMATS[name].encode(x), id="definition")
    for target in targets():
        if hasattr(target.module, "quantize"):
            run = lambda x, name, t=target: on(t, t.module.quantize, x, name).data  # noqa: E731
            yield pytest.param(run, id=str(target))


def on(target, function, *args):
    """A function of a variant of a backend, which must have run a kernel."""
    before = target.module.calls()
    if target.variant:
        target.module.select(target.variant)
    try:
        result = function(*args)
    finally:
        if target.variant:
            target.module.select(None)
    assert target.module.calls() > before
    return result


decoding = pytest.mark.parametrize("decode", list(decoders()))
encoding = pytest.mark.parametrize("encode", list(encoders()))


@pytest.mark.parametrize("name", ALL)
def test_sizes_and_numbers_are_ggmls(name):
    of = FORMATS[name]
    assert (of.values, of.bytes) == gguf.GGML_QUANT_SIZES[ggml(name)] and of.ggml_type == ggml(name)


@pytest.mark.parametrize("name", ALL)
def test_any_bytes_decode_as_in_ggmls_own_c(name):
    data = np.random.default_rng(7).integers(0, 256, (4000, FORMATS[name].bytes), np.uint8)
    expected = libgguf.dequantize_rows(data, ggml(name)).reshape(len(data), -1)
    assert_same_floats(FORMATS[name].decode(data), expected)


def test_each_power_of_two_scales_an_mxfp4_block_as_in_ggml():
    """All 256: the least are subnormal, and the greatest is no NaN."""
    data = np.random.default_rng(8).integers(0, 256, (256, 17), np.uint8)
    data[:, 0] = np.arange(256)
    assert_same_floats(FORMATS["mxfp4"].decode(data), libgguf.dequantize_rows(data, ggml("mxfp4")))


def test_a_codebook_has_the_vectors_of_ggml_in_its_order():
    for name, book in CODEBOOKS.items():
        of = getattr(quants, "IQ1_S" if name == "iq1" else name.upper())
        of.init_grid()
        expected = of.grid.reshape(of.grid_shape) * (8 if name == "iq1" else 1)
        np.testing.assert_array_equal(book.vectors(), expected, name)


def test_the_codebooks_of_kernels_are_those_of_python():
    again = "python setup.py write_codebooks"
    assert write_codebooks.HEADER.read_text() == write_codebooks.written(), again
    assert write_codebooks.GPU_HEADER.read_text() == write_codebooks.written_for_gpus(), again


LANGUAGES = {"GPU text": gpu_text.stored_formats, "WGSL": webgpu_text.stored_formats}
LANGUAGES |= {t.backend: t.module.stored_formats for t in targets() if hasattr(t.module, "stored_formats")}


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_language_describes_a_format_alike(language):
    for name, numbers in LANGUAGES[language]().items():
        of = FORMATS[name]
        assert numbers == (of.ggml_type, of.values, of.bytes), name


def test_the_gpu_text_has_the_kernels_of_each_of_its_formats():
    text = (gpu_text.folder() / "common" / "formats" / "formats.h").read_text()
    made = re.findall(r"^#define FORMAT (\w+)$", text, re.MULTILINE)
    assert sorted(made) == sorted(gpu_text.stored_formats())
    assert f"#define FIRST_BLOCK_FORMAT {launch_plan.FIRST_BLOCK_FORMAT}\n" in text


@pytest.fixture
def signs(monkeypatch):
    """A format that only airllm.formats has: the sign of each value, times a float16."""

    def unpack(b):
        return b[:, 4:].view(np.float16) * (np.unpackbits(b[:, :4], axis=1) * np.float32(2) - 1)

    def pack(x):
        scale = np.abs(x).mean(axis=1, keepdims=True).astype(np.float16)
        return np.hstack([np.packbits(x > 0, axis=1), scale.view(np.uint8)])

    made = formats.Format("signs", 32, 6, 99, unpack, pack, halves=(4,))
    monkeypatch.setitem(FORMATS, "signs", made)
    return made


@pytest.mark.parametrize("target", targets(), ids=str)
def test_a_format_that_kernels_lack_is_computed_by_its_definition(target, signs):
    x = np.random.default_rng(6).standard_normal((5, 64), np.float32)
    made = tensor_ops.quantize(x, "Signs", backend=target.backend)
    values = signs.decode(signs.encode(x))
    assert made.format == "signs" and np.array_equal(made.data, signs.encode(x))
    assert np.array_equal(tensor_ops.dequantize(made, backend=target.backend), values)
    assert np.array_equal(
        tensor_ops.embedding(np.array([3, 1]), made, backend=target.backend), values[[3, 1]]
    )
    product = tensor_ops.linear(x, made, backend=target.backend)
    np.testing.assert_allclose(product, x @ values.T, rtol=1e-5, atol=1e-5)
    for name, arguments in {"linear": (x, made), "dequantize": (made,), "quantize": (x, "signs")}.items():
        if hasattr(target.module, name) and target.backend != "python":
            with pytest.raises(NotImplementedError, match="has (format|value) '?signs'?, expected "):
                getattr(target.module, name)(*arguments)


@pytest.mark.parametrize("target", targets(), ids=str)
def test_formats_of_codebooks_run_on_every_backend(target):
    """By kernels or by the definition, which computes some of them on GPUs."""
    x = np.random.default_rng(9).standard_normal((3, 512), np.float32)
    for name in ("iq1_m", "iq2_s", "iq3_xxs"):
        weight = stored.blocks(name, (7, 512))
        values = quants.dequantize(weight.data, ggml(name))
        product = tensor_ops.linear(x, weight, backend=target.backend)
        np.testing.assert_allclose(product, x @ values.T, atol=0.02 * np.abs(product).max())
        rows = tensor_ops.embedding(np.array([6, 0]), weight, backend=target.backend)
        assert_same_floats(rows, values[[6, 0]])


@decoding
@pytest.mark.parametrize("name", ALL)
def test_any_bytes_decode_as_in_ggml(name, decode):
    """Scales that are infinite, NaN and subnormal among them."""
    data = np.random.default_rng(1).integers(0, 256, (300, 3 * FORMATS[name].bytes), np.uint8)
    with np.errstate(all="ignore"):
        assert_same_floats(decode(Quantized(data, name)), quants.dequantize(data, ggml(name)))


@decoding
@pytest.mark.parametrize("name", ALL)
def test_extreme_scales_decode_as_in_ggml(name, decode):
    rng = np.random.default_rng(2)
    of, scales = FORMATS[name], stored.scales(name)
    data = rng.integers(0, 256, (len(HALVES) ** scales, of.bytes), np.uint8)
    grid = np.stack(np.meshgrid(*[np.array(HALVES)] * scales), -1).reshape(-1, scales)
    data = stored.with_scales(data, name, grid)
    with np.errstate(all="ignore"):
        assert_same_floats(decode(Quantized(data, name)), quants.dequantize(data, ggml(name)))


@decoding
@pytest.mark.parametrize("name", ALL)
def test_every_block_decodes_apart_from_the_others(name, decode):
    """Blocks one by one, at any address, and many at once."""
    q = stored.blocks(name, (5, 4, FORMATS[name].values * 3))
    together = decode(q)
    assert together.shape == q.shape
    flat, size = q.data.reshape(-1), FORMATS[name].bytes
    for i in (0, 7, 59):
        moved = np.empty(size + 3, np.uint8)[3:]
        moved[:] = flat[i * size : (i + 1) * size]
        assert_same_floats(decode(Quantized(moved, name)), together.reshape(60, -1)[i])


SEARCHING = [name for name in PACKING if FORMATS[name].values == 256 or name in ("iq4_nl", "mxfp4")]
SIMPLE = [name for name in PACKING if name not in SEARCHING]


def quantized_by_ggml(x, name):
    """By the package gguf; by ggml's C where that has no quantizer, or takes another library's logarithm."""
    with np.errstate(all="ignore"):
        return (libgguf.quantize_rows if name in SEARCHING else quants.quantize)(x, ggml(name))


def rows(kind, name="q8_0"):
    """Rows of three blocks. Numbers whose powers overflow are only for formats that do not search."""
    k = 3 * FORMATS[name].values
    rng = np.random.default_rng(3)
    x = rng.standard_normal((64, k)).astype(np.float32)
    x[0] = 0
    x[1] = -0.0
    x[2, 5:] = x[2, 0]  # the largest several times
    x[3, 1:40] = -x[3, 0]
    powers = np.arange(-32, 16, 3) if name in SEARCHING else np.arange(-32, 32, 4)
    x[4:20] *= 10.0 ** powers.astype(np.float32)[:, None]
    x[20] = np.arange(k) / 2  # halves
    x[21] = -np.arange(k) / 127
    x[22, ::32] = 254
    x[23:30] *= 10.0 ** rng.integers(-9, 3, (7, k)).astype(np.float32)
    x[30:34, ::3] = 0
    x[34] = np.repeat(rng.standard_normal(k // 16), 16)  # constant sub-blocks
    x[35, : k // 2] = 0
    x[36] = np.rint(4 * x[36])
    x[37:40] = np.nextafter(np.float32([[1], [128], [2**-60]]), np.float32(0)) * np.sign(x[37:40])
    return x if kind == "mixed" else np.abs(x) if kind == "positive" else -np.abs(x)


@encoding
@pytest.mark.parametrize("kind", ("mixed", "positive", "negative"))
@pytest.mark.parametrize("name", PACKING)
def test_numbers_encode_as_in_ggml(name, kind, encode):
    x = rows(kind, name)
    np.testing.assert_array_equal(encode(x, name), quantized_by_ggml(x, name))


def floats(limit):
    return st.floats(-limit, limit, width=32).filter(lambda v: v == 0 or abs(v) > 1e-30)


@encoding
@settings(max_examples=60, deadline=None)
@given(
    x=arrays.arrays(np.float32, (2, 64), elements=floats(2.0**100), fill=st.nothing()),
    name=st.sampled_from(SIMPLE),
)
def test_whatever_numbers_encode_as_in_ggml(x, name, encode):
    np.testing.assert_array_equal(encode(x, name), quantized_by_ggml(x, name))


@encoding
@settings(max_examples=60, deadline=None)
@given(
    x=arrays.arrays(np.float32, (1, 64), elements=floats(2.0**40), fill=st.nothing()),
    name=st.sampled_from(SEARCHING),
)
def test_whatever_numbers_are_searched_as_in_ggml(x, name, encode):
    x = np.hstack([x, -x, x[:, ::-1] / 3, x[:, ::-1]])
    np.testing.assert_array_equal(encode(x, name), quantized_by_ggml(x, name))


def test_a_million_numbers_are_searched_as_in_ggml():
    """By the fastest kernel: one number in so many may be at the edge of a rounding."""
    x = np.random.default_rng(9).standard_t(4, (1024, 1024)).astype(np.float32)
    for name in SEARCHING:
        made = tensor_ops.quantize(x, name).data
        np.testing.assert_array_equal(made, quantized_by_ggml(x, name), name)


@encoding
@pytest.mark.parametrize("name", SIMPLE)
def test_a_round_trip_stays_within_a_step(name, encode):
    x = np.random.default_rng(4).standard_normal((50, 320), np.float32)
    back = FORMATS[name].decode(encode(x, name))
    of = x.reshape(-1, 32)
    steps = {"q8_0": 127, "q4_0": 8, "q5_0": 16, "q4_1": 15, "q5_1": 31}[name]
    size = np.abs(of).max(1) if name.endswith("0") else np.ptp(of, 1)
    worst = np.abs(back.reshape(-1, 32) - of).max(1)
    assert (worst <= size / steps * 1.02).all() and worst.max() > 0  # the largest may lie a whole step off


@encoding
@pytest.mark.parametrize("name", SIMPLE)
def test_encoding_what_was_decoded_keeps_its_values(name, encode):
    """Up to the rounding of the scale to a float16."""
    first = FORMATS[name].decode(encode(rows("mixed")[20:60], name))
    again = FORMATS[name].decode(encode(first, name))
    size = np.abs(first).max(axis=1, keepdims=True)
    np.testing.assert_allclose(again / size, first / size, atol=0.08 if "4" in name else 0.04)


@encoding
@pytest.mark.parametrize("place", (0, 17, 31))
@pytest.mark.parametrize("name", [name for name in PACKING if name != "mxfp4"])
def test_a_nan_makes_its_block_nan(name, place, encode):
    n = FORMATS[name].values
    x = np.ones((1, 3 * n), np.float32)
    x[0, n + place] = np.nan
    with np.errstate(all="ignore"):
        back = FORMATS[name].decode(encode(x, name)).reshape(3, n)
    assert np.isnan(back[1]).all() and np.isfinite(back[[0, 2]]).all()


@encoding
@pytest.mark.parametrize("name", [name for name in SEARCHING if name != "mxfp4"])
def test_an_infinity_makes_its_block_nan_where_a_scale_is_searched(name, encode):
    n = FORMATS[name].values
    x = np.random.default_rng(10).standard_normal((3, n)).astype(np.float32)
    x[1, 20] = -np.inf
    with np.errstate(all="ignore"):
        back = FORMATS[name].decode(encode(x.reshape(1, -1), name)).reshape(3, n)
    assert np.isnan(back[1]).all() and np.isfinite(back[[0, 2]]).all()


@encoding
def test_mxfp4_has_no_nan_and_no_infinity(encode):
    x = np.ones((1, 96), np.float32)
    x[0, [32 + 5, 64 + 7]] = np.nan, -np.inf
    back = FORMATS["mxfp4"].decode(encode(x, "mxfp4"))
    assert back[0, 37] == 0 and np.array_equal(np.delete(back[0, :64], 37), np.ones(63))
    assert back[0, 71] == -6 * 2.0**125 and not back[0, 64:71].any()  # the least number


@pytest.mark.parametrize("dtype", (np.float16, ml_dtypes.bfloat16))
@pytest.mark.parametrize("target", [t for t in targets() if hasattr(t.module, "quantize")], ids=str)
def test_other_floats_are_quantized_as_float32(dtype, target):
    x = np.random.default_rng(5).standard_normal((3, 64)).astype(dtype)
    made = on(target, target.module.quantize, x, "q5_1")
    assert isinstance(made, Quantized) and made.shape == (3, 64) and made.format == "q5_1"
    np.testing.assert_array_equal(made.data, FORMATS["q5_1"].encode(x.astype(np.float32)))


@pytest.mark.parametrize("shape", ((0,), (0, 64), (3, 0), (2, 0, 32)), ids=str)
def test_nothing_is_quantized_to_nothing(shape):
    x = np.empty(shape, np.float32)
    for module in (tensor_ops, *(t.module for t in targets() if hasattr(t.module, "quantize"))):
        made = module.quantize(x, "q4_0")
        assert made.shape == shape and module.dequantize(made).shape == shape


def test_the_import_is_light():
    code = "import sys, airllm.formats; print(sorted({'gguf', 'airllm.ops.op'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
