"""Kernels of decoding that share a model, in processes or in one: they give the logits of one alone."""

import dataclasses
import importlib.util
import json
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

from airllm import PersistentKernel, backends
from airllm.architectures import open_config
from airllm.engine import persistent_kernel
from airllm.engine.parallel.tensor_parallel import Shard
from airllm.memory.kv_cache import ContextFull
from airllm.ops.op import OPS
from tests.support.engines.stepping import BACKENDS, LLAMA, PROMPT, TEXT, distance, kernel_of, take_steps
from tests.support.environment import REQUIRED
from tests.support.models import tiny_models
from tests.support.models.tiny_models import DATA, VOCABULARY

ROOT = Path(__file__).resolve().parents[3]

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
