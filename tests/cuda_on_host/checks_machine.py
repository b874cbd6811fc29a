"""Devices, drivers, memory and cuBLAS that fail, are missing, or are chosen by name."""

import gc
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from arrays import (
    OTHER_STREAM,
    InterfaceArray,
    runtime,
)
from machine import DTYPES, W, X, assert_agrees, clean_machine, message, rng, use_cublas  # noqa: F401

import tensor_ops_cuda as cuda
from airllm.tensor_ops import OPS

MISSING_DRIVER, ILLEGAL_ADDRESS = 35, 700

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
    # larger than what NumPy keeps for itself: gone when this returns, and nothing may read it later
    text = message(RuntimeError, cuda.rms_norm, np.ones((2, 5000), np.float32), np.ones(5000, np.float32))
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
    monkeypatch.setenv("AIRLLM_CUDA_DEVICE", "1")
    assert "Stand-in 1" in cuda.device()
    cuda.select("cuda:0")
    assert "Stand-in 0" in cuda.device()
    monkeypatch.delenv("AIRLLM_CUDA_DEVICE")
    cuda.select("cuda:1")
    assert "Stand-in 1" in cuda.device() and cuda.to_device(X).device == "cuda:1"
    assert_agrees(cuda.silu(X), OPS["silu"], X)
    assert "expected cuda:0 ... cuda:1" in message(RuntimeError, cuda.select, "cuda:7")
    code = "import tensor_ops_cuda as cuda; print(cuda.device())"
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
    return use_cublas(monkeypatch)


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
    script = "import sys, importlib.util as u\n"
    script += f"s = u.spec_from_file_location('tensor_ops_cuda', {cuda.__file__!r})\n"
    script += f"sys.path.remove({module!r}); m = u.module_from_spec(s); sys.modules['tensor_ops_cuda'] = m\n"
    script += "s.loader.exec_module(m)\nimport ctypes, numpy\nsys.path.clear(); sys.prefix = ''\n"
    script += "for version in (13, 12):\n"
    script += "    try: ctypes.CDLL(f'libcublas.so.{version}')\n    except OSError: pass\n"
    script += f"    else: sys.exit('the loader finds one')\n{code}"
    environment = {**os.environ, "AIRLLM_CUDA_MATMUL": "cublas", "CUDA_PATH": "", "CUDA_HOME": ""}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    if "the loader finds one" in answer.stderr:
        pytest.skip("a cuBLAS of this machine's own, which has no use for memory that is the host's")
    assert "AIRLLM_CUDA_MATMUL is 'cublas', but no libcublas.so.13 or .12 was found" in answer.stderr


def test_a_thread_may_use_a_device_of_its_own():
    """As kernels of one process do that share a model."""
    seen = []

    def look() -> None:
        cuda.use_device(1)
        seen.append(cuda.device())
        assert np.allclose(cuda.silu(np.ones(8, np.float32)), 0.7310586)
        cuda.use_device(None)
        seen.append(cuda.device())

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert [line[:10] for line in [*seen, cuda.device()]] == ["Stand-in 1", "Stand-in 0", "Stand-in 0"]
    with pytest.raises(RuntimeError, match=r"use_device\(\): index is '2', expected cuda:0 ... cuda:1"):
        cuda.use_device(2)
