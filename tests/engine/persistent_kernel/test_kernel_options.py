"""What a kernel of decoding takes and refuses: its context and pages, tokens, options and backends."""

import mmap

import numpy as np
import pytest

import airllm
from airllm import PersistentKernel, backends
from airllm.architectures import open_config
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.cache_layout import CacheLayout
from airllm.memory.kv_cache import ContextFull
from tests.support.engines.stepping import BACKENDS, LLAMA, TEXT, distance, having_cpp, kernel_of
from tests.support.models.tiny_models import DATA, VOCABULARY

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
