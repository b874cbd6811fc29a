"""Attention of a query is the same bits, whatever other queries come with it, for any number of threads, and
wherever the array of keys begins.
"""

import numpy as np
import pytest
from targets import targets

from airllm import tensor_ops

having = pytest.mark.parametrize(
    "target", [t for t in targets() if hasattr(t.module, "cached_attention")], ids=str
)
LENGTH = 1500
OPTIONS = {
    "all": {},
    "window": {"window": 300},
    "narrow window": {"window": 5},
    "softcap": {"softcap": 2.0},
    "sinks": {"sinks": np.linspace(-1, 2, 6, dtype=np.float32), "window": 700},
}


def sample(d=64, dtype="f16"):
    rng = np.random.default_rng(d)
    q = rng.standard_normal((LENGTH, 6, d), np.float32).swapaxes(0, 1)
    kept = rng.standard_normal((2, 2, LENGTH, d), np.float32)
    return q, tensor_ops.quantize(kept, "q8_0").data if dtype == "q8_0" else kept.astype(np.float16)


def attend(reached, q, kept, start, stop, origin=0, **options):
    """The results of queries [start, stop), whose keys from `origin` on are passed."""
    out = np.empty((stop - start, 6, q.shape[2]), np.float32).swapaxes(0, 1)
    keys = np.ascontiguousarray(kept[:, :, origin:])
    reached.cached_attention(q[:, start:stop], keys, stop - origin, out, origin=origin, **options)
    return out


@having
@pytest.mark.parametrize("few_rows", (True, False))
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("dtype", ("f16", "q8_0"))
def test_any_queries_together(dtype, option, few_rows, target, reached):
    q, kept = sample(dtype=dtype)
    options = {**OPTIONS[option], "few_rows": few_rows}
    before = reached.switch(target.variant, 1)
    try:
        last = attend(reached, q, kept, 1400, LENGTH, **options)
        for threads in (1, 2, 3):
            reached.switch(target.variant, threads)
            for start, stop in ((1400, 1401), (1403, 1410), (1400, 1480), (1499, 1500), (1300, 1500)):
                found = attend(reached, q, kept, start, stop, **options)
                begin = max(start, 1400)
                expected = last[:, begin - 1400 : stop - 1400]
                np.testing.assert_array_equal(found[:, begin - start :], expected, f"{threads} {start}")
    finally:
        reached.switch(*before)


@having
@pytest.mark.parametrize("few_rows", (True, False))
@pytest.mark.parametrize("d", (16, 36, 64, 96))
def test_the_first_queries_of_a_text(d, few_rows, target, reached):
    """They see fewer keys than a vector has lanes."""
    q, kept = sample(d)
    whole = attend(reached, q, kept, 0, 300, few_rows=few_rows)
    for start, stop in ((0, 1), (0, 3), (2, 20), (14, 18), (127, 129), (255, 258)):
        found = attend(reached, q, kept, start, stop, few_rows=few_rows)
        np.testing.assert_array_equal(found, whole[:, start:stop], str(start))


@having
@pytest.mark.parametrize("few_rows", (True, False))
def test_keys_before_the_window_may_be_missing(few_rows, target, reached):
    q, kept = sample()
    for start, stop in ((1400, 1401), (1380, 1450)):
        options = {"window": 300, "few_rows": few_rows}
        whole = attend(reached, q, kept, start, stop, **options)
        for origin in (256, 768, 1024):
            found = attend(reached, q, kept, start, stop, origin, **options)
            np.testing.assert_array_equal(found, whole, str(origin))
