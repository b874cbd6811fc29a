"""The CUDA backend on a GPU: beside the arrays and streams of other libraries, and with large ones."""

import sys
import threading

import ml_dtypes
import numpy as np
import pytest
from accuracy import DTYPES, TOLERANCE, assert_agrees

from airllm import PersistentKernel, tensor_ops
from airllm.backends import registry
from airllm.formats import FORMATS, Quantized
from airllm.tensor_ops import OPS
from tests.support.models import tiny_models


@pytest.fixture(scope="module")
def gpu():
    """The built module; AIRLLM_TEST_REQUIRE=cuda makes the suite refuse to start where it cannot run."""
    backend = registry.open_backend("cuda")
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


AXES = {"d": 1000, "r": 200, "m": 5, "k": 512, "n": 300, "h": 4, "g": 2, "t": 40, "s": 700, "e": 72, "v": 90}


def all_of(results):
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_gpu_takes_and_gives_arrays_of_other_libraries(library, gpu, op, dtype):
    if not hasattr(gpu, op.name) or op.operands[0].kind == "quantized":
        pytest.skip("no kernel, or nothing that this library has")
    for rows in (1, 7, 128, 4096 if op.name in ("silu", "gelu", "rms_norm", "softmax") else 33):
        sizes = AXES | {"m": rows, "d": 64 if op.name == "attention" else 1000}
        batch = () if op.name in ("matmul", "attention") else (rows,)
        args = op.sample(np.random.default_rng(0), dtype, batch, **sizes)
        arrays = [to_library(library, a) for a in args]
        copies, calls = gpu.copies(), gpu.calls()
        results = all_of(getattr(gpu, op.name)(*arrays))
        assert all(type(r) is type(arrays[0]) for r in results)
        assert gpu.copies() == copies and gpu.calls() > calls
        for result, exact in zip(results, all_of(op.exact(*args)), strict=True):
            assert_agrees(to_numpy(result), exact, dtype)


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


# ---- attention and stored weights


@pytest.mark.parametrize("t, s", [(1, 8192), (5, 300), (512, 512), (65, 1000)])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
def test_gpu_attention_of_strided_tensors(gpu, dtype, t, s):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    shapes = ((2, t, 9, 64), (2, s, 3, 64), (2, s, 3, 64))
    args = [rng.standard_normal(shape, np.float32).astype(dtype) for shape in shapes]
    views = [to_library(torch, a).transpose(1, 2) for a in args]
    mask = rng.random((2, 1, t, s)) < 0.9
    copies = gpu.copies()
    result = gpu.attention(*views, torch.from_numpy(mask).cuda(), causal=True)
    assert gpu.copies() == copies
    exact = OPS["attention"].exact(*(np.swapaxes(a, 1, 2) for a in args), mask, causal=True)
    assert_agrees(to_numpy(result), exact, dtype)


@pytest.mark.parametrize("m", (1, 8, 9, 200))
@pytest.mark.parametrize("matmul", ("cublas", "tiled"))
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: np.dtype(d).name)
@pytest.mark.parametrize("name", [of.name for of in FORMATS.values() if of.pack])
def test_gpu_linear_of_every_format(gpu, name, dtype, matmul, m, monkeypatch):
    choose_matmul(gpu, monkeypatch, matmul)
    rng = np.random.default_rng(0)
    weight = Quantized(FORMATS[name].encode(rng.standard_normal((300, 512), np.float32)), name)
    x, bias = rng.standard_normal((m, 512), np.float32).astype(dtype), np.arange(300, dtype=np.float32)
    result = gpu.linear(*map(gpu.to_device, (x, weight, bias))).numpy()
    assert_agrees(result, OPS["linear"].exact(x, weight, bias), dtype)
    assert gpu.dequantize(weight).tobytes() == weight.dequantize().tobytes()


def test_gpu_attention_and_linear_are_captured_into_a_graph(gpu):
    """Their scratch memory comes from the pool, which a graph takes over."""
    torch = pytest.importorskip("torch")
    x, weight = torch.ones(1, 64, device="cuda"), torch.ones(64, 64, device="cuda")
    keys = torch.randn(1, 4096, 64, device="cuda")
    gpu.attention(gpu.linear(x, weight)[None], keys, keys)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = gpu.attention(gpu.linear(x, weight)[None], keys, keys)
    x.fill_(0.01)
    graph.replay()
    arrays = [a.cpu().numpy() for a in (torch.full((1, 1, 64), 0.64), keys, keys)]
    assert_agrees(y.cpu().numpy(), OPS["attention"].exact(*arrays), np.float32)


@pytest.mark.parametrize("name", ("llama3", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "phi3_long"))
@pytest.mark.parametrize("cache_dtype", ("f32", "f16"))
def test_gpu_decoding_is_one_launch_a_step(gpu, name, cache_dtype):
    """Beyond the windows, and beyond the text from which on Phi-3's is a long one."""
    text, path = tiny_models.texts()[0], tiny_models.DATA / name
    options = {"model": path, "context": 1024, "cache_dtype": cache_dtype}
    with PersistentKernel(backend="python", **options) as kernel:
        wanted = np.stack([kernel.step(token) for token in text])
    with PersistentKernel(backend="cuda", **options) as kernel:
        assert "one launch of a captured graph a step" in kernel.plan
        kernel.step(text[0])
        before = gpu.calls()
        found = [kernel.step(token) for token in text[1:20]]
        assert gpu.calls() - before == len(found)
        found += [kernel.step(token) for token in text[20:]]
    assert np.abs(np.stack(found) - wanted[1:]).max() / np.ptp(wanted) < 5e-3
