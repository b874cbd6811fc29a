"""A row of a product is the same bits, however many rows come with it."""

import ml_dtypes
import numpy as np
import pytest
import stored
from targets import targets

from airllm.formats import FORMATS

FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}
having = pytest.mark.parametrize(
    "target", [t for t in targets() if hasattr(t.module, "rows_as_stored")], ids=str
)
N = 67  # no multiple of what kernels compute at once


def product(name, k):
    """Rows of x, and a weight (N, k)."""
    x = np.random.default_rng(k).standard_normal((64, k)).astype(np.float32)
    if name in FORMATS:
        return x, stored.blocks(name, (N, k), k)
    return x, np.random.default_rng(1).standard_normal((N, k)).astype(FLOATS[name])


@having
@pytest.mark.parametrize("k", (256, 768, 1280))
@pytest.mark.parametrize("name", (*FORMATS, *FLOATS))
def test_few_rows(name, k, target, reached):
    x, weight = product(name, k)
    each = np.concatenate([reached.linear(x[i : i + 1], weight) for i in range(16)])
    for rows in range(1, reached.rows_as_stored[name in FORMATS] + 1):
        np.testing.assert_array_equal(reached.linear(x[:rows], weight), each[:rows], f"{rows} rows")


@having
@pytest.mark.parametrize("name", [each for each in (*FORMATS, *FLOATS) if each != "f32"])
def test_many_rows(name, target, reached):
    """Many rows of floats are float32 products of our own kernels; float32 itself is NumPy's BLAS."""
    x, weight = product(name, 512)
    whole = reached.linear(x, weight)
    bias = np.arange(N, dtype=np.float32)
    for rows in (1, 2, 3, 7, 8, 9, 16, 17, 33, 48, 63):
        found = reached.linear_of_many_rows(x[:rows], weight)
        np.testing.assert_array_equal(found, whole[:rows], f"{rows} rows")
        if rows > reached.rows_as_stored[name in FORMATS]:
            np.testing.assert_array_equal(reached.linear(x[:rows], weight), found, f"{rows} rows")
    with_bias = reached.linear_of_many_rows(x[:3], weight, bias)
    np.testing.assert_array_equal(with_bias, reached.linear(x, weight, bias)[:3])


@having
@pytest.mark.parametrize("name", ("q4_0", "q8_0", "q6_k"))
def test_a_row_that_blocks_cannot_hold_changes_no_other(name, target, reached):
    x, weight = product(name, 512)
    for value in (np.nan, np.inf, 1e-30):
        spoiled = x[:5].copy()
        spoiled[2] = value
        found = reached.linear(spoiled, weight)
        for i in (0, 1, 3, 4):
            np.testing.assert_array_equal(found[i : i + 1], reached.linear(x[i : i + 1], weight), str(value))
        np.testing.assert_array_equal(found[2:3], reached.linear(spoiled[2:3], weight))


@having
@pytest.mark.parametrize("threads", (2, 3))
def test_threads_share_without_a_trace(threads, target, reached):
    before = reached.switch(target.variant, 1)
    try:
        for name in ("q4_0", "q6_k", "f16"):
            rng = np.random.default_rng(0)
            x = rng.standard_normal((40, 2048)).astype(np.float32)
            weight = stored.blocks(name, (1000, 2048)) if name in FORMATS else product(name, 2048)[1]
            for rows in (1, 7, 40):
                reached.switch(target.variant, 1)
                alone = reached.linear(x[:rows], weight)
                reached.switch(target.variant, threads)
                np.testing.assert_array_equal(reached.linear(x[:rows], weight), alone)
    finally:
        reached.switch(*before)
