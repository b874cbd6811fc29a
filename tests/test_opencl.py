"""What is OpenCL's own: devices, arrays, memory. tests/test_ops.py runs the ops on every device."""

import json
import math
import os
import subprocess
import sys
import threading
import warnings
from fractions import Fraction
from multiprocessing import get_context
from pathlib import Path

import kernel_cases
import ml_dtypes
import numpy as np
import pytest
from conftest import DTYPES, REQUIRED, assert_agrees

import tensor_ops_opencl as opencl
from airllm import tensor_ops
from airllm.formats import FORMATS, Quantized
from airllm.tensor_ops import OPS

NO_OPENCL = opencl.get_opencl_info()["reason"]
if NO_OPENCL and "opencl" in REQUIRED:
    pytest.exit(f"AIRLLM_TEST_REQUIRE names opencl, which cannot run here: {NO_OPENCL}", returncode=3)
on_a_device = pytest.mark.skipif(bool(NO_OPENCL), reason=f"no OpenCL here: {NO_OPENCL}")
VARIANTS = [] if NO_OPENCL else opencl.variants()
every_variant = pytest.mark.parametrize("variant", VARIANTS or [pytest.param("", marks=on_a_device)])
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def variant(request):
    """Runs a test on one device and form."""
    opencl.select(request.param)
    yield request.param
    opencl.select(None)


def every(function):
    return pytest.mark.parametrize(
        "variant", VARIANTS or [pytest.param("", marks=on_a_device)], indirect=True
    )(function)


def python(code, tmp_path, **env):
    """Runs code in a process of its own; returns what it printed."""
    paths = os.pathsep.join([str(ROOT), str(Path(opencl.__file__).parents[1]), *filter(None, sys.path)])
    env = {
        **os.environ,
        "PYTHONPATH": paths,
        "POCL_CACHE_DIR": str(tmp_path),
        "PYOPENCL_NO_CACHE": "1",
        **env,
    }
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


KERNELS = {name: op for name, op in OPS.items() if name in opencl.__all__ and name != "dequantize"}
every_op = pytest.mark.parametrize("op", KERNELS.values(), ids=KERNELS)
SIZES = {
    "batch": (3,),
    "d": 77,
    "r": 2,
    "m": 9,
    "k": 33,
    "n": 21,
    "h": 4,
    "g": 2,
    "t": 5,
    "s": 19,
    "e": 7,
    "v": 9,
}


def sample(op, dtype, **sizes):
    return OPS[op].sample(np.random.default_rng(3), dtype, **SIZES | sizes)


def results(found):
    """One result or several."""
    return found if isinstance(found, tuple) else (found,)


def assert_all_agree(found, exact, dtype):
    for a, b in zip(results(found), results(exact), strict=True):
        assert_agrees(a, b, np.dtype(dtype))


def may_be_input(op):
    """Whether `out` may be the first array."""
    return len(op.outs) == 1 and op.operands[0].axes == op.out and op.operands[0].kind == "own"


# ---- without a device ----


def test_importing_starts_nothing(tmp_path):
    code = (
        "import sys, tensor_ops_opencl as t; t.only_when_asked; print('pyopencl' in sys.modules, t.calls())"
    )
    assert python(code, tmp_path) == "False 0"


@pytest.mark.parametrize("platforms", ["an error", "none"])
def test_says_why_it_cannot_run_without_a_device(platforms, monkeypatch):
    cl = pytest.importorskip("pyopencl")

    def get_platforms():
        if platforms == "none":
            return []
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", get_platforms)
    opencl.select(None)
    info = opencl.get_opencl_info()
    assert not info["available"] and info["platforms"] == []
    for asked in (opencl.device, opencl.variants, lambda: list(opencl.build_report())):
        with pytest.raises(RuntimeError, match="no OpenCL device here .pip install") as raised:
            asked()
        assert str(raised.value) == info["reason"]
    with pytest.raises(RuntimeError, match="no OpenCL device here"):
        opencl.silu(np.ones(3, np.float32))


def test_says_why_it_cannot_run_without_pyopencl(tmp_path):
    code = (
        "import sys; sys.modules['pyopencl'] = None; import tensor_ops_opencl as t\n"
        "print(t.get_opencl_info()['reason'])\ntry: t.device()\nexcept ImportError as e: print(e)"
    )
    assert python(code, tmp_path).count("pyopencl") == 2


def test_names_of_ops_are_those_declared():
    from tensor_ops_opencl.launches import KERNELS as launched

    assert list(launched) == [name for name in OPS if name in launched]
    with pytest.raises(AttributeError, match="no attribute 'no_such_op'"):
        opencl.no_such_op  # noqa: B018


# ---- devices ----


@on_a_device
def test_info_describes_every_device():
    info = opencl.get_opencl_info()
    devices = [device for platform in info["platforms"] for device in platform["devices"]]
    assert info["available"] and info["reason"] == "" and info["device"] in [d["label"] for d in devices]
    assert info["device"] in opencl.device()
    assert all(
        d["compute_units"] > 0 and d["memory_bytes"] > 0 and d["kernels"] in ("cpu", "gpu") for d in devices
    )
    json.dumps(info)


@on_a_device
def test_every_kernel_compiles_for_every_device():
    reports = list(opencl.build_report())
    assert len(reports) == 2 * len({v.split()[0] for v in VARIANTS})
    for report in reports:
        assert report["ok"], report["log"]
        assert len(report["kernels"]) > 10 and report["seconds"] > 0


@on_a_device
def test_a_failed_build_is_reported_with_its_log(monkeypatch):
    from tensor_ops_opencl import survey

    monkeypatch.setattr(
        survey, "text", lambda form, family: "__kernel void broken(__global float* x) { undeclared = 1; }"
    )
    for report in opencl.build_report():
        assert not report["ok"] and "undeclared" in report["log"]


@on_a_device
@pytest.mark.parametrize("named", ["index", "pair", "name", "label"])
def test_the_environment_chooses_the_device(named, tmp_path):
    label = [v for v in VARIANTS if "gpu kernels" not in v][-1]
    last = len({v.split()[0] for v in VARIANTS}) - 1
    name = {"index": str(last), "pair": label.split()[0], "name": label.upper(), "label": VARIANTS[-1]}[named]
    code = "import tensor_ops_opencl as t; i = t.get_opencl_info(); print(i['chosen_by']); print(i['device'])"
    chosen_by, device = python(code, tmp_path, AIRLLM_OPENCL_DEVICE=name).splitlines()
    assert chosen_by == "AIRLLM_OPENCL_DEVICE"
    assert device == (VARIANTS[-1] if named == "label" else label)


@on_a_device
def test_the_configuration_file_chooses_the_device(tmp_path):
    file = tmp_path / "backend.json"
    code = "import tensor_ops_opencl as t; i = t.get_opencl_info(); print(i['chosen_by']); print(i['reason'])"
    file.write_text('{"opencl_device": "0"}')
    assert python(code, tmp_path, AIRLLM_CONFIG=str(file)) == f"{file}: opencl_device"
    file.write_text('{"opencl_device": [0]}')
    assert f"{file}:1: opencl_device has a list, expected" in python(code, tmp_path, AIRLLM_CONFIG=str(file))


@on_a_device
@pytest.mark.parametrize("name", ["99", "9:9", "no such device"])
def test_an_unknown_device_names_the_known_ones(name, tmp_path):
    code = "import tensor_ops_opencl as t\ntry: t.device()\nexcept ValueError as e: print(e)"
    told = python(code, tmp_path, AIRLLM_OPENCL_DEVICE=name)
    assert told.startswith(f"AIRLLM_OPENCL_DEVICE: unknown OpenCL device {name!r}, expected")
    assert VARIANTS[0].split(" (")[0] in told
    with pytest.raises(ValueError, match=r"^select\(\): unknown OpenCL device"):
        opencl.select(name)


@on_a_device
def test_the_default_is_a_gpu_or_the_newest_driver(monkeypatch):
    from tensor_ops_opencl import devices

    monkeypatch.delenv("AIRLLM_OPENCL_DEVICE", raising=False)
    opencl.select(None)
    ranks = {device.label: device.rank() for device in devices.found()}
    assert ranks[opencl.get_opencl_info()["device"]] == max(ranks.values())


@on_a_device
def test_only_when_asked_where_all_devices_are_cpus():
    kinds = {d["type"] for p in opencl.get_opencl_info()["platforms"] for d in p["devices"]}
    assert bool(opencl.only_when_asked()) == (kinds == {"CPU"})


@on_a_device
def test_the_backend_can_be_asked_for_by_name(tmp_path):
    code = (
        "from airllm import tensor_ops as t; import tensor_ops_opencl as o; print(t.get_backend(), o.calls())"
    )
    assert python(code, tmp_path, AIRLLM_BACKEND="opencl") == "opencl 1"


def _silu_of_ones(results):
    try:
        results.put(str(opencl.silu(np.ones(4, np.float32))))
    except RuntimeError as error:
        results.put(str(error))


@on_a_device
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_is_told_instead_of_waiting_for_ever():
    opencl.silu(np.ones(4, np.float32))
    fork = get_context("fork")
    results = fork.SimpleQueue()
    process = fork.Process(target=_silu_of_ones, args=(results,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert "forked" in results.get()


# ---- the launch table ----


@every
@pytest.mark.parametrize("shared", [True, False], ids=["in place", "through buffers"])
def test_every_kernel_computes_its_definition(variant, shared, monkeypatch):
    """The launch table with what the ops' own functions do not pass on, too."""
    from tensor_ops_opencl import devices, engine, host_arrays

    opened = engine.engine(devices.in_use())
    monkeypatch.setattr(opened, "shares_memory", shared)
    for case in kernel_cases.cases(opened.program.form):
        results = {name: np.empty(exact.shape, case.dtype) for name, exact in case.exact.items()}
        monkeypatch.setattr(opened.program, "compute_units", case.compute_units)
        host_arrays.run(case.op, case.arrays, case.parameters, results)
        for name, out in results.items():
            assert_agrees(out, case.exact[name], case.dtype)


@every
def test_only_what_is_needed_is_compiled(variant):
    from tensor_ops_opencl import devices, engine

    used = devices.in_use()
    program = engine.Program(engine.engine(used).context, used.handle, used.form)
    program.kernel("elements", f"{'cpu_' if used.form == 'cpu' else ''}silu_f32")
    assert list(program._built) == ["elements"]


# ---- NumPy arrays ----


@every
def test_cpu_devices_work_in_place_of_the_arrays(variant):
    if ", CPU, " not in opencl.device():
        pytest.skip("a device with memory of its own")
    for op in KERNELS:
        before = opencl.copies(), opencl.calls()
        getattr(opencl, op)(*sample(op, np.float32))
        assert opencl.copies() == before[0] and opencl.calls() > before[1]


@every
@every_dtype
@every_op
def test_devices_with_memory_of_their_own(variant, dtype, op, monkeypatch):
    """A CPU device is used as a GPU would be: values go through pooled buffers."""
    from tensor_ops_opencl import devices, engine

    monkeypatch.setattr(engine.engine(devices.in_use()), "shares_memory", False)
    for d in (77, 5, 512):
        args = sample(op.name, dtype, d=d)
        before = opencl.copies()
        assert_all_agree(getattr(opencl, op.name)(*args), op.exact(*args), dtype)
        assert opencl.copies() == before + len(args) + len(op.outs)
    if may_be_input(op):
        exact, x = op.exact(*args), args[0]
        assert getattr(opencl, op.name)(*args, out=x) is x
        assert_agrees(x, exact, np.dtype(dtype))


@every
def test_arrays_that_share_memory(variant):
    """Two buffers upon overlapping memory are undefined in OpenCL, so these must not become that."""
    whole = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
    for a, b in ((whole[:6], whole[:6]), (whole[:6], whole[1:])):
        assert_agrees(opencl.matmul(a, b), OPS["matmul"].exact(a, b), np.dtype(np.float32))
    row = whole[:1]
    assert_agrees(opencl.rms_norm(row, row[0]), OPS["rms_norm"].exact(row, row[0]), np.dtype(np.float32))


@every
@pytest.mark.parametrize("m, k, n", [(1, 40, 300), (4, 7, 130), (5, 40, 70), (130, 20, 300), (513, 33, 260)])
@every_dtype
def test_every_size_of_matmul(variant, dtype, m, k, n):
    """Rows, small and large tiles: which one runs depends on the size."""
    args = sample("matmul", dtype, m=m, k=k, n=n, batch=(2,))
    assert_agrees(opencl.matmul(*args), OPS["matmul"].exact(*args), np.dtype(dtype))


@every
@pytest.mark.parametrize("m, k, compute_units", [(1, 2**20, None), (5, 2**20, None), (5, 2**17, 0)])
def test_long_sums_keep_their_digits(variant, m, k, compute_units, monkeypatch):
    """One float32 sum of all k products is 1 % off here; rows, small tiles, and large ones by no units."""
    from tensor_ops_opencl import devices, engine

    program = engine.engine(devices.in_use()).program
    if compute_units is not None and program.form == "gpu":
        monkeypatch.setattr(program, "compute_units", compute_units)
    found = opencl.matmul(np.full((m, k), 0.1, np.float32), np.ones((k, 2), np.float32))
    np.testing.assert_allclose(found, np.full((m, 2), np.float64(np.float32(0.1)) * k), rtol=1e-5)


def _with_nans(dtype, d):
    """Rows with a NaN each, whose bits are every sign and payload that arithmetic or memory can hold."""
    bits = {"float32": (0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00001, 0x7F800001)}
    bits["float16"] = (0x7FFF, 0xFFFF, 0x7E01, 0x7C01)
    bits["bfloat16"] = (0x7FFF, 0xFFFF, 0x7FC1, 0x7F81)
    dtype = np.dtype(dtype)
    x = np.random.default_rng(0).standard_normal((8, d)).astype(dtype)
    for i, payload in enumerate(2 * bits[dtype.name]):  # in the middle of packs, and at the end
        x[i].view(f"u{dtype.itemsize}")[d // 2 if i < 4 else -1] = payload
    return x


@every
@every_dtype
@pytest.mark.parametrize("d", [1, 5, 8, 77, 9001])
def test_every_nan_stays_one(variant, dtype, d):
    x = _with_nans(dtype, d)
    with np.errstate(invalid="ignore"):  # said of NaNs that are to trap
        nan = np.isnan(x)
    assert nan.sum() == 8
    for op in ("silu", "gelu"):
        assert (np.isnan(getattr(opencl, op)(x)) == nan).all(), op
    for found in (opencl.softmax(x), opencl.rms_norm(x, np.ones(d, dtype))):
        assert np.isnan(found).all()
    weighted = opencl.rms_norm(np.ones((2, d), dtype), x[0])
    assert (np.isnan(weighted) == nan[0]).all()


def test_the_largest_tile_is_used_where_it_fills_the_device():
    from tensor_ops_opencl.launches import Call, plan_of

    a, b = np.empty((1024, 8), np.float32), np.empty((8, 1024), np.float32)

    def kernel(units, form, m=1024):
        call = Call("matmul", {"a": a[:m], "b": b}, {}, (m, 1024), form, units)
        return plan_of(call).launches[0].kernel

    assert kernel(4, "gpu") == "matmul_f32_tile128" and kernel(100, "gpu") == "matmul_f32_tile64"
    assert kernel(4, "cpu") == "cpu_matmul_f32"
    assert kernel(4, "gpu", m=2) == "matmul_row_f32"


@every
def test_many_threads_at_once(variant):
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((5, 100 + 13 * i)).astype(np.float32) for i in range(8)]
    wrong = []

    def work(x):
        for _ in range(20):
            for op in ("silu", "softmax"):
                found, exact = getattr(opencl, op)(x), OPS[op].exact(x)
                if not np.allclose(found, exact, rtol=1e-4, atol=1e-6):
                    wrong.append((op, x.shape))

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@every
@every_dtype
@every_op
@pytest.mark.parametrize("d", [1, 7, 8, 9, 100])
def test_writes_nothing_around_its_output(variant, dtype, op, d):
    args = sample(op.name, dtype, d=d, r=d // 2, m=d, n=d + 2)
    shapes = op.out_shapes(args)
    guarded = [np.full(math.prod(shape) + 64, 7, dtype) for shape in shapes]
    outs = tuple(g[32 : 32 + math.prod(s)].reshape(s) for g, s in zip(guarded, shapes, strict=True))
    out = outs if len(outs) > 1 else outs[0]
    assert getattr(opencl, op.name)(*args, out=out) is out
    assert all((g[:32] == 7).all() and (g[-32:] == 7).all() for g in guarded)
    assert_all_agree(out, op.exact(*args), dtype)


@every
def test_what_a_number_is(variant):
    x, weight = sample("rms_norm", np.float32)
    for eps in ("1e-6", "small", True, None, [1e-6], np.ones(1, np.float32), np.array(1e-6), 1j):
        with pytest.raises(TypeError, match="^rms_norm: eps has type [a-zA-Z]+, expected a number$"):
            opencl.rms_norm(x, weight, eps=eps)
    with pytest.raises(ValueError, match="^rms_norm: eps has .*expected a number that"):
        opencl.rms_norm(x, weight, eps=10**400)
    for eps in (1, np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int8(1), Fraction(1, 3)):
        exact = OPS["rms_norm"].exact(x, weight, eps=float(eps))
        assert_agrees(opencl.rms_norm(x, weight, eps=eps), exact, np.dtype(np.float32))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not opencl.rms_norm(x, weight, eps=1e300).any()


# ---- pyopencl's arrays ----


@pytest.fixture
def queue(variant):
    import pyopencl as cl

    from tensor_ops_opencl import devices

    return cl.CommandQueue(cl.Context([devices.in_use().handle]))


def put(queue, array):
    """The array on the device; pyopencl's own transfers cannot bfloat16."""
    import pyopencl.array

    return pyopencl.array.to_device(queue, array.view(np.uint8 if array.ndim else None)).view(array.dtype)


def got(array):
    return array.view(np.uint8).get().view(array.dtype)


OWN_FORMS = [v for v in VARIANTS if "gpu kernels" not in v]
every_queue = pytest.mark.parametrize(
    "variant", OWN_FORMS or [pytest.param("", marks=on_a_device)], indirect=True
)


@every_queue
@every_dtype
@every_op
def test_device_arrays_stay_on_the_device(queue, dtype, op):
    args = sample(op.name, dtype)
    arrays = [put(queue, array) for array in args]
    before = opencl.copies(), opencl.calls()
    outs = results(getattr(opencl, op.name)(*arrays))
    assert opencl.copies() == before[0] and opencl.calls() > before[1]
    assert all(type(out) is type(arrays[0]) and out.queue is queue and out.dtype == dtype for out in outs)
    assert_all_agree(tuple(map(got, outs)), results(op.exact(*args)), dtype)


@every_queue
@pytest.mark.parametrize("start", [0, 1, 32, 33], ids="offset {}".format)
@every_op
def test_parts_of_device_arrays(queue, op, start):
    """A part may begin where the device cannot make a buffer begin: then it is copied, on the device."""
    args = sample(op.name, np.float32, d=9)
    shapes = op.out_shapes(args)
    padded = [put(queue, np.concatenate([np.zeros(start, a.dtype), a.ravel()])) for a in args]
    arrays = [p[start:].reshape(array.shape) for p, array in zip(padded, args, strict=True)]
    around = [put(queue, np.full(start + math.prod(shape) + 8, 7, np.float32)) for shape in shapes]
    parts = zip(around, shapes, strict=True)
    outs = tuple(a[start : start + math.prod(shape)].reshape(shape) for a, shape in parts)
    out = outs if len(outs) > 1 else outs[0]
    before = opencl.copies()
    assert getattr(opencl, op.name)(*arrays, out=out) is out
    assert opencl.copies() == before
    assert_all_agree(tuple(map(got, outs)), results(op.exact(*args)), np.float32)
    for whole in map(got, around):
        assert (whole[:start] == 7).all() and (whole[-8:] == 7).all()


@every_queue
@pytest.mark.parametrize("start", [0, 1, 32])
def test_device_arrays_in_place(queue, start):
    x = np.random.default_rng(0).standard_normal((4, 50)).astype(np.float32)
    for op in ("silu", "gelu", "softmax"):
        array = put(queue, np.concatenate([np.zeros(start, np.float32), x.ravel()]))[start:].reshape(x.shape)
        assert getattr(opencl, op)(array, out=array) is array
        assert_agrees(got(array), OPS[op].exact(x), np.dtype(np.float32))


@every_queue
def test_an_out_of_order_queue(variant):
    import pyopencl as cl

    from tensor_ops_opencl import devices

    context = cl.Context([devices.in_use().handle])
    properties = cl.command_queue_properties.OUT_OF_ORDER_EXEC_MODE_ENABLE
    x = np.random.default_rng(0).standard_normal((40, 5000)).astype(np.float32)
    array = put(cl.CommandQueue(context, properties=properties), x)
    exact = x.astype(np.float64)
    for _ in range(5):
        array, exact = opencl.silu(array), OPS["silu"].exact(exact)
    assert_agrees(got(array), exact, np.dtype(np.float32))


@every_queue
def test_empty_device_arrays(queue):
    import pyopencl.array

    def empty(*shape):
        return pyopencl.array.Array(queue, shape, np.float32)

    before = opencl.calls()
    assert opencl.silu(empty(0, 4)).shape == (0, 4)
    product = opencl.matmul(empty(3, 0), empty(0, 5))
    assert product.shape == (3, 5) and not got(product).any()
    assert opencl.calls() == before


@every_queue
def test_bad_device_arrays_are_named(queue):
    import pyopencl as cl

    host, w = np.ones((2, 6), np.float32), np.ones(6, np.float32)
    x, y, weight = put(queue, host), put(queue, np.ones((6, 2), np.float32)), put(queue, w)
    other = put(cl.CommandQueue(cl.Context([queue.device])), w)
    bad = [
        (lambda: opencl.rms_norm(x, w), TypeError, "weight has type ndarray, expected a pyopencl Array"),
        (lambda: opencl.rms_norm(host, weight), TypeError, "weight has type Array, expected a NumPy array"),
        (lambda: opencl.silu(x, out=host), TypeError, "out has type ndarray, expected a pyopencl Array"),
        (
            lambda: opencl.rms_norm(x, other),
            TypeError,
            "weight has another OpenCL context, expected that of x",
        ),
        (lambda: opencl.silu(x.with_queue(None)), TypeError, "x has no queue, expected one"),
        (lambda: opencl.silu(x.astype(np.float64)), TypeError, "x has dtype float64, expected float32"),
        (lambda: opencl.silu(x, out=y.T), ValueError, r"out has strides \(4, 8\), expected C-contiguous"),
        (
            lambda: opencl.rms_norm(x, weight[:5]),
            ValueError,
            r"weight has shape \(5,\), expected \(d\) with d=6",
        ),
        (lambda: opencl.silu(x, out=weight), ValueError, r"out has shape \(6,\), expected \(2, 6\)"),
        (
            lambda: opencl.silu(x[:1], out=x.reshape(12)[1:7].reshape(1, 6)),
            ValueError,
            "out overlaps x, expected memory",
        ),
    ]
    before = opencl.calls()
    for call, error, message in bad:
        with pytest.raises(error, match=message):
            call()
    square = put(queue, np.ones((3, 3), np.float32))
    with pytest.raises(ValueError, match=r"matmul: out overlaps a, expected memory of its own$"):
        opencl.matmul(square, square, out=square)
    assert opencl.calls() == before


@every_queue
def test_attention_on_parts_of_a_cache(queue):
    """Keys and values are strided views of a cache that is longer; the mask is of bytes."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 5, 4, 8), np.float32)
    cache = rng.standard_normal((2, 2, 30, 8), np.float32)
    mask = rng.random((5, 20)) > 0.3
    exact = OPS["attention"].exact(q.transpose(0, 2, 1, 3), cache[:, :, :20], cache[:, :, 5:25], mask)
    on_device, queries = put(queue, cache), put(queue, q).transpose((0, 2, 1, 3))
    before = opencl.copies()
    found = opencl.attention(
        queries, on_device[:, :, :20], on_device[:, :, 5:25], mask=put(queue, mask.view(np.uint8))
    )
    assert opencl.copies() == before
    assert_agrees(got(found), exact, np.dtype(np.float32))


@every_queue
def test_a_decoder_layer_stays_on_the_device(queue):
    """A chain of ops on device arrays, with weights stored as blocks, makes no copy to or from the host."""
    rng = np.random.default_rng(0)
    heads, groups, d, width = 4, 2, 16, 64

    def stored(*shape, format="q8_0"):
        return Quantized(FORMATS[format].encode(rng.standard_normal(shape, np.float32) / 8), format)

    wq, wk, wv = stored(heads * d, width), stored(groups * d, width), stored(groups * d, width, format="q4_0")
    wo, w1, w2, w3 = stored(width, heads * d), stored(96, width), stored(width, 96), stored(96, width)
    norm, table = rng.standard_normal(width, np.float32), stored(9, width)
    cos, sin = tensor_ops.rope_table(np.array([7]), d)

    def layer(ops, put, ids):
        w = {name: put(value) for name, value in weights.items()}

        x = ops.embedding(put(ids), w["table"])
        y = ops.rms_norm(x, w["norm"])
        q, k, v = (ops.linear(y, w[name]) for name in ("wq", "wk", "wv"))
        q, k = (ops.apply_rope(a.reshape(-1, 1, d), w["cos"], w["sin"]) for a in (q, k))
        a = ops.attention(q, k, v.reshape(groups, 1, d), mask=w["mask"], causal=True)
        a = a.reshape(1, heads * d)
        x, y = ops.add_rms_norm(x, ops.linear(a, w["wo"]), w["norm"])
        return ops.linear(ops.swiglu(ops.linear(y, w["w1"]), ops.linear(y, w["w3"])), w["w2"])

    def put_all(value):
        if isinstance(value, Quantized):
            return Quantized(put(queue, value.data), value.format)
        return put(queue, value)

    mask = rng.random((heads, 1, 1)) > 0.2
    weights = {"wq": wq, "wk": wk, "wv": wv, "wo": wo, "w1": w1, "w2": w2, "w3": w3, "norm": norm}
    weights |= {"table": table, "cos": cos, "sin": sin, "mask": mask}
    ids = np.array([4], np.int32)
    before = opencl.copies()
    found = layer(opencl, put_all, ids)
    assert opencl.copies() == before
    with tensor_ops.use_backend("python"):
        expected = layer(tensor_ops, lambda value: value, ids)
    np.testing.assert_allclose(got(found), expected, atol=1e-4 * np.abs(expected).max())


@every_queue
@every_dtype
def test_strides_of_device_arrays(queue, dtype):
    """What a kernel takes dense is copied on the device where it is not; pyopencl itself cannot."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 2, 40), np.float32).astype(dtype)
    array = put(queue, x)
    before = opencl.copies()
    for view, same in (
        (x.transpose(2, 0, 1, 3), array.transpose((2, 0, 1, 3))),
        (x[:, :, :, :7], array[:, :, :, :7]),
        (x.T, array.T),
        (x[:, 1:], array[:, 1:]),
    ):
        found = opencl.silu(same)
        assert opencl.copies() == before
        assert_agrees(got(found), OPS["silu"].exact(view), np.dtype(dtype))


@every_queue
def test_an_index_out_of_range_gives_nan_on_the_device(queue):
    table = np.ones((3, 40), np.float32)
    blocks = Quantized(FORMATS["q8_0"].encode(table[:, :32]), "q8_0")
    ids = put(queue, np.array([1, 3, -1, 1 << 40]))
    for found, values in (
        (opencl.embedding(ids, put(queue, table)), table),
        (opencl.embedding(ids, Quantized(put(queue, blocks.data), "q8_0")), blocks.dequantize()),
    ):
        assert (got(found)[0] == values[1]).all() and np.isnan(got(found)[1:]).all()


@every
@pytest.mark.parametrize("format", FORMATS)
def test_every_stored_format(variant, format):
    """Unpacked bit for bit as defined; multiplied as near as float32 can."""
    rng = np.random.default_rng(0)
    weight = kernel_cases.blocks(rng, format, 70, 512)
    values = weight.dequantize()
    assert (opencl.dequantize(weight) == values).all()
    ids = rng.integers(0, 70, (2, 5))
    assert (opencl.embedding(ids, weight) == values[ids]).all()
    for rows in (1, 8, 9, 70):
        x = rng.standard_normal((rows, 512), np.float32)
        assert_agrees(opencl.linear(x, weight), x.astype(np.float64) @ values.T.astype(np.float64), x.dtype)


@every
def test_more_broadcast_axes_than_a_kernel_knows(variant):
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, 3, 2, 3, 4, 5, 8), np.float32)
    k = rng.standard_normal((2, 1, 2, 1, 2, 7, 8), np.float32)
    assert_agrees(opencl.attention(q, k, k), OPS["attention"].exact(q, k, k), q.dtype)
    x = rng.standard_normal((2, 2, 2, 2, 2, 2, 3), np.float32)
    mask = rng.standard_normal((2, 1, 2, 1, 2, 1, 1), np.float32)
    assert_agrees(opencl.softmax(x, mask=mask), OPS["softmax"].exact(x, mask=mask), x.dtype)


@on_a_device
def test_bfloat16_arrays_of_the_host_in_every_rank():
    for shape in ((), (3,), (2, 1, 3)):
        x = np.ones(shape, ml_dtypes.bfloat16)
        assert_agrees(opencl.silu(x), OPS["silu"].exact(x), x.dtype)
