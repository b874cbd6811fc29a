"""The MLX backend: its arrays stay its own, what it is called, and where it is taken.

That its ops are right is the part of the tables of all backends.
"""

import importlib.util
import inspect
import shutil
import sys
import types

import numpy as np
import pytest
from accuracy import TOLERANCE
from device_backends import across_a_fork, after_a_fork, every_dtype
from environment import REQUIRED

from airllm import backends, extras, tensor_ops
from airllm.backends import (
    config,
    config_schema,
    declaration,
    registry,
)
from airllm.formats import FORMATS, Quantized
from airllm.tensor_ops import OPS

if "mlx" in REQUIRED or not registry.open_backend("mlx").why_not:
    import mlx.core as mx

    import tensor_ops_mlx
    from tensor_ops_mlx import function, operations, runtime
else:
    pytest.skip(f"mlx: {registry.open_backend('mlx').why_not}", allow_module_level=True)

X = np.random.default_rng(0).standard_normal((6, 40), np.float32)
W = np.linspace(-1, 1, 40, dtype=np.float32)
AXES = {"d": 24, "r": 8, "m": 3, "k": 40, "n": 7, "h": 4, "g": 2, "t": 5, "s": 9, "e": 6, "v": 9}
COMPUTED = [op for name, op in OPS.items() if hasattr(tensor_ops_mlx, name)]


def in_mlx(array):
    return mx.array(array) if isinstance(array, np.ndarray) else array


def in_numpy(array):
    return np.asarray(array.astype(mx.float32))


def sample(op, dtype=np.float32):
    batch = (2,) if any(o.leads for o in op.operands) else ()
    return op.sample(np.random.default_rng(1), dtype, batch, **AXES)


@every_dtype
@pytest.mark.parametrize("op", COMPUTED, ids=lambda op: op.name)
def test_arrays_of_mlx_give_arrays_of_mlx_without_a_copy(op, dtype):
    args = sample(op, dtype)
    given = [in_mlx(a) for a in args]
    calls, copies = tensor_ops_mlx.calls(), tensor_ops_mlx.copies()
    result = getattr(tensor_ops, op.name)(*given, backend="mlx")
    assert (tensor_ops_mlx.calls(), tensor_ops_mlx.copies()) == (calls + 1, copies)
    for found, exact in zip(op.each(result), op.each(op.exact(*args)), strict=True):
        assert isinstance(found, mx.array) and found.dtype == getattr(mx, np.dtype(dtype).name)
        error = np.abs(in_numpy(found) - exact).max() / np.abs(exact).max()
        assert error < TOLERANCE[np.dtype(dtype)]


def test_numpy_arrays_are_copied_there_and_seen_from_here():
    copies = tensor_ops_mlx.copies()
    result = tensor_ops_mlx.rms_norm(X, W)
    assert tensor_ops_mlx.copies() == copies + 2
    assert type(result) is np.ndarray and result.flags.writeable and result.base is not None


def test_out_becomes_the_result():
    x, out = mx.array(X), mx.zeros((6, 40))
    assert tensor_ops.rms_norm(x, mx.array(W), out=out, backend="mlx") is out
    np.testing.assert_allclose(np.asarray(out), OPS["rms_norm"].exact(X, W), rtol=1e-5, atol=1e-6)
    assert tensor_ops.silu(x, out=x, backend="mlx") is x
    np.testing.assert_allclose(np.asarray(x), OPS["silu"].exact(X), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"silu: out has shape \(6, 40\), expected \(3, 40\)"):
        tensor_ops_mlx.silu(x[:3], out=out)
    with pytest.raises(TypeError, match="silu: out has dtype float32, expected float16"):
        tensor_ops_mlx.silu(x.astype(mx.float16), out=out)


def test_all_arrays_of_a_call_are_of_one_kind():
    with pytest.raises(TypeError, match="weight has type ndarray, expected a mlx.core.array, as the first"):
        tensor_ops_mlx.rms_norm(mx.array(X), W)
    with pytest.raises(TypeError, match="rms_norm: weight has type array, expected a NumPy array"):
        tensor_ops_mlx.rms_norm(X, mx.array(W))
    with pytest.raises(TypeError, match="silu: x has dtype int32, expected float32, float16 or bfloat16"):
        tensor_ops_mlx.silu(mx.array([1, 2]))
    with pytest.raises(TypeError, match=r"silu\(\) got an unexpected keyword argument 'backend'"):
        tensor_ops_mlx.silu(X, backend="cpp")


@pytest.mark.skipif(runtime.on_gpu(), reason="no other backend reads the memory of Metal's arrays")
@every_dtype
def test_another_backend_takes_them_too_and_gives_them_back_as_their_kind(dtype):
    given = mx.array(X.astype(dtype))
    result = tensor_ops.silu(given, backend="python")
    assert isinstance(result, mx.array) and result.dtype == given.dtype
    assert np.abs(in_numpy(result) - OPS["silu"].exact(X)).max() < 3 * TOLERANCE[np.dtype(dtype)]


def test_an_id_that_is_no_row_gives_nan():
    rows = tensor_ops_mlx.embedding(mx.array([0, -1, 5, 6]), mx.array(X))
    found = np.asarray(rows)
    assert np.isnan(found[[1, 3]]).all()
    np.testing.assert_array_equal(found[[0, 2]], X[[0, 5]])


def test_stored_weights_are_left_to_the_definition():
    weight = Quantized(FORMATS["q8_0"].encode(np.ones((3, 64), np.float32)), "q8_0")
    x = np.ones((2, 64), np.float32)
    with pytest.raises(NotImplementedError, match="linear: weight has format q8_0, expected floats"):
        tensor_ops_mlx.linear(x, weight)
    np.testing.assert_allclose(tensor_ops.linear(x, weight, backend="mlx"), 64, rtol=1e-2)
    assert backends.support_matrix()["linear"]["mlx"] == "kernel (floats)"


@pytest.mark.parametrize("rows_at_a_time", (1, 2, 5))
def test_long_prompts_are_attended_in_parts(rows_at_a_time, monkeypatch):
    """So that the scores of all queries are never in memory at once."""
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((2, h, n, 16), np.float32) for h, n in ((4, 5), (2, 9), (2, 9)))
    masks = [rng.standard_normal((2, 4, 5, 9)), rng.standard_normal((5, 9)) < 1, rng.standard_normal(9)]
    sinks = np.array([-1.0, 0.0, 1.0, 2.0], np.float32)
    monkeypatch.setattr(operations, "_SCORES", rows_at_a_time * 2 * 4 * 9)
    function._kernel.cache_clear()
    for mask in masks:
        mask = mask.astype(np.float32) if mask.dtype != bool else mask
        options = {"mask": mask, "causal": True, "window": 4, "softcap": 20.0, "sinks": sinks}
        found = tensor_ops_mlx.attention(q, k, v, **options)
        np.testing.assert_allclose(found, OPS["attention"].exact(q, k, v, **options), rtol=2e-5, atol=1e-5)


@pytest.mark.skipif(not shutil.which("g++"), reason="MLX compiles for a CPU with g++")
@pytest.mark.parametrize("name", ("softmax", "swiglu"))
def test_compiled_as_for_a_gpu_it_is_the_same(name, monkeypatch):
    args, exact = sample(OPS[name]), OPS[name].exact(*sample(OPS[name]))
    monkeypatch.setattr(function, "on_gpu", lambda: True)
    np.testing.assert_allclose(getattr(tensor_ops_mlx, name)(*args), exact, rtol=1e-5, atol=1e-6)
    before = function._kernel.cache_info().misses
    getattr(tensor_ops_mlx, name)(*args)
    assert function._kernel.cache_info().misses == before  # compiled once


# ---- names, order, devices ----


def values_of(platform, monkeypatch):
    """The module of names as it is on another system, whose declarations are read again."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.delitem(sys.modules, "airllm.backends.shipped.mlx")
    for name in ("shipped", "_load_declarations"):
        monkeypatch.setattr(declaration, name, inspect.unwrap(getattr(declaration, name)))
    spec = importlib.util.spec_from_file_location("values_elsewhere", config_schema.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_mps_and_metal_are_mlx_on_a_mac_alone(monkeypatch):
    for name in ("mps", "metal"):
        assert values_of("darwin", monkeypatch).canonical_name(name) == "mlx"
        assert values_of("linux", monkeypatch).canonical_name(name) == "metal"
    assert "metal" not in values_of("darwin", monkeypatch).ABSENT
    assert "Apple" in values_of("linux", monkeypatch).ABSENT["metal"]


@pytest.mark.skipif(sys.platform == "darwin", reason="Metal is there")
def test_where_metal_is_not_it_gives_way_to_the_next_and_mlx_goes_by_its_own_name():
    assert not backends.is_backend_available("mps") and not backends.is_backend_available("metal")
    assert backends.is_backend_available("mlx") and backends.init_backend("mlx").name() == "mlx"
    assert "metal" not in backends.list_backends() and "Apple" in backends.get_backend_info("mps")["reason"]
    assert next(each.reason for each in backends.discover_backends() if each.name == "metal")
    assert backends.init_backend("mps", fallback_backends=["metal", "cpu"]).name() == "cpp"
    assert backends.init_backend(backends.BackendPreference.Metal).name() == backends.get_backend()
    with pytest.raises(backends.BackendUnavailable, match="Metal needs an Apple GPU, and there is none here"):
        backends.init_backend("mps")


def test_a_cpu_is_no_reason_to_take_it_and_an_apple_gpu_is(monkeypatch):
    if sys.platform != "darwin":
        assert tensor_ops_mlx.only_when_asked().startswith("MLX needs an Apple GPU")
    monkeypatch.setattr(sys, "platform", "darwin")
    for gpu in (False, True):
        monkeypatch.setattr(runtime, "on_gpu", lambda gpu=gpu: gpu)
        assert bool(tensor_ops_mlx.only_when_asked()) == (not gpu)
        chosen = registry._first_running(("mlx", "python"), {})
        assert chosen.name == ("mlx" if gpu else "python")


def test_only_the_shipped_order_stands_for_all_backends():
    assert config.expand_order(("cuda", "opencl", "cpp", "python")) == config.BUILT_IN
    assert config.BUILT_IN.index("mlx") < config.BUILT_IN.index("opencl")
    assert config.expand_order(("cpp", "python")) == ("cpp", "python")


def test_the_device_has_the_hosts_memory(monkeypatch):
    (info,) = backends.get_backend_info("mlx")["devices"]
    assert info.unified_memory and info.name in registry.open_backend("mlx").device
    gpu = {"device_name": "Apple M9", "max_recommended_working_set_size": 21 << 30}
    mlx = types.SimpleNamespace(device_info=lambda: gpu, __version__="1")
    monkeypatch.setattr(runtime, "import_core", lambda: mlx)
    monkeypatch.setattr(runtime, "on_gpu", lambda: True)
    assert tensor_ops_mlx.device() == "MLX 1 on Apple M9 (GPU)"
    assert tensor_ops_mlx.device_infos() == [
        {"name": "Apple M9", "unified_memory": True, "total_memory": 21 << 30}
    ]


def test_without_mlx_the_reason_has_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlx.core", None)
    monkeypatch.delitem(registry._opened, "mlx")
    try:
        info = backends.get_backend_info("mlx")
        assert not info["available"] and extras.command("mlx") in info["reason"]
    finally:
        registry._opened.pop("mlx")


@across_a_fork
def test_a_forked_process_is_told_instead_of_waiting_for_ever():
    tensor_ops_mlx.silu(X)
    assert "forked" in after_a_fork(lambda: tensor_ops_mlx.silu(np.ones(2, np.float32)))
