"""PersistentKernel on CUDA: a step is one launch of a graph, and gives the python backend's logits."""

import ctypes
import functools
import os
import re

import numpy as np
import pytest
from arrays import runtime
from machine import clean_machine, message  # noqa: F401

import tensor_ops_cuda as cuda
from airllm import PersistentKernel, backends
from airllm.backends.device.faults import DeviceFault
from airllm.engine.layers.rope_tables import Rotation
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.kv_cache import ContextFull
from tests.support.models import tiny_gguf, tiny_models
from tests.support.models.tiny_models import DATA

TEXT = tiny_models.texts()[0]
LAUNCHES = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "cudaMallocAsync", "cudaGraphLaunch")
UNSUPPORTED, INVALIDATED, ISOLATION, IMPLICIT = 900, 901, 905, 906  # cudaErrorStreamCapture...
OUT_OF_MEMORY = 2


def calls() -> dict[str, int]:
    return {name: runtime.on_host_calls(name.encode()) for name in LAUNCHES}


def distance(found, wanted):
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


def by_engine(path, tokens) -> np.ndarray:
    """Logits after each token, of the python backend without any rounding of activations."""
    with LayerWiseInferenceEngine(path, backend="python", cache_dtype="f32", compute="float32") as engine:
        cache = engine.new_cache()
        return np.stack([engine.forward([token], cache) for token in tokens])


def kernel_of(path, **options) -> PersistentKernel:
    options = {"cache_dtype": "f32", "context": 32, **options}
    return PersistentKernel(mode="decode", model=path, backend="cuda", **options).compile()


# What a model has that others have not, and the context, beyond 256 keys of which attention is split.
MODELS = {
    "qwen2": ("biases", 6, 600),
    "gemma2": ("post norms, soft caps, a scaled embedding, and a window of 8", 10, 32),
    "qwen3": ("norms of q and k", 6, 32),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_one_launch_and_gives_the_logits_of_the_engine(name):
    _, steps, context = MODELS[name]
    with kernel_of(DATA / name, context=context) as kernel:
        assert kernel.plan.startswith("cuda: one launch of a captured graph a step, Stand-in 0")
        before = calls()
        found = np.stack([kernel.step(token) for token in TEXT[:steps]])
        after = calls()
    launched = {each: after[each] - before[each] for each in LAUNCHES}
    assert launched == {each: steps * (each == "cudaGraphLaunch") for each in LAUNCHES}
    assert found.dtype == np.float32 and distance(found, by_engine(DATA / name, TEXT[:steps])) < 1e-4


@pytest.mark.parametrize("cache_dtype", ("f32", "f16"))
def test_stored_weights_and_a_sequence_that_goes_back(cache_dtype, tmp_path):
    """A llama GGUF file, whose rotation is of neighbours: a prompt, a repeated step, and all once more."""
    path = tiny_gguf.write_gguf("llama2", tmp_path / "model.gguf", "blocks")
    wanted, far = by_engine(path, TEXT[:4]), 1e-4 if cache_dtype == "f32" else 2e-3
    with kernel_of(path, cache_dtype=cache_dtype) as kernel:
        assert distance(kernel.prefill(TEXT[:3]), wanted[2]) < far
        last = kernel.step(TEXT[3])
        assert distance(last, wanted[3]) < far and np.array_equal(kernel(), last) and kernel.length == 4
        kernel.reset()
        assert distance(kernel.step(TEXT[0]), wanted[0]) < far
        assert np.array_equal(kernel.prefill(TEXT[1:4]), last)


def test_a_text_that_becomes_a_long_one_is_turned_anew(monkeypatch):
    """Its angles differ from its first token on: tables are exchanged, the graph stays."""
    monkeypatch.setattr(Rotation, "__init__", functools.partialmethod(_short_rotation, Rotation.__init__))
    wanted = by_engine(DATA / "phi3_long", TEXT[:4])
    with kernel_of(DATA / "phi3_long") as kernel:
        captured = runtime.on_host_calls(b"cudaStreamBeginCapture")
        found = np.stack([kernel.step(token) for token in TEXT[:4]])
        assert runtime.on_host_calls(b"cudaStreamBeginCapture") == captured
    assert distance(found, wanted) < 1e-4


def _short_rotation(self, init, *args):
    init(self, *args)
    self._short_until = 2


def test_on_the_device_that_is_named(monkeypatch):
    monkeypatch.setenv("AIRLLM_CUDA_DEVICE", "1")
    with kernel_of(DATA / "llama2") as kernel:
        monkeypatch.delenv("AIRLLM_CUDA_DEVICE")
        assert runtime.on_host_current_device() == 0
        assert distance(kernel.step(TEXT[0]), by_engine(DATA / "llama2", TEXT[:1])[0]) < 1e-4


def test_a_kernel_for_each_device(monkeypatch):
    """In one process: each has a part of the model, and all the logits."""
    monkeypatch.setattr("airllm.engine.persistent_kernel.mpi_processes", lambda size, rank: None)
    num_devices = backends.get_backend_info("cuda").get("device_count", 1)
    kernels = []
    for device_id in range(num_devices):
        kernels.append(
            PersistentKernel(
                mode="decode", backend="cuda", world_size=num_devices, mpi_rank=device_id,
                model=DATA / "llama3", cache_dtype="f32",
            )
        )  # fmt: skip
    found = np.array([[kernel.step(token) for kernel in kernels] for token in TEXT[:3]])
    wanted = by_engine(DATA / "llama3", TEXT[:3])
    assert all(distance(found[:, rank], wanted) < 1e-4 for rank in range(num_devices))
    assert [f"part {rank} of 2 on Stand-in {rank} " in kernels[rank].plan for rank in (0, 1)] == [True, True]


def test_a_forked_child_is_told():
    with kernel_of(DATA / "llama2") as kernel:
        kernel.step(1)
        if not (child := os.fork()):
            text = message(RuntimeError, kernel.step, 1)
            os._exit(0 if "before fork()" in text else 1)
        assert os.waitpid(child, 0)[1] == 0


# ---- what cannot be captured


@pytest.mark.parametrize(
    ("name", "options", "why"),
    (
        ("mixtral", {}, "experts are chosen in host memory between the launches of a step"),
        ("qwen3", {"cache_dtype": "q8_0"}, "a captured step takes caches in f32 and f16 only"),
        ("granite", {}, "native layers of cuda do not support residual_scale"),
        ("smollm3", {}, "native layers of cuda do not support nope_layers"),
        ("olmo2", {}, "native layers of cuda do not support pre_norms, qk_norm=row"),
        ("ministral3", {}, "native layers of cuda do not support query_temperature"),
    ),
)
def test_the_plan_says_what_goes_op_by_op(name, options, why):
    with kernel_of(DATA / name, **options) as kernel:
        assert kernel.plan == f"cuda: op by op: {why}"
        tokens = TEXT[:4]
        found = np.stack([kernel.step(token) for token in tokens])
    if "cache_dtype" not in options:
        assert distance(found, by_engine(DATA / name, tokens)) < 2e-4


def test_a_layer_on_a_device_has_no_place_for_experts(monkeypatch):
    monkeypatch.setattr("airllm.engine.devices.graph_decode._why_not", lambda model, cache: "")
    with kernel_of(DATA / "mixtral") as kernel:
        assert "native layers of cuda do not support expert_feed_forward, experts, " in kernel.plan


def test_a_device_without_room_for_what_is_captured(monkeypatch):
    """Layers that do not fit are computed elsewhere; where nothing fits, the error says what to do."""
    wanted = by_engine(DATA / "llama2", TEXT[:3])
    monkeypatch.setattr("airllm.backends.gpu.place.QueuePlace.free_memory", lambda self: 1 << 20)
    runtime.on_host_fail(b"cudaMallocAsync", 5, OUT_OF_MEMORY)
    with kernel_of(DATA / "llama2") as kernel:
        assert re.match(r"cuda: op by op: allocating \d+ bytes on cuda:0 .* bytes are free", kernel.plan)
        assert distance(np.stack([kernel.step(token) for token in TEXT[:3]]), wanted) < 1e-4
    runtime.on_host_machine(13000, 2, 1, 1 << 14)
    assert "device_memory=" in message((DeviceFault, MemoryBudgetError), kernel_of, DATA / "llama2")


def test_weights_are_on_the_device_once():
    """Those of a captured step, and not those of the model that it was captured from too."""
    before = cuda.counters.read()
    with kernel_of(DATA / "llama2") as kernel:
        assert kernel.plan.startswith("cuda: one launch")
        assert (cuda.counters.read() - before).uploaded == 0


@pytest.mark.parametrize("call", ("cudaMallocHost", "cudaStreamBeginCapture", "cudaGraphInstantiate"))
def test_what_fails_while_it_captures_is_raised(call):
    function = call + "WithFlags" * (call == "cudaGraphInstantiate")
    runtime.on_host_fail(function.encode(), 1, UNSUPPORTED)
    assert f"{call} failed" in message(RuntimeError, kernel_of, DATA / "llama2")
    assert cuda.silu(np.zeros(1, np.float32)) == 0


def test_a_launch_that_fails_while_it_captures_is_raised():
    with kernel_of(DATA / "llama2"):
        warm_and_captured = runtime.on_host_calls(b"cudaLaunchKernel")
    runtime.on_host_fail(b"cudaLaunchKernel", warm_and_captured - 3, UNSUPPORTED)
    text = message(RuntimeError, kernel_of, DATA / "llama2")
    assert "the launch of" in text and "while a graph is captured" in text


def test_a_token_or_a_position_beyond_the_model():
    with kernel_of(DATA / "llama2", context=2) as kernel:
        assert "token has value 80, expected 0 to 79" in message(ValueError, kernel.step, 80)
        kernel.step(1)
        assert "token has value -1, expected 0 to 79" in message(ValueError, kernel.step, -1)
        kernel.step(1)
        assert "expected at most 2 in all" in message(ContextFull, kernel.step, 1)


# ---- the stand-in's own rules, CUDA's


@pytest.mark.parametrize(
    ("call", "blocking", "code"),
    (
        ("synchronize the stream", 0, UNSUPPORTED),
        ("synchronize the device", 0, UNSUPPORTED),
        ("synchronize the legacy stream", 1, IMPLICIT),
        ("use the legacy stream", 1, IMPLICIT),
        ("use the legacy stream", 0, 0),
        ("use another stream", 1, 0),
        ("allocate", 0, UNSUPPORTED),
        ("allocate host memory", 0, UNSUPPORTED),
        ("free", 0, UNSUPPORTED),
        ("copy pageable memory", 0, UNSUPPORTED),
        ("copy pinned memory", 0, 0),
        ("wait for what is not captured", 0, ISOLATION),
        ("destroy the stream", 0, UNSUPPORTED),
    ),
)
def test_what_a_capture_refuses_makes_it_invalid(call, blocking, code):
    ended = ctypes.c_int(-1)
    assert runtime.on_host_captured(call.encode(), blocking, ctypes.byref(ended)) == code
    assert ended.value == (INVALIDATED if code else 0)


def test_a_launch_has_the_arguments_of_its_capture():
    assert runtime.on_host_replayed(7) == 7
