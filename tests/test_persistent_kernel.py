"""Decoding as one call: the engine's logits, whatever the backend, the threads and the processes."""

import importlib.util
import json
import mmap
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import airllm
from airllm import PersistentKernel, backends
from airllm.backends import registry
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.models.cache import ContextFull
from airllm.models.config import open_config
from tests import tiny_gguf, tiny_models
from tests.conftest import REQUIRED
from tests.tiny_models import AS_GGUF, DATA, FOLDERS, K_MODEL, VOCABULARY

ROOT = Path(__file__).resolve().parents[1]
TEXT = tiny_models.texts()[0]
PROMPT = 11  # tokens; windows are shorter than what follows, and some rotations stretch behind 24
BACKENDS = [name for name in ("python", "cpp") if not registry.opened(name).why_not]
LLAMA = DATA / "llama3"
having_cpp = pytest.mark.skipif("cpp" not in BACKENDS, reason="the C++ backend is not built")


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape and found.dtype == np.float32
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


def stepped(kernel: PersistentKernel) -> np.ndarray:
    """Logits after a prompt, and after each token that follows."""
    return np.stack([kernel.prefill(TEXT[:PROMPT]), *map(kernel.step, TEXT[PROMPT:])])


def kernel_of(path, backend="python", **options) -> PersistentKernel:
    return PersistentKernel(model=path, backend=backend, **{"cache_dtype": "f32", **options}).compile()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FOLDERS)
def test_steps_give_the_logits_of_the_reference(name, backend):
    wanted = tiny_models.reference(name)
    with kernel_of(DATA / name, backend) as kernel:
        found = stepped(kernel)
        assert kernel.length == len(TEXT)
        assert ("one call" in kernel.plan) == (backend == "cpp")
    short = min(24, len(TEXT)) - PROMPT  # a shorter text's rotations differ, and so does its reference
    assert distance(found[:short], wanted[1][PROMPT - 1 : PROMPT - 1 + short]) < 2e-4
    assert distance(found[-1], wanted[0][-1]) < 2e-4


@having_cpp
@pytest.mark.parametrize("name", (*AS_GGUF, K_MODEL))
def test_stored_weights_in_one_call_and_op_by_op(name, tmp_path):
    """Both round activations to 8 bits; one call does not do so to those of queries, keys and values."""
    path = tiny_gguf.write_gguf(name, tmp_path / "model.gguf", "blocks")
    exact = composed(path, compute="float32")

    def far(logits):
        return np.linalg.norm(logits - exact) / np.linalg.norm(exact)

    with kernel_of(path, "cpp") as kernel:
        assert far(stepped(kernel)) < 1.02 * far(composed(path)) < 0.05


def composed(path, **options):
    with LayerWiseInferenceEngine(path, backend="cpp", cache_dtype="f32", **options) as engine:
        engine.model.fused.why_not = "this is the composition"
        cache = engine.new_cache()
        first = engine.forward(TEXT[:PROMPT], cache)
        return np.stack([first, *(engine.forward([token], cache) for token in TEXT[PROMPT:])])


@having_cpp
@pytest.mark.parametrize("name", ("llama3", "gemma3", "phi3_long"))
def test_steps_are_made_ready_some_at_a_time(name, monkeypatch):
    """And again behind those, after a reset, and where a text becomes one that is turned by other angles."""
    with kernel_of(DATA / name, "cpp") as kernel:
        wanted = stepped(kernel)
    monkeypatch.setattr("airllm.models.model._BOUND", 7)
    with kernel_of(DATA / name, "cpp") as kernel:
        for _ in range(2):
            assert distance(stepped(kernel), wanted) < 1e-5
            assert np.array_equal(kernel(), kernel())
            kernel.reset()
        assert distance(np.stack([kernel.step(token) for token in TEXT])[PROMPT - 1 :], wanted) < 1e-5


@having_cpp
def test_any_number_of_workers_gives_the_same(tmp_path):
    """Of a model that is large enough for two threads to be used."""
    path = tiny_gguf.write_gguf(K_MODEL, tmp_path / "model.gguf")
    logits = []
    for workers in (1, 2, 3):
        with kernel_of(path, "cpp", num_workers=workers) as kernel:
            assert f"{workers} thread" in kernel.plan
            logits.append(stepped(kernel))
    assert distance(logits[1], logits[0]) < 1e-2 > distance(logits[2], logits[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_kernels_at_once(backend):
    paths = [DATA / name for name in ("llama3", "gemma2", "qwen2", "llama3")]
    with_each = [kernel_of(path, backend) for path in paths]
    found: list = [None] * len(paths)

    def run(i: int) -> None:
        found[i] = stepped(with_each[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kernel, logits in zip(with_each, found, strict=True):
        kernel.reset()
        assert distance(stepped(kernel), logits) < 1e-5
        kernel.close()


@having_cpp
def test_a_forked_process_steps_on():
    with kernel_of(LLAMA, "cpp") as kernel:
        wanted = kernel.step(1)
        if not (child := os.fork()):
            os._exit(0 if np.allclose(kernel(), wanted, atol=1e-5) else 1)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_a_token_the_last_step_is_repeated(backend):
    with kernel_of(LLAMA, backend) as kernel:
        first = kernel()
        assert kernel.length == 1 and np.array_equal(kernel(), first) and kernel.length == 1
        kernel.reset()
        assert kernel.length == 0 and np.array_equal(kernel(0), first)
        last = kernel(5)
        assert np.array_equal(kernel(), last) and kernel.length == 2


def test_the_model_may_be_open_already():
    with LayerWiseInferenceEngine(LLAMA, backend="python", compute="float32", context=16) as engine:
        for given in (engine, engine.model):
            with PersistentKernel(model=given, cache_dtype="f16") as kernel:
                assert "op by op: python in float32" in kernel.plan
                assert distance(kernel.prefill(TEXT[:9]), engine.forward(TEXT[:9])) < 1e-5
        assert PersistentKernel(model=engine).capacity == 16
    with (
        LayerWiseInferenceEngine(LLAMA, backend="python", max_memory="20MB") as engine,
        pytest.raises(ValueError, match="expected one without max_memory"),
    ):
        PersistentKernel(model=engine).compile()


# ------------------------------------------------------------------------------------------------ its bounds


def test_the_context_is_the_end():
    with kernel_of(LLAMA, context=4) as kernel:
        wanted = kernel.prefill([1, 2, 3])
        with pytest.raises(
            ContextFull, match=r"has 3 tokens and would get 2 more, expected at most 4 .*context"
        ):
            kernel.prefill([4, 5])
        kernel.step(4)
        with pytest.raises(ContextFull, match="has 4 tokens and would get 1 more"):
            kernel.step(5)
        kernel.reset()
        assert np.array_equal(kernel.prefill([1, 2, 3]), wanted)


def test_pages_bound_keys_and_values():
    config = open_config(LLAMA)
    token = config.layers * 2 * config.kv_heads * config.head_dim * 4
    with kernel_of(LLAMA, max_num_pages=2) as kernel:
        room = kernel.capacity
        assert room == 2 * mmap.PAGESIZE // token < kernel_of(LLAMA).capacity
        kernel.prefill([1] * room)
        with pytest.raises(
            ContextFull, match=f"at most {room} in all: max_num_pages=2 pages of {mmap.PAGESIZE}"
        ):
            kernel.step(1)
    assert kernel_of(LLAMA, context=3, max_num_pages=99).capacity == 3


def test_what_is_closed_or_not_compiled():
    kernel = PersistentKernel(model=LLAMA, backend="python")
    assert "not compiled" in repr(kernel) and kernel.length == 0
    assert kernel.compile() is kernel and kernel.compile() is kernel
    assert kernel.plan.startswith("python: op by op") and kernel.plan in repr(kernel)
    kernel.close()
    with pytest.raises(RuntimeError, match="closed"):
        kernel.step(1)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("token", (-1, VOCABULARY))
def test_a_token_that_the_model_does_not_have(token, backend):
    with kernel_of(LLAMA, backend) as kernel, pytest.raises(ValueError, match=f"{token}, expected 0 to 79"):
        kernel.step(token)


# ------------------------------------------------------------------------------------------------ its options

WRONG = {
    r"mode has value 'prefill', expected one of 'decode'": {"mode": "prefill"},
    r"no option 'use_cutlass_kernel' on the backend 'python', it knows: max_num_pages, context, cache_": {
        "use_cutlass_kernel": True
    },
    r"no option 'num_workers' on the backend 'python'": {"num_workers": 2},
    r"no option 'tile'": {"tile": 1},
    r"max_num_pages has value 0, expected a whole number from 1 on": {"max_num_pages": 0},
    r"context has value 0, expected a whole number from 1 on": {"context": 0},
    r"world_size has value 0, expected a whole number from 1 on": {"world_size": 0},
    r"mpi_rank has value 2, expected 0 to 0: world_size=1": {"mpi_rank": 2},
    r"unknown backend 'gpu', expected one of": {"backend": "gpu"},
    r"no backend of rocm, nki runs here": {"backend": "rocm", "fallback_backends": ["nki"]},
    r"AMD's GPUs run the opencl backend": {"backend": "rocm"},
}


@pytest.mark.parametrize("message", WRONG)
def test_a_wrong_option_is_refused(message):
    with pytest.raises(ValueError, match=message):
        PersistentKernel(**{"model": LLAMA, "backend": "python"} | WRONG[message])


@having_cpp
@pytest.mark.parametrize("workers", (0, True, 1.5))
def test_workers_are_a_whole_number(workers):
    with pytest.raises(ValueError, match="num_workers has value .*, expected a whole number from 1 to 4096"):
        PersistentKernel(model=LLAMA, backend="cpp", num_workers=workers)


@having_cpp
@pytest.mark.parametrize(("model", "cache_dtype"), [("qwen3", "q8_0"), ("mixtral", "f16")])
def test_a_step_is_one_call_with_experts_and_caches_of_blocks(model, cache_dtype):
    with kernel_of(DATA / model, "cpp", cache_dtype=cache_dtype) as kernel:
        assert "one call a step" in kernel.plan
        assert np.isfinite(kernel.step(1)).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loop_over_devices_and_backends(backend):
    """As its users write it."""
    devices = backends.get_backend_info(backend)["device_count"]
    assert devices == 1
    kernels = [
        PersistentKernel(mode="decode", model=LLAMA, backend=backend, world_size=devices, mpi_rank=device)
        for device in range(devices)
    ]
    for kernel in kernels:
        kernel.compile()
        assert all(np.isfinite(kernel()).all() for _ in range(10)) and kernel.length == 1


def test_a_model_that_is_none():
    with pytest.raises(TypeError, match="model has type int"):
        PersistentKernel(model=3)
    with pytest.raises(OSError, match="no such file"):
        PersistentKernel(model="nowhere.gguf", backend="python").compile()


def test_too_few_pages_for_a_token(monkeypatch):
    page = 4 * mmap.PAGESIZE
    monkeypatch.setattr("airllm.persistent_kernel.token_bytes", lambda config, dtype: 2 * page + 1)
    with pytest.raises(ValueError, match=r"max_num_pages has value 1, expected 9 or more: .* have \d+ bytes"):
        kernel_of(LLAMA, max_num_pages=1)


def test_the_backend_is_the_named_one_a_fallback_or_the_default():
    kernel = PersistentKernel(model=LLAMA, backend="rocm", fallback_backends=["nki", "python"])
    assert kernel.backend == "python"
    before = backends.get_default_backend()
    try:
        backends.set_default_backend("python")
        assert PersistentKernel(model=LLAMA).backend == "python"
    finally:
        backends.set_default_backend(before)
    assert PersistentKernel(model=LLAMA).backend == before
    assert "PersistentKernel" in dir(airllm)


# ------------------------------------------------------------------------------------------------ processes


def mpiexec(size: int, *arguments: str) -> dict:
    command = Path(sys.executable).parent / "mpiexec"
    found = str(command) if command.exists() else shutil.which("mpiexec")
    if not (found and importlib.util.find_spec("mpi4py")):
        assert "mpi" not in REQUIRED, "AIRLLM_TEST_REQUIRE names mpi: mpiexec or mpi4py is missing"
        pytest.skip("mpiexec or mpi4py is missing")
    program = [sys.executable, "-m", "mpi4py", str(ROOT / "tests" / "decoding_in_processes.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    done = subprocess.run(
        [found, "-n", str(size), *program, *arguments],
        capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


SHARED = {  # models for so many processes; with four, and phi3 with two, several have the same key-value head
    2: ("llama3", "gemma2", "phi3", "qwen3_moe"),
    4: ("llama3",),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SHARED)
def test_processes_give_the_logits_of_one(size, backend):
    told = mpiexec(size, backend, *(str(DATA / name) for name in SHARED[size]))
    assert set(told["models"]) == set(SHARED[size])
    for name, found in told["models"].items():
        assert found["far"] < 1e-5 and found["alike"] == 1, (name, found)
        assert f"process 0 of {size}" in found["plan"]
        assert ("one call" in found["plan"]) == (backend == "cpp")
    for rank, refused in enumerate(told["wrong_rank"]):
        assert f"mpi_rank has value {(rank + 1) % size}, expected {rank}" in refused
    for refused in told["wrong_size"]:
        assert f"world_size has value {size + 1}, expected {size}" in refused


def test_processes_must_have_been_started():
    if not importlib.util.find_spec("mpi4py"):
        pytest.skip("mpi4py is missing")
    with pytest.raises(
        ValueError, match="world_size has value 2, expected 1, as many as MPI has started: run `mpiexec"
    ):
        PersistentKernel(model=LLAMA, backend="python", world_size=2)
