"""benchmarks/bench_cuda.py on the stand-in, with small shapes and a library that has no ops of its own."""

import re
import time

import numpy as np
import pytest
from machine import clean_machine, rng, use_cublas  # noqa: F401

import tensor_ops_cuda as cuda
from airllm.tensor_ops import OPS
from benchmarks import bench_cuda


class OwnArrays:
    """DeviceArrays as a library of the benchmark, which takes time by the host's clock."""

    name = "own"

    def normal(self, shape, dtype):
        return cuda.to_device(rng.standard_normal(shape, np.float32).astype(np.dtype(dtype)))

    def empty(self, shape, dtype):
        return cuda.to_device(np.empty(shape, dtype))

    def integers(self, limit, shape):
        return cuda.to_device(rng.integers(0, limit, shape))

    def blocks(self, data):
        return cuda.to_device(data)

    def copy(self, to, source):
        pass

    def function(self, name):
        return (lambda x: cuda.silu(x)) if name == "silu" else None

    def seconds(self, calls, count):
        start = time.perf_counter()
        calls()
        return time.perf_counter() - start


@pytest.fixture
def small(monkeypatch):
    sizes = {"ROW_SHAPES": ((2, 64),), "PRODUCT_ROWS": (1, 9), "STORED_ROWS": (1, 9), "WIDTH": 32}
    sizes |= {"STORED_SHAPES": ((5, 256), (3, 64)), "HEADS": ((2, 1, 16),), "QUERIES": ((3, 3), (1, 20))}
    for name, value in {**sizes, "BLOCK_SECONDS": 0.0, "check_results": lambda *_: None}.items():
        monkeypatch.setattr(bench_cuda, name, value)
    use_cublas(monkeypatch)


def test_every_op_has_its_lines(small):
    names = [name for name in OPS if hasattr(cuda, name)]
    kept = []
    bench = bench_cuda.Bench(cuda, [OwnArrays()], 1e9, 1)
    page = bench_cuda.report(bench, names, ["float32", "float16"], kept.append)
    assert len(kept) == 4 and kept[-1] == page and all(map(page.startswith, kept))
    for name in set(names) - {"matmul", "linear", "attention", "dequantize"}:
        assert re.search(rf"^\| {name} float16 2x64 +\|", page, re.M), name
    for matmul in ("cublas", "tiled"):
        assert re.search(rf"^\| linear {matmul} float32 9x32 by 32x32 ", page, re.M)
    assert re.search(r"^\| float16 2 heads over 1 of 16, 1 by 20 ", page, re.M)
    assert re.search(r"^\| q8_0 float32 9x64 by 3x64 ", page, re.M)
    assert len(re.findall(r"\d\.\d\dx", page)) == 2  # silu beside the library's, in both dtypes


def test_a_wrong_result_is_no_figure():
    ones = type("Array", (), {"get": lambda self: np.ones(3)})()
    twos = type("Array", (), {"get": lambda self: np.full(3, 2.0)})()
    bench_cuda.check_results("silu", ones, ones)
    with pytest.raises(SystemExit, match="silu is not the other library's"):
        bench_cuda.check_results("silu", (ones, twos), (ones, ones))
