"""Kernels read nothing behind weights: a file may end where the memory ends."""

import guarded_memory
import numpy as np
import pytest
import stored
from targets import targets

from airllm.formats import FORMATS, Quantized

before_a_hole = guarded_memory.before_a_hole
having = pytest.mark.parametrize(
    "target", [t for t in targets() if hasattr(t.module, "rows_as_stored")], ids=str
)


@having
@pytest.mark.parametrize("k", (256, 768))
@pytest.mark.parametrize("name", FORMATS)
def test_nothing_is_read_behind_weights(name, k, target, reached, before_a_hole):
    """Few rows and many, numbers of columns that kernels compute at once and others."""
    x = np.random.default_rng(k).standard_normal((70, k), np.float32)
    for n in (1, 16, 67):
        weight = stored.blocks(name, (n, k), k)
        apart = Quantized(before_a_hole(weight.data), name)
        for rows in (1, 2, 3, 5, 16, 70):
            np.testing.assert_array_equal(reached.linear(x[:rows], apart), reached.linear(x[:rows], weight))
        np.testing.assert_array_equal(reached.dequantize(apart), reached.dequantize(weight))
        ids = np.array([n - 1, 0])
        np.testing.assert_array_equal(reached.embedding(ids, apart), reached.embedding(ids, weight))
