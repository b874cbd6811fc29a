"""The value `Quantized`: what it refuses and says, how it is indexed, and how a format is named."""

import numpy as np
import pytest
import stored
from targets import targets

from airllm import tensor_ops
from airllm.formats import FORMATS, Quantized

MESSAGES = [
    (
        lambda: Quantized(np.zeros(34, np.uint8), "q9"),
        "Quantized: format has value 'q9', expected one of q8_0, q4_0, ",
    ),
    (
        lambda: Quantized(np.zeros(34, np.uint8), 8),
        "Quantized: format has type int, expected one of q8_0",
    ),
    (lambda: Quantized([1], "q8_0"), "Quantized: data has type list, expected a NumPy array"),
    (
        lambda: Quantized(np.zeros(34, np.int8), "q8_0"),
        "Quantized: data has dtype int8, expected uint8",
    ),
    (
        lambda: Quantized(np.zeros((2, 35), np.uint8), "q8_0"),
        r"data has shape \(2, 35\), expected \(... row_bytes\) with row_bytes a multiple of 34 for q8_0",
    ),
    (lambda: Quantized(np.zeros((), np.uint8), "q8_0"), r"Quantized: data has shape \(\), expected"),
    (
        lambda: Quantized(np.zeros((4, 34), np.uint8)[::2], "q8_0"),
        r"Quantized: data has strides \(68, 1\), expected C-contiguous",
    ),
    (
        lambda: tensor_ops.quantize(np.zeros(256, np.float32), "iq2_xs", backend="python"),
        "quantize: format has value 'iq2_xs', expected one of q8_0, q4_0, q4_1, q5_0, q5_1, q2_k, .*, mxfp4$",
    ),
    (
        lambda: FORMATS["q4_0"].encode(np.zeros((3, 33), np.float32)),
        r"quantize: x has shape \(3, 33\), expected \(... k\) with k a multiple of 32",
    ),
]


@pytest.mark.parametrize(("make", "message"), MESSAGES)
def test_errors_say_what_was_found_and_what_was_expected(make, message):
    error = TypeError if " has type " in message or " has dtype " in message else ValueError
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("target", [t for t in targets() if hasattr(t.module, "quantize")], ids=str)
def test_native_modules_say_the_same(target):
    with pytest.raises(ValueError, match="quantize: format has value 'iq2_xs', expected one of q8_0, q4"):
        target.module.quantize(np.zeros(256, np.float32), "iq2_xs")
    with pytest.raises(
        ValueError, match=r"x has shape \(3, 33\), expected \(... k\) with k a multiple of 32"
    ):
        target.module.quantize(np.zeros((3, 33), np.float32), "q4_0")
    with pytest.raises(TypeError, match="dequantize: q has type ndarray, expected a Quantized"):
        target.module.dequantize(np.zeros(34, np.uint8))


def test_a_quantized_is_a_thin_readable_value():
    data = np.zeros((6, 4, 68), np.uint8)
    q = Quantized(data, "q8_0")
    assert q.data is data and q.shape == (6, 4, 64) and (q.ndim, len(q), q.nbytes) == (3, 6, data.nbytes)
    assert repr(q) == "<Quantized q8_0 (6, 4, 64), 1632 bytes>"
    with pytest.raises(AttributeError):
        q.format = "q4_0"


@pytest.mark.parametrize("target", [t for t in targets() if hasattr(t.module, "quantize")], ids=str)
def test_a_format_is_named_in_letters_of_any_case(target):
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    wanted = tensor_ops.quantize(x, "q8_0", backend="python")
    made = target.module.quantize(x, "Q8_0")
    assert made.format == "q8_0" and np.array_equal(made.data, wanted.data)
    with pytest.raises(ValueError, match=r"format has value '\\ud800', expected one of q8_0"):
        target.module.quantize(x, "\ud800")
    for backend in (target.backend, "python"):
        made = tensor_ops.quantize(x, "Q8_0", backend=backend)
        assert made.format == "q8_0" and np.array_equal(made.data, wanted.data)
    same = Quantized(wanted.data, "Q8_0")
    assert same.format == "q8_0" and same.shape == (64,)
    assert np.array_equal(tensor_ops.dequantize(same, backend=target.backend), wanted.dequantize())


@pytest.mark.parametrize(
    "index", (0, -1, slice(1, 3), (2, 1), (slice(None), 1), ..., [0, 3], (..., 2)), ids=str
)
def test_leading_axes_are_indexed_and_blocks_stay_whole(index):
    q = stored.blocks("q5_0", (4, 3, 64))
    where = index if isinstance(index, tuple) else (index,)
    rest = (slice(None),) if ... in where else (..., slice(None))
    expected = q.dequantize()[where + rest]
    np.testing.assert_array_equal(q[index].dequantize(), expected)
    if isinstance(index, (int, slice)):
        assert np.shares_memory(q[index].data, q.data)


def test_an_index_of_the_last_axis_is_an_error():
    with pytest.raises(IndexError):
        stored.blocks("q5_0", (4, 64))[0, 0]
