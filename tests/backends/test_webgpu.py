"""What is WebGPU's own: devices, arrays, limits. tests/ops/test_ops.py runs the ops on every device."""

import gc
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from accuracy import DTYPES, assert_agrees
from device_backends import (
    across_a_fork,
    after_a_fork,
    assert_all_agree,
    ran,
    results,
    sample,
    sample_optional,
)

import tensor_ops_webgpu as webgpu
from airllm import backends, extras, tensor_ops
from airllm.backends import registry
from airllm.formats import Quantized
from airllm.tensor_ops import OPS
from tensor_ops_webgpu import devices, engine, launches, selection

NO_WEBGPU = webgpu.get_webgpu_info()["reason"]
on_a_device = pytest.mark.skipif(bool(NO_WEBGPU), reason=f"no WebGPU here: {NO_WEBGPU}")
KERNELS = [name for name in OPS if name in launches.KERNELS and name != "dequantize"]


def python(code, **env):
    """What code prints in a process of its own, which says nothing else."""
    done = ran(code, **env)
    assert done.stderr == ""
    return done.stdout.strip()


# ---- devices ----


def test_importing_starts_nothing_and_looking_for_devices_says_nothing():
    looks = "print('wgpu' in sys.modules, t.calls()); t.get_webgpu_info()"
    assert python(f"import sys, tensor_ops_webgpu as t; {looks}", XDG_RUNTIME_DIR="") == "False 0"


def test_says_why_it_cannot_run_without_wgpu():
    code = (
        "import sys; sys.modules['wgpu'] = None\n"
        "import airllm.tensor_ops; from airllm.backends import open_backend;"
        " print(open_backend('webgpu').why_not)"
    )
    assert python(code).endswith(f"({extras.command('webgpu')})")


def test_a_python_that_wgpu_has_no_release_for_is_told_so():
    """And no command, which would install nothing."""
    code = (
        "import sys; sys.modules['wgpu'] = None\n"
        "from tensor_ops_webgpu import devices; devices._OLDEST_PYTHON = (3, 99)\n"
        "from airllm.backends import open_backend; print(open_backend('webgpu').why_not)"
    )
    own = "{}.{}".format(*sys.version_info)
    assert python(code) == f"wgpu, which it needs, is for Python 3.99 or newer, and this is {own}"


@pytest.mark.parametrize("kinds", ([], ["OpenGL"]))
def test_says_why_it_cannot_run_without_a_device(kinds, monkeypatch):
    wgpu = pytest.importorskip("wgpu")
    adapters = [type("Adapter", (), {"info": {"backend_type": kind}}) for kind in kinds]
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: adapters)
    devices.find_devices.cache_clear()
    monkeypatch.setattr(selection.choice, "_choice", None)
    assert "no WebGPU device here" in webgpu.get_webgpu_info()["reason"]
    with pytest.raises(RuntimeError, match="no WebGPU device here .GPUs come with"):
        webgpu.device()
    devices.find_devices.cache_clear()


@on_a_device
def test_a_device_is_chosen_by_index_or_name(monkeypatch):
    label = webgpu.variants()[0]
    for name in ("0", label, label.split()[1].upper()):
        webgpu.select(name)
        assert webgpu.device().startswith(label) and webgpu.get_webgpu_info()["chosen_by"] == "select()"
    webgpu.select(None)
    monkeypatch.setenv("AIRLLM_WEBGPU_DEVICE", "0")
    assert webgpu.get_webgpu_info()["chosen_by"] == "AIRLLM_WEBGPU_DEVICE"
    for unknown in ("99", "no such", ""):
        with pytest.raises(ValueError, match=f"unknown WebGPU device '{unknown}', expected .* part of: 0 "):
            webgpu.select(unknown)
    monkeypatch.delenv("AIRLLM_WEBGPU_DEVICE")
    webgpu.select(None)
    assert webgpu.get_webgpu_info()["chosen_by"] == "default"


@pytest.fixture
def three(monkeypatch):
    """A machine with a processor and two GPUs, and the kinds that do not compute: a set to add to."""

    def adapter(kind):
        return type("Adapter", (), {"info": {"adapter_type": kind, "device": kind, "backend_type": "Vulkan"}})

    def silu(device, x):
        if device.name in broken:
            raise RuntimeError(f"log of {device.name}\n  error: it is too old\nmore")
        return x / (1 + np.exp(-x))

    kinds, broken = ("CPU", "IntegratedGPU", "DiscreteGPU"), set()
    found = [devices.Device(adapter(kind), i) for i, kind in enumerate(kinds)]
    monkeypatch.setattr(devices, "find_devices", lambda: found)
    for name, value in {"silu": silu, "_choice": None, "_reasons": {}}.items():
        monkeypatch.setattr(selection.choice, name, value)
    monkeypatch.setattr("glob.glob", lambda pattern: [pattern])  # as if there were a GPU's node
    return broken


def test_gpus_come_before_processors_which_are_used_only_when_asked_for(three):
    assert webgpu.device() == "2 DiscreteGPU (Vulkan), GPU" and webgpu.only_when_asked() == ""
    webgpu.select("0")
    assert "ask for webgpu by name" in webgpu.only_when_asked()


def test_a_device_that_does_not_compute_is_passed_over_and_never_used_by_name(three):
    three.add("DiscreteGPU")
    assert webgpu.device() == "1 IntegratedGPU (Vulkan), integrated GPU" and webgpu.only_when_asked() == ""
    assert webgpu.variants() == ["0 CPU (Vulkan)", "1 IntegratedGPU (Vulkan)"]
    assert webgpu.unusable() == {"2 DiscreteGPU (Vulkan)": "error: it is too old"}
    with pytest.raises(
        RuntimeError, match=r"^select\(\)=2: 2 DiscreteGPU .* cannot be used: error: it is too old$"
    ):
        webgpu.select("2")


def test_where_no_gpu_computes_the_processor_is_left_to_those_who_ask_and_the_reasons_are_said(three):
    three |= {"DiscreteGPU", "IntegratedGPU"}
    said = webgpu.only_when_asked()
    assert (
        said.startswith("WebGPU has only CPU devices here")
        and said.count("GPU (Vulkan) cannot be used: error: it is too old") == 2
    )
    three.add("CPU")
    selection.choice._choice = None
    selection.choice._reasons.clear()
    with pytest.raises(RuntimeError, match=r"^2 Dis.* cannot be used: .*; 1 Int.*; 0 CPU .*too old$"):
        webgpu.device()


def test_what_did_not_compute_is_tried_again_after_a_reload(three, monkeypatch):
    three |= {"DiscreteGPU", "IntegratedGPU", "CPU"}
    monkeypatch.setitem(registry._opened, "webgpu", registry._try_open("webgpu"))
    assert not backends.is_backend_available("webgpu")
    three.clear()
    assert not backends.is_backend_available("webgpu")
    monkeypatch.setattr(webgpu, "silu", OPS["silu"].define, raising=False)
    monkeypatch.setattr(registry, "process_wide", registry.process_wide)  # the reload may choose webgpu
    backends.reload_backend()
    assert backends.is_backend_available("webgpu") and not webgpu.unusable()


@on_a_device
def test_devices_tell_their_memory():
    info = backends.get_backend_info("webgpu")
    assert info["available"] and info["device_count"] == len(webgpu.variants())
    assert info["max_memory"] > 1 << 27 and info["max_shared_memory"] >= 16384


# ---- arrays on a device ----


@on_a_device
@pytest.mark.parametrize("name", KERNELS)
def test_arrays_stay_on_the_device(name):
    dtype = DTYPES[KERNELS.index(name) % 3]
    args, optional = sample(name, dtype), sample_optional(name, dtype)
    assert not registry.open_backend("webgpu").why_not  # which computes something at the first time
    there = [webgpu.to_device(a) for a in args]
    optional_there = {n: webgpu.to_device(a) for n, a in optional.items()}
    before = webgpu.copies(), webgpu.calls()
    result = getattr(tensor_ops, name)(*there, **optional_there, backend="webgpu")
    assert webgpu.copies() == before[0] and webgpu.calls() > before[1]
    here = tuple(array.numpy() for array in results(result))
    assert_all_agree(here, results(OPS[name].exact(*args, **optional)), dtype)
    assert webgpu.copies() == before[0] + len(OPS[name].outs)


@on_a_device
def test_a_chain_of_ops_makes_no_copies():
    x, weight = sample("rms_norm", np.float32)
    there, scale = webgpu.to_device(x), webgpu.to_device(weight)
    before = webgpu.copies()
    result = webgpu.softmax(webgpu.silu(webgpu.rms_norm(there, scale)))
    assert webgpu.copies() == before
    expected = OPS["softmax"].exact(OPS["silu"].exact(OPS["rms_norm"].exact(x, weight)))
    assert_agrees(result.numpy(), expected, np.float32)


@on_a_device
def test_a_quantized_weight_on_the_device():
    rng = np.random.default_rng(0)
    q = tensor_ops.quantize(rng.standard_normal((21, 64), np.float32), "q8_0")
    there = webgpu.to_device(q)
    assert isinstance(there, Quantized) and there.shape == (21, 64)
    for rows in (3, 20):
        x = rng.standard_normal((rows, 64), np.float32)
        result = tensor_ops.linear(webgpu.to_device(x), there, backend="webgpu")
        assert_agrees(result.numpy(), x.astype(np.float64) @ q.dequantize().astype(np.float64).T, np.float32)
    np.testing.assert_array_equal(webgpu.dequantize(there).numpy(), q.dequantize())


@on_a_device
def test_a_result_may_be_an_input_of_any_op():
    a, b = sample("matmul", np.float32, m=9, k=9, n=9)
    there = webgpu.to_device(a)
    flat = there.reshape(-1)
    assert webgpu.matmul(there, webgpu.to_device(b), out=there) is there
    assert_agrees(there.numpy(), OPS["matmul"].exact(a, b), np.float32)
    np.testing.assert_array_equal(flat.numpy(), there.numpy().reshape(-1))  # still the same memory


@on_a_device
def test_what_arrays_on_a_device_are():
    for dtype in (*DTYPES, np.int32, np.int64, np.uint8, np.bool_):
        a = np.arange(15).reshape(3, 5).astype(dtype)
        there = webgpu.to_device(a)
        assert there.shape == a.shape and there.strides == a.strides and there.nbytes == a.nbytes
        np.testing.assert_array_equal(np.asarray(there), a)
        np.testing.assert_array_equal(there.reshape(5, -1).numpy(), a.reshape(5, 3))
    assert webgpu.to_device(np.empty((0, 3), np.float32)).numpy().shape == (0, 3)
    assert "float32 (3, 5) on 0 " in repr(webgpu.to_device(np.ones((3, 5), np.float32)))
    with pytest.raises(TypeError, match="to_device: array has dtype float64, expected one of float32, "):
        webgpu.to_device(np.ones(3))
    with pytest.raises(ValueError, match="view: dtype has .*float32.*, expected one of 2 bytes"):
        webgpu.to_device(np.ones(3, np.float16)).view(np.float32)


@on_a_device
def test_arrays_of_one_call_lie_in_one_place():
    x, there = np.ones(4, np.float32), webgpu.to_device(np.ones(4, np.float32))
    with pytest.raises(TypeError, match="swiglu: up has type ndarray, expected a WebGPU Array, as the first"):
        webgpu.swiglu(there, x)
    with pytest.raises(TypeError, match="swiglu: up has type Array, expected a NumPy array"):
        webgpu.swiglu(x, there)
    with pytest.raises(TypeError, match="silu: x has device webgpu:0, expected host memory"):
        tensor_ops.silu(there, backend="python")


@on_a_device
@pytest.mark.parametrize("dtype", (np.int32, np.int64))
def test_an_id_on_the_device_that_is_no_row_gives_nan(dtype):
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    ids = webgpu.to_device(np.array([3, -1, 4, 0], dtype))
    result = webgpu.embedding(ids, webgpu.to_device(table)).numpy()
    np.testing.assert_array_equal(result[[0, 3]], table[[3, 0]])
    assert np.isnan(result[1:3]).all()


# ---- limits and errors ----


@on_a_device
@pytest.mark.parametrize("name", KERNELS)
def test_more_work_than_one_grid_holds(name, monkeypatch):
    """A dimension of a grid has up to 65535 work-groups, which go on to further rows, or elements."""
    monkeypatch.setattr(launches, "_MOST_GROUPS", 1)
    for rows in (4, 9):
        d = 40 if name == "attention" else 700
        sizes = {"batch": (rows, 3), "m": rows * 40, "d": d, "n": 150, "s": 70, "t": 2}
        args, optional = sample(name, np.float32, **sizes), sample_optional(name, np.float32, **sizes)
        exact = OPS[name].exact(*args, **optional)
        assert_all_agree(getattr(webgpu, name)(*args, **optional), exact, np.float32)


@on_a_device
def test_what_a_device_does_not_take_is_computed_by_the_definition(monkeypatch):
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    opened = engine.engine(selection.choice.in_use())
    monkeypatch.setattr(opened, "limits", {"max-buffer-size": 1000, "max-storage-buffer-binding-size": 800})
    with pytest.raises(NotImplementedError, match="silu: x has 1600 bytes, expected at most 800: a limit of"):
        webgpu.silu(x)
    before = webgpu.calls()
    assert_agrees(tensor_ops.silu(x, backend="webgpu"), OPS["silu"].exact(x), np.float32)
    assert webgpu.calls() == before


@pytest.mark.parametrize("name", ("x", "out"))
def test_more_values_than_32_bits_count_are_refused(name):
    huge = np.broadcast_to(np.float32(0), (1 << 16, 1 << 16))
    arrays = {"x": np.zeros(3, np.float32), "out": np.zeros(3, np.float32), name: huge}
    call = launches.Call("silu", {"x": arrays["x"]}, {}, {"out": arrays["out"]})
    with pytest.raises(
        NotImplementedError, match=rf"silu: {name} has 4294967296 values, expected less than 2\^32"
    ):
        launches.plan_of(call)


@on_a_device
def test_loops_that_llvmpipe_would_end_early_are_refused(monkeypatch):
    opened = engine.engine(selection.choice.in_use())
    monkeypatch.setattr(opened, "most_steps", 65535)
    weights, matrix = np.ones(1 << 20, np.float32), np.ones((1 << 20, 2), np.float32)
    with pytest.raises(
        NotImplementedError, match="matmul_row takes 1310.. steps .*, expected at most 65535: a limit"
    ):
        webgpu.weighted_sum_rows(weights, matrix)
    assert tensor_ops.weighted_sum_rows(weights, matrix, backend="webgpu").tolist() == [1 << 20] * 2


@on_a_device
def test_a_kernel_that_does_not_compile_is_an_error_with_the_log(monkeypatch):
    opened = engine.engine(selection.choice.in_use())
    monkeypatch.setattr(opened, "_pipelines", {})
    monkeypatch.setattr(engine, "text", lambda launch: "fn main() { no_such_function(); }")
    with pytest.raises(RuntimeError, match=r"(?s)webgpu: 0 .* does not compile elements: .*no_such_function"):
        webgpu.silu(np.ones(4, np.float32))


@on_a_device
def test_freed_memory_is_used_again():
    opened = engine.engine(selection.choice.in_use())
    x, made = np.ones(1 << 16, np.float32), []
    real = opened.handle.create_buffer
    webgpu.silu(x)
    try:
        opened.handle.create_buffer = lambda **given: made.append(given) or real(**given)
        for _ in range(5):
            webgpu.silu(x)
    finally:
        del opened.handle.create_buffer
    assert not [given for given in made if given["size"] >= x.nbytes and given["usage"] == opened.usage]


@on_a_device
def test_memory_that_was_freed_in_a_cycle_is_used_again():
    """An exception's traceback is such a cycle; the garbage collector finalizes all that is in it."""
    x = np.ones(1 << 17, np.float32)
    for _ in range(3):
        cycle = [webgpu.to_device(x)]
        cycle.append(cycle)
        del cycle
        gc.collect()
        assert_agrees(webgpu.silu(x), OPS["silu"].exact(x), np.float32)


@on_a_device
def test_several_threads():
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((20 + i, 300)).astype(ml_dtypes.bfloat16) for i in range(4)]
    found = {}

    def work(i):
        found[i] = [webgpu.softmax(inputs[i]) for _ in range(10)]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    for i, several in found.items():
        for result in several:
            assert_agrees(result, OPS["softmax"].exact(inputs[i]), ml_dtypes.bfloat16)
    assert len(found) == 4


@on_a_device
@across_a_fork
def test_a_forked_process_is_refused():
    webgpu.silu(np.ones(3, np.float32))
    told = after_a_fork(lambda: webgpu.silu(np.ones(3, np.float32)))
    assert "WebGPU was started before this process was forked" in told
