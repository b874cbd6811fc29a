"""Decoding as one call: the engine's logits, whatever the backend, the threads and the processes."""

import dataclasses
import importlib.util
import json
import mmap
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

import airllm
from airllm import PersistentKernel, backends
from airllm.architectures import open_config
from airllm.backends import registry
from airllm.engine import persistent_kernel
from airllm.engine.parallel.tensor_parallel import Shard
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.kv_cache import ContextFull
from airllm.ops.op import OPS
from tests.support.environment import REQUIRED
from tests.support.models import tiny_gguf, tiny_models
from tests.support.models.tiny_models import AS_GGUF, DATA, FOLDERS, K_MODEL, VOCABULARY

ROOT = Path(__file__).resolve().parents[2]
TEXT = tiny_models.texts()[0]
PROMPT = 11  # tokens; windows are shorter than what follows, and some rotations stretch behind 24
BACKENDS = [name for name in ("python", "cpp") if not registry.open_backend(name).why_not]
LLAMA = DATA / "llama3"
having_cpp = pytest.mark.skipif("cpp" not in BACKENDS, reason="the C++ backend is not built")


def distance(found: np.ndarray, wanted: np.ndarray) -> float:
    assert found.shape == wanted.shape and found.dtype == np.float32
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


def take_steps(kernel: PersistentKernel) -> np.ndarray:
    """Logits after a prompt, and after each token that follows."""
    return np.stack([kernel.prefill(TEXT[:PROMPT]), *map(kernel.step, TEXT[PROMPT:])])


def kernel_of(path, backend="python", **options) -> PersistentKernel:
    return PersistentKernel(model=path, backend=backend, **{"cache_dtype": "f32", **options}).compile()


# No native layers have Mamba-2; those of Qwen 3-Next do not have how its folders store two matrices as one.
MAMBA = tuple(name for name in FOLDERS if name.startswith(("falcon_h1", "granite_hybrid", "nemotron_h")))
OP_BY_OP = (*MAMBA, "qwen3_next")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FOLDERS)
def test_steps_give_the_logits_of_the_reference(name, backend):
    wanted = tiny_models.reference(name)
    with kernel_of(DATA / name, backend) as kernel:
        found = take_steps(kernel)
        assert kernel.length == len(TEXT)
        assert ("one call" in kernel.plan) == (backend == "cpp" and name not in OP_BY_OP)
    short = min(24, len(TEXT)) - PROMPT  # a shorter text's rotations differ, and so does its reference
    assert distance(found[:short], wanted[1][PROMPT - 1 : PROMPT - 1 + short]) < 2e-4
    assert distance(found[-1], wanted[0][-1]) < 2e-4


# Of whose tokens many come to other experts, and those after them see it in a state.
FLIPPING = ("lfm2_moe", "qwen3_5_moe", "qwen3_next")


@having_cpp
@pytest.mark.parametrize("name", (*(name for name in AS_GGUF if name not in MAMBA), K_MODEL))
def test_stored_weights_in_one_call_and_op_by_op(name, tmp_path):
    """Both round activations to 8 bits; one call does not do so to those of queries, keys and values. Of the
    middle token: by rounding, some of a mixture come to the other of two experts that are liked nearly alike.
    """
    path = tiny_gguf.write_gguf(name, tmp_path / "model.gguf", "blocks")
    exact = compose(path, compute="float32")

    def far(logits):
        return np.median(np.linalg.norm(logits - exact, axis=1) / np.linalg.norm(exact, axis=1))

    with kernel_of(path, "cpp") as kernel:
        found, op_by_op = far(take_steps(kernel)), far(compose(path))
        assert "one call" in kernel.plan
    if name in FLIPPING:
        assert max(found, op_by_op) < 0.06
    else:
        assert found < 1.02 * op_by_op < 0.05


def compose(path, **options):
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
        wanted = take_steps(kernel)
    monkeypatch.setattr("airllm.engine.model._BOUND", 7)
    with kernel_of(DATA / name, "cpp") as kernel:
        for _ in range(2):
            assert distance(take_steps(kernel), wanted) < 1e-5
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
            logits.append(take_steps(kernel))
    assert distance(logits[1], logits[0]) < 1e-2 > distance(logits[2], logits[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_kernels_at_once(backend):
    paths = [DATA / name for name in ("llama3", "gemma2", "qwen2", "llama3")]
    with_each = [kernel_of(path, backend) for path in paths]
    found: list = [None] * len(paths)

    def run(i: int) -> None:
        found[i] = take_steps(with_each[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(paths))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for kernel, logits in zip(with_each, found, strict=True):
        kernel.reset()
        assert distance(take_steps(kernel), logits) < 1e-5
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
        pytest.raises(ValueError, match="max_memory is 20000000 bytes.*expected one without max_memory"),
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


def test_names_have_letters_of_any_case():
    with LayerWiseInferenceEngine(LLAMA, backend="Python", cache_dtype="F32") as engine:
        assert engine.backend.name() == "python" and engine.new_cache().layout.items == np.float32
        wanted = engine.forward(TEXT[:3])
    with kernel_of(LLAMA, "NumPy", cache_dtype="F32") as kernel:
        assert distance(kernel.prefill(TEXT[:3]), wanted) < 1e-5
    with pytest.raises(ValueError, match="cache_dtype has value 'F64', expected one of f32, f16, q8_0"):
        LayerWiseInferenceEngine(LLAMA, cache_dtype="F64")


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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("token", (1.5, [1], None, "1"))
def test_a_token_that_is_no_whole_number(token, backend):
    with kernel_of(LLAMA, backend) as kernel:
        for _ in range(2):  # the first step goes another way than the next
            with pytest.raises(TypeError, match="step: token has type .*, expected a whole number"):
                kernel.step(token)
            kernel.step(np.int64(1))
        assert kernel._cache.tokens == [1, 1]


# ------------------------------------------------------------------------------------------------ its options

WRONG = {
    r"mode has value 'prefill', expected one of 'decode'": {"mode": "prefill"},
    r"no option 'use_cutlass_kernel' on the backend 'python', expected one of: max_num_pages, context, ": {
        "use_cutlass_kernel": True
    },
    r"no option 'num_workers' on the backend 'python'": {"num_workers": 2},
    r"no option 'tile'": {"tile": 1},
    r"max_num_pages has value 0, expected a whole number from 1 on": {"max_num_pages": 0},
    r"context has value 0, expected a whole number from 1 to 16777216": {"context": 0},
    r"world_size has value 0, expected a whole number from 1 on": {"world_size": 0},
    r"mpi_rank has value 2, expected 0 to 0: world_size=1": {"mpi_rank": 2},
    r"unknown backend 'gpu', expected one of": {"backend": "gpu"},
    r"no backend of rocm, nki runs here": {"backend": "rocm", "fallback_backends": ["nki"]},
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
    monkeypatch.setattr(CacheLayout, "token_bytes", lambda layout: 2 * page + 1)
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
        backends.set_default_backend("auto")
    assert PersistentKernel(model=LLAMA).backend == before
    assert "PersistentKernel" in dir(airllm)


# ------------------------------------------------------------------------------------------------ processes


def mpiexec(size: int, *arguments: str) -> dict:
    command = Path(sys.executable).parent / "mpiexec"
    found = str(command) if command.exists() else shutil.which("mpiexec")
    if not (found and importlib.util.find_spec("mpi4py")):
        assert "mpi" not in REQUIRED, "AIRLLM_TEST_REQUIRE names mpi: mpiexec or mpi4py is missing"
        pytest.skip("mpiexec or mpi4py is missing")
    program = [
        sys.executable,
        "-m",
        "mpi4py",
        str(ROOT / "tests" / "support" / "engines" / "decoding_in_processes.py"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    environment["OPENBLAS_NUM_THREADS"] = "1"
    done = subprocess.run(
        [found, "-n", str(size), *program, *arguments],
        capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


SHARED = {  # models for so many processes; with four, and phi3 with two, several have the same key-value head
    2: (
        "llama3",
        "gemma2",
        "phi3",
        "qwen3_moe",
        "granite",
        "smollm3",
        "ministral3",
        "qwen2_moe",
        "gpt_oss",
        "cohere2",
        "starcoder2",
        "hunyuan_moe",
        "llama4",
        "gemma4",
        "deepseek_v3",
    ),
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


def nine_heads(path: Path) -> Path:
    """A model with nine heads over three key-value heads, as SmolLM2 has them."""
    config, tensors = tiny_models.read_folder("llama2")
    random, width = np.random.default_rng(1), config["hidden_size"]
    for name in list(tensors):
        for part, heads in {"q_proj": 9, "k_proj": 3, "v_proj": 3, "o_proj": 9}.items():
            if part in name:
                shape = (heads * 8, width) if part != "o_proj" else (width, heads * 8)
                tensors[name] = random.standard_normal(shape, np.float32) / 8
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    heads = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8}
    (path / "config.json").write_text(json.dumps({**config, **heads}))
    return path


@pytest.mark.parametrize("backend", BACKENDS)
def test_key_value_heads_need_not_be_shared_out_evenly(tmp_path, backend):
    told = mpiexec(2, backend, str(nine_heads(tmp_path / "nine")))["models"]["nine"]
    assert told["far"] < 1e-5 and told["alike"] == 1
    assert "process 0 of 2: 3 heads and 1 key-value" in told["plan"]


def test_every_head_belongs_to_a_process():
    whole = open_config(LLAMA)
    for size, parts in {2: [(3, 1), (6, 2)], 3: [(3, 1)] * 3, 9: [(1, 1)] * 9}.items():
        nine = dataclasses.replace(whole, heads=9, kv_heads=3, feed_forward=36)
        shards = [Shard(nine, SimpleNamespace(rank=rank, size=size)) for rank in range(size)]
        assert [(shard.config.heads, shard.config.kv_heads) for shard in shards] == parts
    with pytest.raises(
        ValueError, match="world_size has value 4, expected one of 1, 2, 3, 9 for a model of 9"
    ):
        Shard(nine, SimpleNamespace(rank=0, size=4))
    with pytest.raises(ValueError, match="expected 1: olmo2 normalizes whole rows of q and k"):
        Shard(open_config(DATA / "olmo2"), SimpleNamespace(rank=0, size=2))


# ------------------------------------------------------------------------------------------------ one process


@pytest.fixture
def without_mpi(monkeypatch):
    """As where mpi4py is not installed, or has started this process alone."""
    monkeypatch.setattr(persistent_kernel, "mpi_processes", lambda size, rank: None)


def shared_by(size: int, name="llama3", backend="python", **options) -> list[PersistentKernel]:
    made = {"model": DATA / name, "backend": backend, "cache_dtype": "f32", **options}
    return [PersistentKernel(world_size=size, mpi_rank=rank, **made) for rank in range(size)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SHARED)
def test_kernels_of_one_process_share_a_model(size, backend, without_mpi):
    """Called in turn, they give the logits of one that has it all, with the same bits each."""
    for name in SHARED[size] if backend == "cpp" else SHARED[size][:1]:
        with kernel_of(DATA / name, backend) as alone:
            wanted = take_steps(alone)
        kernels = shared_by(size, name, backend)
        found = [[kernel.prefill(TEXT[:PROMPT]) for kernel in kernels]]
        found += [[kernel.step(token) for kernel in kernels] for token in TEXT[PROMPT:]]
        together = np.array(found).swapaxes(0, 1)
        assert distance(together[0], wanted) < 1e-5
        assert all(np.array_equal(each, together[0]) for each in together)
        assert {kernel.length for kernel in kernels} == {len(TEXT)}
        for rank, kernel in enumerate(kernels):
            assert f"part {rank} of {size} on " in kernel.plan
            assert ("one call" in kernel.plan) == (backend == "cpp")
            kernel.close()


def test_they_may_be_called_by_threads_and_each_by_itself(without_mpi):
    kernels = shared_by(2)
    found: list = [None, None]

    def run(i: int) -> None:
        found[i] = take_steps(kernels[i])

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(*found)
    repeated = [[kernel() for _ in range(5)] for kernel in kernels]  # the second one's were computed before
    assert all(np.array_equal(each, found[0][-1]) for each in [*repeated[0], *repeated[1]])
    for kernel in kernels:
        kernel.reset()
    for kernel in reversed(kernels):
        assert np.array_equal(take_steps(kernel), found[0])


def test_all_must_be_there_and_take_the_same_steps(without_mpi, monkeypatch):
    first = PersistentKernel(model=LLAMA, backend="python", world_size=2)
    with pytest.raises(ValueError, match="no kernel of mpi_rank 1, expected one of each: .*mpiexec -n 2"):
        first.compile()
    second = PersistentKernel(model=LLAMA, backend="python", world_size=2, mpi_rank=1)
    first.step(1)
    with pytest.raises(
        ValueError, match=r"mpi_rank=1 would take prefill\(\[2\]\), expected prefill\(\[1\]\)"
    ):
        second.step(2)
    second.step(1)
    monkeypatch.setattr("airllm.engine.parallel.threads._KEPT", 3 * 4 * VOCABULARY)  # of three that wait
    for _ in range(5):
        second.step(3)
    with pytest.raises(
        ValueError, match="mpi_rank=0 is 5 steps behind, expected all kernels to take the same"
    ):
        first.step(3)
    second.close()
    with pytest.raises(RuntimeError, match="closed"):
        second.step(3)


def test_others_do_not_go_on_without_one_that_is_closed(without_mpi):
    first, second = shared_by(2)
    wanted = first.step(1)
    first.close()
    assert np.array_equal(second.step(1), wanted)  # computed before
    with pytest.raises(RuntimeError, match="stopped .that of mpi_rank=0 is closed.: create new ones"):
        second.step(2)


def test_what_all_refuse_is_refused_to_each_and_changes_nothing(without_mpi):
    kernels = shared_by(2, context=2)
    for kernel in kernels:
        kernel.prefill([1, 2])
    for _ in range(2):
        for kernel in kernels:
            with pytest.raises(ContextFull, match="has 2 tokens and would get 1 more"):
                kernel.step(3)
    wanted = kernel_of(LLAMA).prefill([4])
    for kernel in kernels:
        kernel.reset()
        assert distance(kernel.step(4), wanted) < 1e-5
    kernels = shared_by(3)
    with pytest.raises(ValueError, match="world_size has value 3, expected one of 1, 2, 4 for a model"):
        kernels[2].compile()


def test_one_that_fails_ends_it_for_all(without_mpi, monkeypatch):
    kernels = shared_by(2)
    for kernel in kernels:
        kernel.step(1)
    monkeypatch.setattr(kernels[1]._model, "decode", lambda *_: 1 / 0)  # the other one waits for its part
    for kernel in kernels:
        with pytest.raises(ZeroDivisionError):
            kernel.step(2)
    for kernel in kernels:
        with pytest.raises(
            RuntimeError, match="stopped .ZeroDivisionError: division by zero.: create new ones"
        ):
            kernel.step(2)


def test_each_is_on_a_device_of_its_own(fake, without_mpi):
    """The loop over devices of those who have several; more kernels than devices share them."""
    here, used = threading.local(), set()

    def swiglu(gate, up, *, out=None):
        used.add(here.index)
        return OPS["swiglu"].define(gate, up, out=out)

    fake(
        "twin",
        swiglu=swiglu,
        use_device=lambda index: setattr(here, "index", index),
        device=lambda: f"twin {getattr(here, 'index', '?')}",
        device_infos=lambda: [{"name": f"twin {i}", "total_memory": 1} for i in range(2)],
    )
    devices = backends.get_backend_info("twin")["device_count"]
    kernels = shared_by(devices, backend="twin")
    with kernel_of(LLAMA) as alone:
        assert distance(np.stack([kernel.step(7) for kernel in kernels])[1], alone.step(7)) < 1e-5
    assert used == {0, 1}
    assert ["on twin 0:" in kernels[0].plan, "on twin 1:" in kernels[1].plan] == [True, True]
    assert "on twin 1:" in [kernel.compile() for kernel in shared_by(4, backend="twin")][3].plan


def test_a_process_that_mpi_has_not_started_is_alone():
    code = "from airllm.engine.parallel.mpi import mpi_processes; print(mpi_processes(2, 0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "None\n", done.stderr
