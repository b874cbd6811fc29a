"""The CUDA backend's host side, run in host memory: `pytest checks.py` in the environment of build.environment()."""

import ctypes
import gc
import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from arrays import (
    LEGACY,
    OTHER_STREAM,
    PER_THREAD,
    STREAM,
    DLPackArray,
    InterfaceArray,
    Managed,
    ManagedVersioned,
    Memory,
    imported,
    python,
    runtime,
)

import tensor_ops_cuda as cuda
from airllm import tensor_ops
from airllm.tensor_ops import OPS

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 1e-2}
MISSING_DRIVER, NO_DEVICE, OUT_OF_MEMORY, ILLEGAL_ADDRESS = 35, 100, 2, 700
rng = np.random.default_rng(0)
X = rng.standard_normal((3, 40)).astype(np.float32)
W = rng.standard_normal(40).astype(np.float32)


@pytest.fixture(autouse=True)
def clean_machine(monkeypatch):
    """Two devices; afterwards no memory is left allocated, nothing pending, no device switched."""
    monkeypatch.delenv("AIRLLM_CUDA_DEVICE", raising=False)
    runtime.on_host_reset()
    cuda.select("cuda:0")
    gc.collect()
    Memory.release_all()
    before = runtime.on_host_live_blocks()
    yield
    for library in ("torch", "cupy"):
        sys.modules.pop(library, None)
    gc.collect()
    Memory.release_all()
    assert runtime.on_host_live_blocks() == before
    assert runtime.on_host_current_device() == 0
    assert runtime.on_host_unused_failures() == 0


def sample(op, dtype=np.float32):
    return op.sample(np.random.default_rng(1), dtype, batch=(2,), d=40, m=5, k=24, n=7)


def assert_agrees(actual, op, *args, **parameters):
    exact = op.exact(*args, **parameters)
    dtype = args[0].dtype
    assert isinstance(actual, np.ndarray) and actual.dtype == dtype and actual.shape == exact.shape
    scale = np.abs(exact).max(initial=1e-30)
    assert np.abs(actual.astype(np.float64) - exact).max(initial=0) <= TOLERANCE[dtype.name] * scale


def message(error, call, *args, **kwargs):
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    return str(caught.value)


# ---- NumPy arrays


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_numpy_arrays_are_copied_in_and_out(op, dtype):
    args = sample(op, dtype)
    calls, copies = cuda.calls(), cuda.copies()
    assert_agrees(getattr(cuda, op.name)(*args), op, *args)
    assert (cuda.calls() - calls, cuda.copies() - copies) == (1, len(args) + 1)


def test_out_of_numpy():
    out = np.empty_like(X)
    assert cuda.silu(X, out=out) is out
    assert_agrees(out, OPS["silu"], X)
    in_place = X.copy()
    assert cuda.softmax(in_place, out=in_place) is in_place
    assert_agrees(in_place, OPS["softmax"], X)


def test_empty_arrays_launch_nothing():
    calls = cuda.calls()
    assert cuda.silu(np.empty((0, 3), np.float32)).shape == (0, 3)
    assert cuda.rms_norm(np.empty((2, 0), np.float32), np.empty(0, np.float32)).shape == (2, 0)
    product = cuda.matmul(np.empty((2, 3, 0), np.float16), np.empty((0, 4), np.float16))
    assert product.shape == (2, 3, 4) and not product.any()
    assert cuda.to_device(np.empty((0, 3), np.float16)).numpy().shape == (0, 3)
    assert cuda.silu(cuda.to_device(np.empty(0, np.float32))).shape == (0,)
    assert cuda.calls() == calls


def test_messages():
    f64, strided = X.astype(np.float64), X[:, ::2]
    read_only = X.copy()
    read_only.setflags(write=False)
    assert message(TypeError, cuda.silu, [1.0]) == "silu: x has type list, expected a NumPy array"
    assert message(TypeError, cuda.silu, f64).startswith(
        "silu: x has dtype float64, expected float32, float16"
    )
    assert message(TypeError, cuda.silu) == "silu() missing required argument 'x'"
    assert message(TypeError, cuda.silu, X, foo=1) == "silu() got an unexpected keyword argument 'foo'"
    assert message(ValueError, cuda.silu, strided).startswith(
        "silu: x has strides (160, 8), expected C-contig"
    )
    assert message(ValueError, cuda.softmax, np.array(1, np.float32)) == (
        "softmax: x has shape (), expected (... d)"
    )
    assert message(ValueError, cuda.rms_norm, X, W[:4]) == (
        "rms_norm: weight has shape (4,), expected (d) with d=40"
    )
    assert message(TypeError, cuda.rms_norm, X, W.astype(np.float16)) == (
        "rms_norm: weight has dtype float16, expected float32"
    )
    assert (
        message(ValueError, cuda.matmul, X, X) == "matmul: b has shape (3, 40), expected (... k n) with k=40"
    )
    batched = np.ones((2, 3, 4), np.float32), np.ones((5, 4, 3), np.float32)
    assert message(ValueError, cuda.matmul, *batched) == (
        "matmul: b has shape (5, 4, 3), expected (... k n) with k=4, ...=(2,)"
    )
    assert message(ValueError, cuda.silu, X, out=X[0].copy()) == "silu: out has shape (40,), expected (3, 40)"
    assert message(TypeError, cuda.silu, X, out=f64).startswith(
        "silu: out has dtype float64, expected float32"
    )
    assert message(ValueError, cuda.silu, X, out=read_only) == (
        "silu: out is read-only, expected a writeable array"
    )
    memory = np.zeros(8, np.float32)
    assert message(ValueError, cuda.silu, memory[:6], out=memory[2:]) == (
        "silu: out overlaps x, expected memory of its own or exactly x"
    )
    square = np.ones((2, 2), np.float32)
    assert message(ValueError, cuda.matmul, square, square.copy(), out=square) == (
        "matmul: out overlaps a, expected memory of its own"
    )


def test_tensor_ops_prepares_what_the_module_rejects():
    with tensor_ops.use_backend("cuda"):
        calls = cuda.calls()
        assert_agrees(tensor_ops.silu(X[:, ::2]), OPS["silu"], X[:, ::2])
        assert cuda.calls() == calls + 1
        on_device = tensor_ops.rms_norm(cuda.to_device(X), cuda.to_device(W))
        assert isinstance(on_device, cuda.DeviceArray)


# ---- arrays of its own


@pytest.mark.parametrize("dtype", DTYPES)
def test_device_array_holds_what_it_was_given(dtype):
    x = X.astype(dtype)
    array = cuda.to_device(x)
    assert (array.shape, array.ndim, array.size, array.nbytes) == (x.shape, 2, x.size, x.nbytes)
    assert array.dtype == x.dtype and array.device == "cuda:0"
    assert repr(array) == f"DeviceArray(shape=(3, 40), dtype={x.dtype.name}, device='cuda:0')"
    assert array.numpy().tobytes() == x.tobytes()
    assert "call .numpy()" in message(TypeError, np.asarray, array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_device_arrays_are_not_copied(op, dtype):
    args = sample(op, dtype)
    arrays = [cuda.to_device(a) for a in args]
    copies = cuda.copies()
    result = getattr(cuda, op.name)(*arrays)
    assert isinstance(result, cuda.DeviceArray) and cuda.copies() == copies
    assert_agrees(result.numpy(), op, *args)
    out = cuda.to_device(np.zeros(op.out_shape(args), dtype))
    assert getattr(cuda, op.name)(*arrays, out=out) is out
    assert_agrees(out.numpy(), op, *args)


def test_device_array_in_place_and_overlap():
    array = cuda.to_device(X)
    assert cuda.gelu(array, out=array) is array
    assert_agrees(array.numpy(), OPS["gelu"], X)
    square = cuda.to_device(X[:, :3].copy())
    assert message(ValueError, cuda.matmul, square, square, out=square).startswith("matmul: out overlaps a")


def test_places_are_not_mixed():
    x = cuda.to_device(X)
    assert message(TypeError, cuda.rms_norm, x, W) == (
        "rms_norm: weight has host memory, expected device cuda:0 (pass tensor_ops_cuda.to_device(weight))"
    )
    assert message(TypeError, cuda.silu, X, out=x) == "silu: out has device cuda:0, expected host memory"
    elsewhere = cuda.to_device(W, device="cuda:1")
    assert message(TypeError, cuda.rms_norm, x, elsewhere) == (
        "rms_norm: weight has device cuda:1, expected device cuda:0"
    )


# ---- what other libraries give


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", (0, 1))
@pytest.mark.parametrize("kind", (2, 13))
def test_takes_dlpack(dtype, version, kind):
    x = X.astype(dtype)
    array = DLPackArray(x, version=version, kind=kind)
    copies = cuda.copies()
    result = cuda.silu(array)
    del array  # which spoils its memory at once
    assert isinstance(result, cuda.DeviceArray) and cuda.copies() == copies
    assert_agrees(result.numpy(), OPS["silu"], x)


@pytest.mark.parametrize("says_stream", (True, False))
@pytest.mark.parametrize("dtype", DTYPES[:2])
def test_takes_cuda_array_interface(dtype, says_stream):
    x = X.astype(dtype)
    array = InterfaceArray(x, stream=STREAM if says_stream else LEGACY, says_stream=says_stream)
    result = cuda.softmax(array)
    del array
    assert_agrees(result.numpy(), OPS["softmax"], x)


@pytest.mark.parametrize("streams", [(STREAM, OTHER_STREAM), (LEGACY, STREAM), (PER_THREAD, LEGACY)])
def test_keeps_the_order_of_several_streams(streams):
    x, weight = (InterfaceArray(a, stream=s) for a, s in zip((X, W), streams))
    out = InterfaceArray(np.zeros_like(X), stream=OTHER_STREAM)
    assert cuda.rms_norm(x, weight, out=out) is out
    del x, weight
    assert_agrees(out.values(), OPS["rms_norm"], X, W)


def test_a_chain_over_streams():
    x = InterfaceArray(X, stream=STREAM)
    y = cuda.silu(cuda.gelu(x))
    del x
    out = DLPackArray(np.zeros_like(X), stream=OTHER_STREAM)
    cuda.softmax(y, out=out)
    del y
    exact = OPS["softmax"].exact(OPS["silu"].exact(OPS["gelu"].exact(X)))
    np.testing.assert_allclose(out.values(), exact, rtol=1e-5)


def test_unaligned_and_offset_arrays():
    x = InterfaceArray(X, offset=4)
    assert_agrees(cuda.silu(x).numpy(), OPS["silu"], X)
    y = DLPackArray(X, offset=12)
    assert_agrees(cuda.softmax(y).numpy(), OPS["softmax"], X)
    assert "aligned" in message(ValueError, cuda.silu, InterfaceArray(X, offset=2))


def test_strides_of_single_rows_do_not_matter():
    assert cuda.silu(DLPackArray(X[:1], strides=(7, 1))).shape == (1, 40)
    assert cuda.silu(InterfaceArray(X[:1], strides=(7, 1))).shape == (1, 40)


def test_messages_about_arrays_of_others():
    strided = message(ValueError, cuda.silu, DLPackArray(X, strides=(1, 3)))
    assert strided.startswith("silu: x has strides (4, 12), expected C-contiguous")
    strided = message(ValueError, cuda.silu, InterfaceArray(X, strides=(1, 3)))
    assert strided.startswith("silu: x has strides (4, 12), expected C-contiguous")
    wide = X.astype(np.float64)
    expected = "silu: x has dtype float64, expected float32, float16 or bfloat16"
    assert message(TypeError, cuda.silu, DLPackArray(wide)) == expected
    assert message(TypeError, cuda.silu, InterfaceArray(wide)) == expected
    whole = message(TypeError, cuda.silu, DLPackArray(X.astype(np.int32)))
    assert whole.startswith("silu: x has dtype int32")
    read_only = "silu: out is read-only, expected a writeable array"
    x = cuda.to_device(X)
    assert message(ValueError, cuda.silu, x, out=DLPackArray(X, read_only=True)) == read_only
    assert message(ValueError, cuda.silu, x, out=InterfaceArray(X, read_only=True)) == read_only
    assert message(TypeError, cuda.silu, DLPackArray(X, major=2)) == (
        "silu: x has DLPack version 2, expected version 1"
    )
    assert "has type DLPackArray, expected a NumPy array" in message(
        TypeError, cuda.silu, DLPackArray(X, kind=1)
    )


def test_an_export_that_fails_names_the_argument():
    class Grad(DLPackArray):
        def __dlpack__(self, **_):
            raise BufferError("requires grad")

    text = message(TypeError, cuda.silu, Grad(X))
    assert (
        text.startswith("silu: x of type Grad could not be exported by its library")
        and "requires grad" in text
    )


def test_host_memory_in_a_device_interface():
    class Liar:
        __cuda_array_interface__ = {**X.__array_interface__, "version": 3, "stream": None, "typestr": "<f4"}

    assert message(TypeError, cuda.silu, Liar()).startswith("silu: x has host memory")


@pytest.mark.parametrize("stream", (LEGACY, STREAM))
@pytest.mark.parametrize("library", ("torch", "cupy"))
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_arrays_come_back_as_their_kind(library, stream, op):
    module = imported(library, stream)
    kind = getattr(module, "Tensor" if library == "torch" else "ndarray")
    args = sample(op)
    arrays = [kind(a, device=1) for a in args]
    copies = cuda.copies()
    result = getattr(cuda, op.name)(*arrays)
    del arrays
    assert type(result) is kind and result.device_id == 1 and module.made == 1
    assert cuda.copies() == copies and module.cuda.asked_device == 1
    assert_agrees(result.values(), op, *args)


def test_a_library_and_an_array_of_our_own():
    torch = imported("torch", STREAM)
    x, weight = torch.Tensor(X), cuda.to_device(W)
    result = cuda.rms_norm(x, weight)
    del x, weight
    assert_agrees(result.values(), OPS["rms_norm"], X, W)


# ---- what other libraries take


def taken(array, structure, name, **arguments):
    """What a consumer of a capsule does: rename it, so that the structure is its own."""
    capsule = array.__dlpack__(**arguments)
    pointer = python.PyCapsule_GetPointer(capsule, name)
    python.PyCapsule_SetName(capsule, b"used_" + name)
    return ctypes.cast(pointer, ctypes.POINTER(structure)).contents, pointer


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("version", (None, (0, 8), (1, 1)))
def test_gives_dlpack(dtype, version):
    x = X.astype(dtype)
    array = cuda.silu(cuda.to_device(x))
    structure, name = (
        (ManagedVersioned, b"dltensor_versioned") if version == (1, 1) else (Managed, b"dltensor")
    )
    managed, pointer = taken(array, structure, name, stream=STREAM, max_version=version)
    tensor = managed.tensor
    assert (tensor.device.type, tensor.device.id) == array.__dlpack_device__() == (2, 0)
    assert (tensor.shape[0], tensor.shape[1], tensor.strides[0], tensor.strides[1]) == (3, 40, 40, 1)
    assert (tensor.code, tensor.bits, tensor.lanes) == (4 if dtype == DTYPES[2] else 2, 8 * x.itemsize, 1)
    del array  # the structure keeps the memory
    gc.collect()
    runtime.on_host_synchronize(STREAM, 0)  # the consumer's stream, and nothing else
    values = np.frombuffer(ctypes.string_at(tensor.data, x.nbytes), dtype).reshape(x.shape)
    assert_agrees(values, OPS["silu"], x)
    managed.deleter(pointer)


def test_a_capsule_nobody_takes_is_freed():
    array = cuda.to_device(X)
    for version in (None, (1, 0)):
        array.__dlpack__(max_version=version)
    del array  # the fixture finds memory that stays


def test_gives_cuda_array_interface():
    array = cuda.silu(cuda.to_device(X))
    found = array.__cuda_array_interface__
    assert (found["shape"], found["typestr"], found["strides"], found["version"]) == ((3, 40), "<f4", None, 3)
    runtime.on_host_synchronize(found["stream"], 0)
    values = np.frombuffer(ctypes.string_at(found["data"][0], X.nbytes), np.float32).reshape(X.shape)
    assert_agrees(values, OPS["silu"], X)
    assert not hasattr(cuda.to_device(X.astype(DTYPES[2])), "__cuda_array_interface__")


def test_exports_it_cannot_make():
    array = cuda.to_device(X)
    assert "call .numpy()" in message(BufferError, array.__dlpack__, dl_device=(1, 0))
    assert "without a copy" in message(BufferError, array.__dlpack__, copy=True)
    assert "expected 1 (legacy)" in message(ValueError, array.__dlpack__, stream=0)


# ---- failures of the machine

CALLS = {
    "cudaMallocAsync": 3,
    "cudaMemcpyAsync": 3,
    "cudaLaunchKernel": 1,
    "cudaStreamSynchronize": 1,
    "cudaGetDevice": 1,
}


@pytest.mark.parametrize(
    "function, nth", [(name, n) for name, count in CALLS.items() for n in range(1, count + 1)]
)
def test_a_failing_call_is_named_and_nothing_leaks(function, nth):
    runtime.on_host_fail(function.encode(), nth, ILLEGAL_ADDRESS)
    text = message(RuntimeError, cuda.rms_norm, X, W)
    assert text.startswith("rms_norm: ") and "(700)" in text and "start a new one" in text
    named = {"cudaMallocAsync": "allocating", "cudaLaunchKernel": "the launch of rms_norm"}
    assert named.get(function, function) in text
    assert_agrees(cuda.rms_norm(X, W), OPS["rms_norm"], X, W)


@pytest.mark.parametrize("function", ("cudaEventCreateWithFlags", "cudaEventRecord", "cudaStreamWaitEvent"))
@pytest.mark.parametrize("nth", (1, 2))
def test_failing_events(function, nth):
    x, weight = InterfaceArray(X), InterfaceArray(W, stream=OTHER_STREAM)
    runtime.on_host_fail(function.encode(), nth, 1)
    assert function in message(RuntimeError, cuda.rms_norm, x, weight)


def test_a_full_device_is_a_memory_error():
    runtime.on_host_machine(13000, 2, 1, 4096)
    text = message(MemoryError, cuda.silu, np.ones(1 << 16, np.float32))
    assert text.startswith("silu: allocating 262144 bytes on cuda:0 (4096 of 4096 bytes are free) failed"), (
        text
    )
    assert message(MemoryError, cuda.to_device, np.ones(1 << 16, np.float32)).startswith("allocating")


@pytest.mark.parametrize(
    "driver, devices, reason",
    [
        (0, 0, "no NVIDIA driver is installed"),
        (13000, 0, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_why_nothing_runs(driver, devices, reason):
    code = (
        "import numpy, tensor_ops_cuda as cuda, ctypes\n"
        "runtime = ctypes.CDLL(cuda.__file__)\n"
        f"runtime.on_host_machine({driver}, {devices}, 1, ctypes.c_size_t(1 << 20))\n"
        "info = cuda.get_cuda_info()\n"
        "assert not info['available'] and info['devices'] == [] and info['device_count'] == 0, info\n"
        "for call in (cuda.device, lambda: cuda.silu(numpy.ones(8, 'f4')), cuda.variants):\n"
        "    try:\n"
        "        call()\n"
        "    except RuntimeError as error:\n"
        "        assert info['reason'] in str(error), error\n"
        "    else:\n"
        "        raise SystemExit('no error')\n"
        "print(info['reason'])\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert reason in answer.stdout


def test_an_old_driver():
    runtime.on_host_machine(11080, 2, 1, 1 << 20)
    runtime.on_host_fail(b"cudaGetDeviceCount", 1, MISSING_DRIVER)
    assert "driver supports CUDA 11.8, this module needs 13.0" in cuda.get_cuda_info()["reason"]


def test_info():
    info = cuda.get_cuda_info()
    assert info["available"] and info["reason"] == "" and info["device_count"] == 2
    assert (info["driver_version"], info["runtime_version"]) == ("13.0", "13.0")
    first, second = info["devices"]
    assert first["name"] == "Stand-in 0" and first["compute_capability"] == "9.0"
    assert first["free_memory"] <= first["total_memory"] and second["free_memory"] is None
    assert cuda.device() == "Stand-in 0 (compute capability 9.0, 2 multiprocessors, 1.0 GiB)"


def test_devices_are_chosen_by_name(monkeypatch):
    assert cuda.variants() == ["cuda:0", "cuda:1"]
    cuda.select("cuda:1")
    assert "Stand-in 1" in cuda.device() and cuda.to_device(X).device == "cuda:1"
    assert_agrees(cuda.silu(X), OPS["silu"], X)
    assert "expected cuda:0 ... cuda:1" in message(RuntimeError, cuda.select, "cuda:7")
    code = "import tensor_ops_cuda as cuda, ctypes; ctypes.CDLL(cuda.__file__).on_host_reset(); print(cuda.device())"
    for asked, expected in (("1", "Stand-in 1"), ("cuda:1", "Stand-in 1"), ("", "Stand-in 0")):
        monkeypatch.setenv("AIRLLM_CUDA_DEVICE", asked)
        assert expected in subprocess.check_output([sys.executable, "-c", code], text=True)
    monkeypatch.setenv("AIRLLM_CUDA_DEVICE", "gpu")
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "AIRLLM_CUDA_DEVICE is 'gpu', expected cuda:0 ... cuda:1" in answer.stderr


def test_a_device_without_memory_pools():
    code = (
        "import numpy as np, tensor_ops_cuda as cuda, ctypes\n"
        "runtime = ctypes.CDLL(cuda.__file__)\n"
        "runtime.on_host_machine(13000, 1, 0, ctypes.c_size_t(1 << 22))\n"
        "assert 'free list' in cuda.get_cuda_info()['devices'][0]['memory_pool']\n"
        "x = np.ones(1000, np.float32)\n"
        "for _ in range(3):\n"
        "    assert np.allclose(cuda.silu(x), 0.7310586)\n"
        "assert runtime.on_host_live_blocks() == 2\n"  # given out again and again
        "cuda.silu(np.ones(1 << 18, np.float32))\n"  # 1 MiB twice
        "cuda.silu(np.ones(3 << 17, np.float32))\n"  # 2 MiB twice: only after the others went back
        "assert runtime.on_host_live_blocks() == 2\n"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_a_forked_child_is_told():
    array = cuda.to_device(X)
    child = os.fork()
    if child == 0:
        try:
            text = message(RuntimeError, cuda.silu, X)
            del array
            gc.collect()
            os._exit(0 if "before fork()" in text and not cuda.get_cuda_info()["available"] else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert array.numpy().tobytes() == X.tobytes()


def test_many_threads():
    failures = []

    def work(seed):
        x = np.random.default_rng(seed).standard_normal((4, 64)).astype(np.float32)
        for _ in range(10):
            try:
                assert_agrees(cuda.softmax(x), OPS["softmax"], x)
                assert_agrees(cuda.silu(cuda.to_device(x)).numpy(), OPS["silu"], x)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ---- cuBLAS


@pytest.fixture
def cublas(monkeypatch):
    folder = os.path.join(os.path.dirname(cuda.__file__), "nvidia", "cu13", "lib")
    library = ctypes.CDLL(os.path.join(folder, "libcublas.so.13"))
    library.on_host_use(runtime.on_host_enqueue)
    monkeypatch.setenv("AIRLLM_CUDA_MATMUL", "cublas")
    return library


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shapes", [((5, 6), (6, 7)), ((2, 3, 5, 6), (2, 3, 6, 7)), ((2, 3, 5, 6), (6, 7)), ((1, 6), (6, 1))]
)
def test_cublas_is_called_for_rows(cublas, dtype, shapes):
    args = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    calls = cuda.calls()
    assert_agrees(cuda.matmul(*args), OPS["matmul"], *args)
    assert_agrees(cuda.matmul(*map(cuda.to_device, args)).numpy(), OPS["matmul"], *args)
    assert cuda.calls() == calls + 2 and cublas.on_host_math_mode() == 16


def test_which_matmul_runs(cublas, monkeypatch):
    assert cuda.get_cuda_info()["matmul"].startswith("cublas 13.9 from /")
    monkeypatch.setenv("AIRLLM_CUDA_MATMUL", "tiled")
    assert cuda.get_cuda_info()["matmul"] == "tiled (AIRLLM_CUDA_MATMUL)"
    monkeypatch.setenv("AIRLLM_CUDA_MATMUL", "fast")
    text = message(RuntimeError, cuda.matmul, X[:, :3].copy(), X)
    assert text == "matmul: AIRLLM_CUDA_MATMUL is 'fast', expected 'cublas' or 'tiled'"


def test_a_failing_cublas_is_named(cublas):
    a = np.ones((2, 2), np.float32)
    cuda.matmul(a, a)
    cublas.on_host_fail_next(13)
    assert (
        message(RuntimeError, cuda.matmul, a, a)
        == "matmul: cublasGemmEx failed: CUBLAS_STATUS_EXECUTION_FAILED"
    )


def test_a_cublas_asked_for_by_name_that_is_missing():
    code = "import numpy as np, tensor_ops_cuda as cuda; cuda.matmul(*[np.ones((2, 2), np.float32)] * 2)"
    module = os.path.dirname(cuda.__file__)
    script = f"import sys, importlib.util as u; s = u.spec_from_file_location('tensor_ops_cuda', {cuda.__file__!r})\n"
    script += f"sys.path.remove({module!r}); m = u.module_from_spec(s); sys.modules['tensor_ops_cuda'] = m\n"
    script += f"s.loader.exec_module(m)\n{code}"
    environment = {**os.environ, "AIRLLM_CUDA_MATMUL": "cublas"}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert "AIRLLM_CUDA_MATMUL is 'cublas', but no libcublas.so.13 or .12 was found" in answer.stderr
