"""Models on a CUDA device: the queue of the module, kernels that are compiled at run time, whole models."""

import os
import subprocess
import sys

import numpy as np
import pytest
from arrays import runtime
from machine import clean_machine, message  # noqa: F401

import tensor_ops_cuda as cuda
from airllm.backends.device.faults import COMPILE, LOST, DeviceFault
from airllm.backends.gpu import machine_code
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.models import tiny_models
from tests.support.models.tiny_models import DATA

TEXT = tiny_models.texts()[1]
FAILED = 719  # cudaErrorLaunchFailure
KIB = 1024
rng = np.random.default_rng(0)


def on_device(name: str, **options) -> LayerWiseInferenceEngine:
    engine = LayerWiseInferenceEngine(DATA / name, backend="cuda", cache_dtype="f32", **options)
    assert engine.model.on_device, engine.model.why_not_on_device
    return engine


def distance(found, wanted):
    return float(np.abs(found - wanted).max() / np.ptp(wanted))


# What a model has that others have not.
MODELS = {
    "llama3": "grouped heads",
    "gemma2": "post norms, soft caps, a scaled embedding, windows",
    "qwen3_5": "a delta rule, and attention with gates",
    "falcon_h1": "a state scan beside attention",
    "deepseek_v3": "latent attention, groups of experts, a shared one",
    "gpt_oss": "sinks, biases of experts",
}


@pytest.mark.parametrize("name", MODELS)
def test_a_token_crosses_the_bus_as_an_id_and_as_logits(name):
    wanted = tiny_models.reference(name)[1]
    with on_device(name) as engine:
        engine.forward(TEXT[:-2], cache := engine.new_cache())
        for number, token in enumerate(TEXT[-2:]):
            start = cuda.counters.read()
            found = engine.forward([token], cache)
            spent = cuda.counters.read() - start
            assert distance(found, wanted[number - 2]) < 2e-4
            assert 0 < spent.uploaded <= 64 * KIB and spent.downloaded == found.nbytes and spent.waits == 1
            assert spent.launches <= 20 * engine.config.layers + 4


@pytest.mark.parametrize("offload", ("stream", "split"))
def test_layers_that_do_not_fit_pass_through_the_device_or_stay(offload):
    with on_device("llama3", gpu_layers=1, offload=offload) as engine:
        found = engine.forward(TEXT, all_positions=True)
    assert distance(found, tiny_models.reference("llama3")[1]) < 2e-4


def test_on_the_device_that_is_named(monkeypatch):
    monkeypatch.setenv("AIRLLM_CUDA_DEVICE", "1")
    with on_device("llama3") as engine:
        monkeypatch.delenv("AIRLLM_CUDA_DEVICE")
        found = engine.forward(TEXT)
    assert runtime.on_host_current_device() == 0
    assert distance(found, tiny_models.reference("llama3")[1][-1]) < 2e-4


# ---- the queue


def round_trip(queue, buffer, nbytes: int, offset: int = 0) -> np.ndarray:
    out = np.empty(nbytes, np.uint8)
    queue.download(buffer, offset, out)
    return out


def test_an_upload_keeps_its_array_until_it_is_read():
    queue, given = cuda.Queue(), rng.integers(0, 255, 1000).astype(np.uint8)
    buffer, copy = queue.allocate(1000), given.copy()
    queue.upload(buffer, copy)
    kept = sys.getrefcount(copy)
    assert np.array_equal(round_trip(queue, buffer, 900, 100), given[100:])
    assert sys.getrefcount(copy) < kept


def test_uploads_beside_launches_come_after_their_mark_and_before_what_waits():
    """Two arrays go through one buffer; the stand-in runs nothing before somebody waits for it."""
    queue, first, second = cuda.Queue(), np.full(64, 1, np.uint8), np.full(96, 2, np.uint8)
    buffer = queue.allocate(96)
    queue.finish_upload(queue.begin_upload(buffer, [first, first[:32]], None))
    assert np.array_equal(round_trip(queue, buffer, 96), np.ones(96, np.uint8))
    upload = queue.begin_upload(buffer, [second], queue.mark())
    queue.finish_upload(upload)
    assert np.array_equal(round_trip(queue, buffer, 96), second)
    third = queue.begin_upload(buffer, [first], queue.mark())
    queue.wait_upload(third)
    queue.finish_upload(third)
    assert np.array_equal(round_trip(queue, buffer, 96), np.concatenate([first, second[:32]]))


def test_memory_is_not_freed_under_an_upload():
    """The stand-in stops the process if a copy leaves its allocation."""
    queue = cuda.Queue()
    queue.begin_upload(queue.allocate(4096), [np.zeros(4096, np.uint8)], None)
    again = queue.allocate(4096)
    queue.upload(again, np.ones(4096, np.uint8))
    assert round_trip(queue, again, 4096).all()


def test_pinned_memory_is_freed_with_its_array():
    queue = cuda.Queue()
    array = queue.pinned(100)
    array[:] = 7
    part = array[10:20]
    del array
    assert part.tolist() == [7] * 10


def test_a_buffer_outlives_its_queue():
    buffer = cuda.Queue().allocate(10)
    del buffer


def test_recorded_launches_have_the_numbers_of_the_time_when_they_start():
    """The stand-in runs nothing before somebody waits for it: launches that wait keep their numbers."""
    queue = cuda.Queue()
    program = queue.load(machine_code.machine_code(cuda.compile, "elements", queue.arch))
    x, out = queue.allocate(64), queue.allocate(64)
    values = rng.standard_normal(16).astype(np.float32)
    silu = values / (1 + np.exp(-values))
    queue.upload(x, values.view(np.uint8))
    arguments = ["x", "out", np.uint64(2).tobytes()]
    launches = [cuda.Launch(program, "silu_f32", 1, 32, arguments)] * 2
    given = [{"x": (x, at, 64 - at), "out": (out, at, 64 - at)} for at in (0, 32)]
    recording = queue.record(list(zip(launches, given, strict=True)), [(1, 2, 2, 3)])

    def values_after(*tokens: int) -> np.ndarray:
        queue.upload(out, np.zeros(64, np.uint8))
        for each in tokens:
            recording.run(each)
        return round_trip(queue, out, 64).view(np.float32)

    for tokens, most in (((0,), 2), ((2,), 8), ((1, 0), 5)):
        found = values_after(*tokens)
        np.testing.assert_allclose(found[8 : 8 + most], silu[8 : 8 + most], rtol=1e-6)
        np.testing.assert_allclose(found[:2], silu[:2], rtol=1e-6)
        assert not found[8 + most :].any() and not found[2:8].any()
    before = cuda.calls()
    recording.run(0)
    assert cuda.calls() == before + 1  # one launch of a graph
    with pytest.raises(IndexError):
        queue.record([(launches[0], given[0])], [(0, 3, 0, 0)])


@pytest.mark.parametrize("function", (
    "cudaGraphCreate", "cuGraphAddKernelNode", "cudaGraphInstantiateWithFlags", "cudaGraphLaunch",
    "cuGraphExecKernelNodeSetParams",
))  # fmt: skip
def test_errors_of_recorded_launches_leave_nothing(function):
    """The fixture asserts that no graph is left."""
    queue = cuda.Queue()
    program = queue.load(machine_code.machine_code(cuda.compile, "elements", queue.arch))
    buffer = queue.allocate(64)
    queue.upload(buffer, np.zeros(64, np.uint8))
    launch = cuda.Launch(program, "silu_f32", 1, 32, ["x", "x", np.uint64(2).tobytes()])
    runtime.on_host_fail(function.encode(), 1, FAILED)
    with pytest.raises(cuda.DriverError):
        queue.record([(launch, {"x": (buffer, 0, 64)})], [(0, 2, 2, 1)]).run(1)


def test_a_launch_says_what_is_wrong():
    queue = cuda.Queue()
    program = queue.load(machine_code.machine_code(cuda.compile, "elements", queue.arch))
    assert "no_kernel" in message(RuntimeError, cuda.Launch, program, "no_kernel", 1, 32, [])
    launch = cuda.Launch(program, "silu_f32", 1, 32, ["x", "out", np.uint64(4).tobytes()])
    with pytest.raises(KeyError):
        queue.run([launch], {})
    assert "8 bytes" in message(ValueError, cuda.Launch, program, "silu_f32", 1, 32, [bytes(9)])


# ---- compilers


def test_machine_code_is_compiled_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path))
    calls = []

    def compile_text(text, arch):
        calls.append(arch)
        return b"code of " + arch.encode()

    uncached = machine_code.machine_code.__wrapped__
    assert [uncached(compile_text, "rope", arch) for arch in ("sm_75", "sm_75", "sm_90")] == [
        b"code of sm_75",
        b"code of sm_75",
        b"code of sm_90",
    ]
    assert calls == ["sm_75", "sm_90"]
    for path in (tmp_path / "kernels").iterdir():
        path.write_bytes(path.read_bytes()[:-1])  # not whole
    assert uncached(compile_text, "rope", "sm_75") == b"code of sm_75" and len(calls) == 3


def test_a_text_that_does_not_compile_is_a_fault_with_the_compilers_log():
    text = 'extern "C" __global__ void broken() { undeclared = 1; }'
    found = message(cuda.CompileError, cuda.compile, text, "sm_90")
    assert found.startswith("NVRTC does not compile the kernels for sm_90") and "undeclared" in found
    assert cuda.device_ops().fault(cuda.CompileError(found)).kind == COMPILE


def test_without_a_compiler_a_model_says_what_to_install(tmp_path):
    """In a process whose path has the module, and no libraries beside it."""
    os.symlink(cuda.__file__, tmp_path / os.path.basename(cuda.__file__))
    code = "import tensor_ops_cuda as c\ntry: c.compile('', 'sm_90')\nexcept c.CompileError as e: print(e)"
    path = os.pathsep.join([str(tmp_path), os.getcwd()])
    environment = {**os.environ, "PYTHONPATH": path}
    answer = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert "no libnvrtc.so.13 was found" in answer.stdout, answer.stderr
    assert "pip install nvidia-cuda-nvrtc" in answer.stdout


# ---- faults


@pytest.mark.parametrize("function", ("cuLaunchKernel", "cuModuleLoadData", "cudaStreamSynchronize"))
def test_an_error_of_the_driver_is_a_fault(function):
    with on_device("llama3") as engine:
        runtime.on_host_fail(function.encode(), 1, FAILED)
        with pytest.raises(DeviceFault, match="Stand-in 0 .* was lost: .*fallback_backends=") as found:
            for _ in range(2):
                engine.forward(TEXT)
        assert found.value.kind == LOST


def test_a_forked_child_is_told():
    with on_device("llama3") as engine:
        engine.forward(TEXT)
        if not (child := os.fork()):
            try:
                engine.forward(TEXT)
            except Exception as error:
                os._exit(0 if "before fork()" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
