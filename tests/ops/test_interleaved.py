"""Interleaved weights: their layout, and the products with them."""

import os
import subprocess
import sys

import numpy as np
import pytest
from targets import targets

from airllm.formats import FORMATS, Interleaved, interleave
from airllm.formats.interleaved import BAND, WORDS
from tests.support.models import stored

SHAPES = ((16, 1), (48, 3), (32, 5))  # rows, and blocks of 256 values
having = pytest.mark.parametrize("target", [t for t in targets() if hasattr(t.module, "interleave")], ids=str)


@pytest.mark.parametrize("name", WORDS)
def test_the_words_of_a_band_are_a_line_for_each_word_of_a_block(name):
    """The first group of the first band, by the text of the definition."""
    weight = stored.blocks(name, (32, 512))
    words, of = WORDS[name], FORMATS[name]
    line = interleave(weight).data.reshape(-1)[: 4 * BAND * words.count].reshape(words.count, BAND, 4)
    blocks = weight.data.reshape(32, -1, of.bytes)[:BAND, 0]
    for place, word in enumerate(words.places()):
        at = words.first + 4 * word
        np.testing.assert_array_equal(line[place], blocks[:, at : at + 4])


@having
@pytest.mark.parametrize("name", WORDS)
def test_the_backend_copies_as_the_definition(name, target):
    for n, blocks in SHAPES:
        weight = stored.blocks(name, (n, 256 * blocks))
        expected = interleave(weight)
        out = np.empty_like(weight.data)
        target.module.interleave(weight, out)
        np.testing.assert_array_equal(out, expected.data)
        np.testing.assert_array_equal(expected.stored().data, weight.data)


@having
@pytest.mark.parametrize("name", WORDS)
def test_products_are_those_of_the_values(name, target, reached):
    """Any number of rows, against float64; each row of few has the bits that it has alone."""
    rng = np.random.default_rng(2)
    for n, blocks in SHAPES:
        weight = interleave(stored.blocks(name, (n, 256 * blocks)))
        values = weight.dequantize().astype(np.float64)
        for rows in (1, 2, 3, 7, 8, 16, 17, 40):
            x = (rng.integers(-127, 128, (rows, 256 * blocks)) / 128).astype(np.float32)
            x[:, ::32] = 127 / 128  # exact as bytes
            bias = rng.standard_normal(n).astype(np.float32)
            found, exact = reached.linear(x, weight, bias), x @ values.T + bias
            assert np.abs(found - exact).max() <= 2e-6 * np.abs(x @ np.abs(values.T)).max()
            if rows <= 16:
                alone = [reached.linear(row[None], weight, bias)[0] for row in x]
                np.testing.assert_array_equal(found, alone)


@having
@pytest.mark.parametrize("name", [name for name in WORDS if FORMATS[name].values == 256])
def test_weights_as_stored_have_the_same_bits(name, target, reached):
    """Blocks of 256, with any number of rows: those of a few are interleaved as they are read."""
    rng = np.random.default_rng(4)
    for n, blocks in (*SHAPES, (64, 17)):
        weight = stored.blocks(name, (n, 256 * blocks))
        x = rng.standard_normal((17, 256 * blocks)).astype(np.float32)
        for rows in range(1, 18):
            found = reached.linear(x[:rows], weight)
            np.testing.assert_array_equal(found, reached.linear(x[:rows], interleave(weight)))


@having
def test_numbers_that_bytes_cannot_hold(target, reached):
    rng = np.random.default_rng(3)
    weight = interleave(stored.blocks("q4_k", (32, 512)))
    x = rng.standard_normal((3, 512)).astype(np.float32)
    expected = reached.linear(x, weight)
    x[1, 7] = np.nan
    found = reached.linear(x, weight)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(found[[0, 2]], expected[[0, 2]])


PRODUCTS = """
import hashlib, numpy as np, tensor_ops_cpp as c
from airllm.formats import interleave
from airllm.formats.interleaved import WORDS
from tests.support.models import stored
found = hashlib.sha256()
for isa in c.variants():
    c.select(isa)
    for name in WORDS:
        weight = interleave(stored.blocks(name, (48, 1536)))
        for rows in (1, 2, 9):
            x = np.random.default_rng(rows).standard_normal((rows, 1536)).astype(np.float32)
            found.update(c.linear(x, weight).tobytes())
print(found.hexdigest())
"""


def test_prefetched_products_have_the_same_bits():
    """On every CPU, whatever it does by default. What lies behind a weight is prefetched too."""
    pytest.importorskip("tensor_ops_cpp")
    printed = {
        subprocess.run(
            [sys.executable, "-c", PRODUCTS],
            env=os.environ | {"AIRLLM_CPU_PREFETCH": prefetch},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for prefetch in "01"
    }
    assert len(printed) == 1


def test_errors_say_what_can_be_interleaved():
    with pytest.raises(ValueError, match=r"has shape \(8, 256\) in q8_0, expected a matrix of 16 rows"):
        Interleaved(stored.blocks("q8_0", (8, 256)).data, "q8_0")
    with pytest.raises(ValueError, match="in iq2_xxs, expected .* in one of q8_0"):
        Interleaved(stored.blocks("iq2_xxs", (16, 256)).data, "iq2_xxs")


@having
def test_the_backend_refuses_what_it_cannot_interleave(target):
    weight = stored.blocks("q4_k", (8, 256))
    with pytest.raises(ValueError, match="whose rows are a multiple of 16"):
        target.module.interleave(weight, np.empty_like(weight.data))
    weight = stored.blocks("q4_k", (16, 256))
    with pytest.raises(ValueError, match="a writable array like the weight's data"):
        target.module.interleave(weight, np.empty((15, weight.data.shape[1]), np.uint8))
    with pytest.raises(TypeError, match="table is an Interleaved"):
        target.module.embedding(np.array([1]), interleave(weight))
