"""Unit tests of the built extension modules: what each promises to those who import it directly.

    python test_cpp_ext.py                 every module that is built here; fails if none is
    python test_cpp_ext.py --backend cpp   this one, which must be built
    pytest test_cpp_ext.py                 the same, as part of the suite

Expected values are computed here, in double precision, apart from the package's own definitions.
"""

import argparse
import importlib
import os
import sys
from pathlib import Path

import numpy as np

try:
    import pytest
except ModuleNotFoundError:
    sys.exit('test_cpp_ext.py needs pytest: python -m pip install -e ".[test]"')

sys.path.append(str(Path(__file__).resolve().parent / "cpp_ext"))

from airllm.backends import proof

MODULES = ("cpp", "opencl", "cuda")
CHOSEN = os.environ.get("AIRLLM_TEST_EXT", "")
INFO = {"cpp": "get_optimization_info", "opencl": "get_opencl_info", "cuda": "get_cuda_info"}


def why_not(name):
    """Why a backend's module cannot be tested here; empty if it can."""
    try:
        proof.prove_device(importlib.import_module(f"tensor_ops_{name}"))
    except Exception as error:  # a driver may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.fixture(params=[CHOSEN] if CHOSEN else MODULES)
def ops(request):
    reason = why_not(request.param)
    if reason and CHOSEN:
        pytest.fail(f"{CHOSEN} was asked for and cannot run here: {reason}")
    if reason:
        pytest.skip(f"{request.param} cannot run here: {reason.splitlines()[0]}")
    return importlib.import_module(f"tensor_ops_{request.param}")


@pytest.fixture
def x():
    return np.random.default_rng(7).standard_normal((128, 4096)).astype(np.float32)


def assert_near(actual, exact):
    assert actual.dtype == np.float32 and actual.shape == exact.shape
    assert np.abs(actual - exact).max() <= 1e-5 * np.abs(exact).max()


def test_rms_norm(ops, x):
    weight = np.random.default_rng(8).standard_normal(4096).astype(np.float32)
    wide = x.astype(np.float64)
    for eps in (1e-6, 0.5):
        exact = wide * weight / np.sqrt((wide**2).sum(axis=-1, keepdims=True) / 4096 + eps)
        assert_near(ops.rms_norm(x, weight, eps=eps), exact)
    assert np.array_equal(ops.rms_norm(x, weight), ops.rms_norm(x, weight, 1e-6))


def test_silu(ops, x):
    wide = x.astype(np.float64)
    assert_near(ops.silu(x), wide * (1 + np.tanh(wide / 2)) / 2)  # the sigmoid by another formula


def test_gelu(ops, x):
    wide = x.astype(np.float64)
    assert_near(ops.gelu(x), wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3))) / 2)


def test_softmax(ops, x):
    e = np.exp(x.astype(np.float64))  # no shift: these inputs are small
    assert_near(ops.softmax(x), e / e.sum(axis=-1, keepdims=True))
    assert np.allclose(ops.softmax(x).sum(axis=-1), 1, atol=1e-5)


@pytest.mark.parametrize("rows", (1, 7, 128))
def test_matmul(ops, x, rows):
    b = np.random.default_rng(9).standard_normal((4096, 33)).astype(np.float32)
    exact = np.einsum("mk,kn->mn", x[:rows].astype(np.float64), b.astype(np.float64))
    assert_near(ops.matmul(x[:rows], b), exact)


def test_half_precision(ops, x):
    half = x.astype(np.float16)
    result = ops.silu(half)
    wide = half.astype(np.float64)
    assert result.dtype == np.float16
    assert np.abs(result - wide / (1 + np.exp(-wide))).max() <= 2e-3 * np.abs(wide).max()


def test_results_go_where_out_says(ops, x):
    out = np.empty_like(x)
    assert ops.silu(x, out=out) is out
    assert np.array_equal(out, ops.silu(x))


def test_what_would_be_computed_wrongly_is_refused(ops, x):
    for bad in (x[:, ::2], x.T):
        with pytest.raises(ValueError, match="expected C-contiguous"):
            ops.silu(bad)
    with pytest.raises(TypeError, match="expected float32, float16 or bfloat16"):
        ops.silu(x.astype(np.float64))
    with pytest.raises(ValueError, match=r"rms_norm: weight has shape \(5,\), expected \(d\) with d=4096"):
        ops.rms_norm(x, np.ones(5, np.float32))


def test_info_tells_the_device(ops):
    info = getattr(ops, INFO[ops.__name__.removeprefix("tensor_ops_")])()
    assert isinstance(info, dict) and len(info) > 3
    assert isinstance(ops.device(), str) and ops.device()


def test_cpp_flags():
    if reason := why_not("cpp"):
        pytest.skip(f"cpp cannot run here: {reason.splitlines()[0]}")
    module = importlib.import_module("tensor_ops_cpp")
    flags = ("has_simd", "has_openmp", "has_fma", "has_avx", "has_avx2", "has_avx512", "has_neon")
    info = module.get_optimization_info()
    for flag in flags:
        assert isinstance(getattr(module, flag), bool) and getattr(module, flag) == info[flag]
    assert module.simd_level == info["simd_level"] == module.variants()[0]
    assert module.has_simd == (module.simd_level != "scalar")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--backend", type=str.lower, choices=MODULES, help="test this backend alone; it must be built"
    )
    chosen = parser.parse_args().backend
    reasons = {name: why_not(name) for name in ([chosen] if chosen else MODULES)}
    for name, reason in reasons.items():
        print(f"{name}: {'cannot run here: ' + reason if reason else 'tested'}")
    if all(reasons.values()):
        sys.exit(
            "test_cpp_ext.py: no extension module runs here; build one: python setup.py build_ext --inplace"
        )
    os.environ["AIRLLM_TEST_EXT"] = chosen or ""
    sys.exit(pytest.main([__file__, "-q", "-p", "no:cacheprovider"]))


if __name__ == "__main__":
    main()
