"""The CUDA backend: built by nvcc, its machine code looked at, run in host memory, and run on a GPU."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from conftest import DTYPES, REQUIRED, TOLERANCE, assert_agrees
from cuda_on_host import build

from airllm import tensor_ops
from airllm.backends import registry
from airllm.tensor_ops import OPS
from cpp_ext.commands import cuda_build, cuda_probes

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
ARCHS = ("75", "80", "90", "100", "120")


@pytest.fixture(scope="module")
def nvcc():
    if reason := build.why_not():
        if "nvcc" in REQUIRED:
            pytest.fail(f"AIRLLM_TEST_REQUIRE names nvcc: {reason}")
        pytest.skip(reason)
    return cuda_probes.toolkit(cuda_probes.nvcc())


# ---- built, and without a driver


@pytest.fixture(scope="module")
def extension(nvcc, tmp_path_factory):
    """The module as build_cuda makes it, for one architecture."""
    return cuda_build.build(tmp_path_factory.mktemp("cuda"), [nvcc.archs[0]])


def python(code, **environment):
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_imports_without_a_driver_and_says_why_nothing_runs(extension):
    code = """
import numpy as np
import tensor_ops_cuda as cuda
info = cuda.get_cuda_info()
assert info["available"] is False and info["devices"] == [] and cuda.calls() == cuda.copies() == 0, info
x = np.ones((2, 2), np.float32)
for call in (cuda.device, lambda: cuda.silu(x), lambda: cuda.matmul(x, x), lambda: cuda.to_device(x)):
    try:
        call()
    except RuntimeError as error:
        assert info["reason"] in str(error), error
    else:
        raise SystemExit("no error")
print(info["reason"], "archs:", info["archs"])
"""
    printed = python(code, PYTHONPATH=str(extension.parent), CUDA_VISIBLE_DEVICES="-1")
    assert re.match(r"no NVIDIA driver is installed|the NVIDIA driver supports|cudaGetDeviceCount", printed)
    assert re.search(r"archs: \d+$", printed.strip())


def test_links_neither_driver_nor_cuda_libraries(extension):
    needed = subprocess.check_output(["readelf", "-d", str(extension)], text=True)
    assert "libstdc++" in needed and not re.search(r"NEEDED.*lib(cuda|cudart|cublas|nv)", needed)


# ---- machine code


@pytest.fixture(scope="module", params=ARCHS)
def entries(request, nvcc, tmp_path_factory):
    """PTX of every kernel by its name."""
    if request.param not in nvcc.archs:
        pytest.skip(f"this nvcc does not know architecture {request.param}")
    target = tmp_path_factory.mktemp("ptx") / "kernels.ptx"
    source = str(ROOT / "cpp_ext" / "cuda" / "kernels.cu")
    arch = f"-arch=compute_{request.param}"
    subprocess.run([nvcc.nvcc, "-O3", "-std=c++17", arch, "-ptx", source, "-o", str(target)], check=True)
    parts = re.split(r"^\.visible \.entry (\w+)", target.read_text(), flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@pytest.mark.parametrize("dtype", ("f32", "f16", "bf16"))
@pytest.mark.parametrize("kernel", ("silu", "gelu", "rms_norm", "softmax"))
def test_rows_are_read_and_written_16_bytes_at_a_time(entries, kernel, dtype):
    text = entries[f"{kernel}_{dtype}"]
    loads = re.findall(r"ld\.global(?:\.nc)?\.(?:v4\.(?:[bfu]32)|v2\.(?:[bfu]64))", text)
    stores = re.findall(r"st\.global\.(?:v4\.(?:[bfu]32)|v2\.(?:[bfu]64))", text)
    assert len(loads) >= (1 if kernel in ("silu", "gelu") else 2) and stores


@pytest.mark.parametrize("kernel", ("rms_norm", "softmax"))
def test_rows_are_reduced_by_warp_shuffles(entries, kernel):
    for dtype in ("f32", "f16", "bf16"):
        text = entries[f"{kernel}_{dtype}"]
        assert len(re.findall(r"shfl\.sync\.bfly", text)) >= 5 and "bar.sync" in text


def test_every_kernel_is_compiled_for_64_bit_offsets(entries):
    names = [f"{op}_{dtype}" for op in ("silu", "softmax", "matmul_row") for dtype in ("f32", "f16", "bf16")]
    assert set(names) <= set(entries)
    for name in names:
        assert ".param .u64" in entries[name] or ".param .b64" in entries[name]


# ---- in host memory


@pytest.fixture(scope="module")
def on_host(nvcc, tmp_path_factory):
    folder = tmp_path_factory.mktemp("on_host")
    build.module(folder)
    return folder


def run_on_host(folder, *arguments):
    """pytest with the module of `folder`, in a process of its own."""
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environment = build.environment(folder)
    answer = subprocess.run(call, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert answer.returncode == 0, answer.stdout[-8000:] + answer.stderr[-4000:]
    assert re.search(r"\d{2,} passed", answer.stdout), answer.stdout


def test_arrays_streams_and_failures_on_host(on_host):
    checks = sorted((TESTS / "cuda_on_host").glob("checks_*.py"))
    run_on_host(on_host, "--noconftest", *map(str, checks))


def test_kernels_on_host(on_host):
    """The table of test_ops.py, on the kernels as fibers: all of it but what takes longest there."""
    slow = "long_sums or 9001 or 4099 or 70_001 or 70001 or large_results or every_float16 or thread"
    run_on_host(on_host, str(TESTS / "test_ops.py"), "-k", f"cuda:cuda:0 and not ({slow})")


def test_benchmark_says_why_it_cannot_run_here():
    if not registry.opened("cuda").why_not:
        pytest.skip("it can")
    call = [sys.executable, str(ROOT / "benchmarks" / "bench_cuda.py")]
    answer = subprocess.run(call, capture_output=True, text=True)
    assert answer.returncode == 1 and answer.stdout == ""
    assert answer.stderr.startswith("bench_cuda.py: the CUDA backend cannot run: ")


# ---- on a GPU


@pytest.fixture(scope="module")
def gpu():
    """The built module; AIRLLM_TEST_REQUIRE=cuda makes the suite refuse to start where it cannot run."""
    backend = registry.opened("cuda")
    if backend.why_not:
        pytest.skip(f"cuda: {backend.why_not}")
    return backend.module


@pytest.fixture(params=("torch", "cupy"))
def library(request, gpu):
    module = pytest.importorskip(request.param)
    if request.param == "torch" and not module.cuda.is_available():
        pytest.skip("this PyTorch has no CUDA")
    return module


def to_library(library, array):
    if library.__name__ == "torch":
        host = library.from_numpy(array.view(np.int16) if array.dtype.itemsize == 2 else array)
        kind = {"float16": library.float16, "bfloat16": library.bfloat16}.get(array.dtype.name)
        return (host.view(kind) if kind else host).cuda()
    if array.dtype == ml_dtypes.bfloat16:
        pytest.skip("CuPy has no bfloat16 by this way")
    return library.asarray(array)


def to_numpy(result):
    if hasattr(result, "get"):
        return result.get()
    host = result.cpu()
    if str(host.dtype) != "torch.bfloat16":
        return host.numpy()
    return host.view(sys.modules["torch"].int16).numpy().view(ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_gpu_takes_and_gives_arrays_of_other_libraries(library, gpu, op, dtype):
    for rows in (1, 7, 128, 4096):
        sizes = {"batch": () if op.name == "matmul" else (rows,), "d": 1000, "m": rows, "k": 512, "n": 300}
        args = op.sample(np.random.default_rng(0), dtype, **sizes)
        arrays = [to_library(library, a) for a in args]
        copies, calls = gpu.copies(), gpu.calls()
        result = getattr(gpu, op.name)(*arrays)
        assert type(result) is type(arrays[0])
        assert (gpu.copies() - copies, gpu.calls() - calls) == (0, 1)
        assert_agrees(to_numpy(result), op.exact(*args), dtype)


def choose_matmul(gpu, monkeypatch, name):
    monkeypatch.delenv("AIRLLM_CUDA_MATMUL", raising=False)
    if name == "cublas" and not gpu.get_cuda_info()["matmul"].startswith("cublas"):
        pytest.skip(f"matmul: {gpu.get_cuda_info()['matmul']}")
    monkeypatch.setenv("AIRLLM_CUDA_MATMUL", name)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", ("cublas", "tiled"))
def test_gpu_products_are_summed_in_float32(gpu, name, dtype, monkeypatch):
    choose_matmul(gpu, monkeypatch, name)
    for batch, m in (((), 1), ((), 256), ((3, 2), 33), ((), 2048)):
        args = OPS["matmul"].sample(np.random.default_rng(0), dtype, batch=batch, m=m, k=1024, n=260)
        actual, exact = gpu.matmul(*args), OPS["matmul"].exact(*args)
        assert_agrees(actual, exact, dtype)
        if dtype == np.float32:
            assert np.abs(actual - exact).max() < 1e-3, "TF32 would be off by about 2e-2"


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_gpu_follows_the_current_stream_of_torch(gpu, dtype):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((512, 4096)).astype(dtype)
    source = to_library(torch, x)
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            late = torch.zeros_like(source)
            torch.cuda._sleep(100_000_000)
            late.copy_(source)
            result = gpu.silu(late)
            del late
            torch.full_like(source, float("nan"))  # in the memory of `late`, if that was let go too early
            kept = result.clone()
        stream.synchronize()
        assert_agrees(to_numpy(kept), OPS["silu"].exact(x), dtype)


def test_gpu_ops_are_captured_into_a_graph(gpu):
    torch = pytest.importorskip("torch")
    x = torch.ones(64, 4096, device="cuda")
    gpu.softmax(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gpu.silu(gpu.softmax(x))
    values = np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)
    x.copy_(torch.from_numpy(values))
    graph.replay()
    assert_agrees(y.cpu().numpy(), OPS["silu"].exact(OPS["softmax"].exact(values)), np.float32)


def test_gpu_arrays_of_our_own_go_to_torch_without_a_copy(gpu):
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((64, 4096)).astype(np.float32)
    array = gpu.silu(gpu.to_device(x))
    tensor = torch.from_dlpack(array)
    assert tensor.data_ptr() == array.__cuda_array_interface__["data"][0]
    del array
    assert_agrees(tensor.cpu().numpy(), OPS["silu"].exact(x), np.float32)


def test_gpu_memory_is_given_back(gpu):
    x = gpu.to_device(np.zeros(1 << 26, np.float32))
    for _ in range(2000):  # half a terabyte in all
        gpu.silu(x)
    assert not gpu.silu(x).numpy().any()


def test_gpu_writes_in_place(gpu):
    x = np.random.default_rng(0).standard_normal((300, 4097)).astype(np.float32)
    array = gpu.to_device(x)
    for name in ("silu", "softmax"):
        assert getattr(gpu, name)(array, out=array) is array
    assert_agrees(array.numpy(), OPS["softmax"].exact(OPS["silu"].exact(x)), np.float32)


def test_gpu_is_used_by_many_threads(gpu):
    failures = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            x = rng.standard_normal((rng.integers(1, 200), 1000)).astype(np.float32)
            a, b = OPS["matmul"].sample(rng, m=64, k=128, n=96)
            try:
                assert_agrees(gpu.softmax(x), OPS["softmax"].exact(x), np.float32)
                assert_agrees(gpu.matmul(a, b), OPS["matmul"].exact(a, b), np.float32)
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.parametrize("name", ("silu", "softmax"))
def test_gpu_arrays_of_more_than_2_to_the_31_elements(gpu, name):
    torch = pytest.importorskip("torch")
    count = (1 << 31) + 4096
    if torch.cuda.mem_get_info()[0] < 6 * count:
        pytest.skip("needs 13 GB of free device memory")
    x = torch.zeros((count // 4096, 4096), dtype=torch.bfloat16, device="cuda")
    x[-1] = torch.linspace(-4, 4, 4096)
    actual = to_numpy(getattr(gpu, name)(x)[-1:])
    assert_agrees(actual, OPS[name].exact(to_numpy(x[-1:])), ml_dtypes.bfloat16)


def test_gpu_runs_what_tensor_ops_is_given(gpu):
    x = np.random.default_rng(0).standard_normal((6, 200)).astype(np.float32)
    calls = gpu.calls()
    result = tensor_ops.rms_norm(x[:, ::2], np.ones(100, np.float32), backend="cuda")
    assert gpu.calls() == calls + 1
    assert np.abs(result - OPS["rms_norm"].exact(x[:, ::2], np.ones(100))).max() < TOLERANCE[np.dtype("f4")]
