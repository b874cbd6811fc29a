"""A device that fails while a model is on it: what the error says, and that another backend goes on."""

import re
import threading
import warnings
from pathlib import Path

import pytest

from airllm.backends import registry
from airllm.backends.device.faults import COMPILE, LOST, MEMORY, DeviceFault
from airllm.backends.gpu import machine_code
from airllm.cli import commands
from airllm.engine.devices.fallback import BackendFallback
from airllm.layer_engine import LayerWiseInferenceEngine
from tests.support.engines import device_models
from tests.support.engines.device_models import agree
from tests.support.models.tiny_models import DATA, reference, texts

backend = device_models.placed
TEXTS = texts()
KINDS = (MEMORY, LOST)
NO_KERNEL = "this is no kernel"
COMPILED = ("cuda", "rocm")  # whose module raises errors of its own
# Where a driver may report which fault, and at which call.
PLACES = (
    ("allocate", 3, MEMORY),
    ("allocate", 40, LOST),
    ("upload", 1, MEMORY),
    ("run", 30, MEMORY),
    ("run", 35, LOST),
    ("download", 1, LOST),
)
SAYS = {
    MEMORY: "has no memory left: .*close what else uses the device, keep less there .device_memory=",
    LOST: "was lost: .*open the model again",
    COMPILE: "does not compile a kernel: .*update the device's driver",
}


def error_of(backend: str, kind: str) -> Exception:
    """An error as the backend's package raises it."""
    if backend == "webgpu":
        import wgpu

        said = "Not enough memory left." if kind == MEMORY else "Validation Error: Parent device is lost"
        return (wgpu.GPUOutOfMemoryError if kind == MEMORY else wgpu.GPUValidationError)(said)
    if backend in COMPILED:
        lost = registry.open_backend(backend).module.DriverError("the launch failed")
        return MemoryError("no memory") if kind == MEMORY else lost
    import pyopencl as cl

    code, error = (-4, cl.MemoryError) if kind == MEMORY else (-36, cl.LogicError)
    return error(cl._cl._ErrorRecord("", code, "clEnqueueNDRangeKernel"))


class Failing:
    """Makes a method of an engine's place raise from its call number `after` on, until `mend`."""

    def __init__(self, place, method: str, after: int, error: Exception):
        self._place, self._method, self._left, self._error = place, method, after, error
        self._real = getattr(place, method)
        setattr(place, method, self._call)

    def _call(self, *given):
        self._left -= 1
        if self._left < 0:
            raise self._error
        return self._real(*given)


def open_engine(name: str | Path, backend: str, **options) -> LayerWiseInferenceEngine:
    engine = LayerWiseInferenceEngine(DATA / name, backend=backend, **{"cache_dtype": "f32", **options})
    assert engine.model.on_device
    return engine


def place_of(engine: LayerWiseInferenceEngine):
    return engine.model.on_device.device.place


@pytest.mark.parametrize(("method", "after", "kind"), PLACES)
def test_an_error_names_the_device_and_what_to_do(method, after, kind, backend):
    with open_engine("llama3", backend) as engine:
        place = place_of(engine)
        Failing(place, method, after, error_of(backend, kind))
        cache = engine.new_cache()
        with pytest.raises(DeviceFault, match=SAYS[kind] + ".*fallback_backends=") as found:
            for token in TEXTS[1]:
                engine.forward([token], cache)
        assert str(found.value).startswith(f"{place.label} ") and found.value.kind == kind
        assert "\n" not in str(found.value)


@pytest.mark.parametrize(("method", "after", "kind"), PLACES)
@pytest.mark.parametrize("form", ({}, {"gpu_layers": 1}, {"gpu_layers": 1, "offload": "stream"}), ids=str)
def test_another_backend_goes_on_with_all_tokens(form, method, after, kind, backend):
    """At prefill, or at one of the tokens after it; other sequences that are on the device go on too."""
    wanted = reference("llama3")[1]
    with open_engine("llama3", backend, fallback_backends=["nki", backend, "cpu"], **form) as engine:
        label = place_of(engine).label
        engine.forward(TEXTS[1][:11], other := engine.new_cache())
        Failing(place_of(engine), method, after, error_of(backend, kind))
        cache = engine.new_cache()
        with pytest.warns(BackendFallback, match=r"^cpp goes on: ") as told:
            agree(engine.forward(TEXTS[1][:9], cache), wanted[8])
            for at in range(9, len(TEXTS[1])):
                agree(engine.forward(TEXTS[1][at : at + 1], cache), wanted[at])
        assert len(told) == 1 and label in str(told[0].message)
        assert engine.backend.name() == "cpp" and not engine.model.on_device
        assert cache.tokens == TEXTS[1] and not cache.on_device()
        agree(engine.forward(TEXTS[1][11:], other), wanted[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_sequence_in_a_file_goes_on_from_there(kind, backend, tmp_path):
    """What the file has is not computed again."""
    wanted = reference("llama3")[1]
    with open_engine("llama3", backend, fallback_backends=["cpp"], kv_cache_dir=tmp_path) as engine:
        engine.forward(TEXTS[1][:9], cache := engine.new_cache("one"))
        Failing(place_of(engine), "run", 5, error_of(backend, kind))
        rows = []
        forward = engine.model.forward
        engine.model.forward = lambda tokens, *rest: rows.append(len(tokens[0])) or forward(tokens, *rest)
        with pytest.warns(BackendFallback):
            agree(engine.forward(TEXTS[1][9:10], cache), wanted[9])
        assert max(rows, default=0) <= 1
        agree(engine.forward(TEXTS[1][10:], cache), wanted[-1])


def test_windows_batches_and_all_positions_go_on():
    """On OpenCL alone: llvmpipe takes seconds for prompts."""
    if why_not := registry.open_backend("opencl").why_not:
        pytest.skip(why_not)
    tokens = [(text * 40)[:700] for text in TEXTS[:2]]
    options = {"context": 760, "cache_dtype": "f32"}
    with LayerWiseInferenceEngine(DATA / "gemma3", backend="cpp", **options) as host:
        wanted = host.forward([[*each, 1, 2] for each in tokens], all_positions=True)
    with open_engine("gemma3", "opencl", fallback_backends=["cpp"], **options) as engine:
        caches = [engine.new_cache() for _ in tokens]
        engine.forward([each[:600] for each in tokens], caches)
        Failing(place_of(engine), "run", 60, error_of("opencl", LOST))
        with pytest.warns(BackendFallback):
            found = engine.forward([[*each[600:], 1, 2] for each in tokens], caches, all_positions=True)
        for logits, every in zip(found, wanted, strict=True):
            agree(logits, every[600:])


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_goes_on_where_it_was(kind, backend, folder):
    """The same tokens, drawn by the same random numbers, also in a batch, and with a draft model."""
    ways = ({}, {"temperature": 0.9, "seed": 3})
    prompts = ["the thin", "in the inn", "a hen"]
    with LayerWiseInferenceEngine(folder, backend=backend, cache_dtype="f32") as engine:
        wanted = [engine.generate("the thin", 12, **way) for way in ways]
        batch = engine.generate(prompts, 8)
    options = {"backend": backend, "cache_dtype": "f32", "fallback_backends": ["cpp"], "compute": "float32"}
    for way, text in zip(ways, wanted, strict=True):
        with LayerWiseInferenceEngine(folder, **options) as engine:
            Failing(place_of(engine), "download", 5, error_of(backend, kind))
            with pytest.warns(BackendFallback):
                assert engine.generate("the thin", 12, **way) == text
            assert engine.generate("the thin", 12, **way) == text
    with LayerWiseInferenceEngine(folder, **options) as engine:
        Failing(place_of(engine), "download", 3, error_of(backend, kind))
        with pytest.warns(BackendFallback):
            assert engine.generate(prompts, 8) == batch
    with LayerWiseInferenceEngine(folder, **options, draft_model=folder) as engine:
        Failing(place_of(engine), "download", 3, error_of(backend, kind))
        with pytest.warns(BackendFallback):
            assert engine.generate("the thin", 12) == wanted[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ("allocate", "upload"))
def test_faults_while_weights_are_uploaded(method, kind, backend, monkeypatch):
    place = type(registry.open_backend(backend).module.device_ops().place)

    def failing(self, *given):
        raise error_of(backend, kind)

    monkeypatch.setattr(place, method, failing)
    with pytest.raises(DeviceFault, match=SAYS[kind]):
        open_engine("llama3", backend)
    options = {"fallback_backends": ["cpp"], "cache_dtype": "f32"}
    with pytest.warns(BackendFallback, match="cpp goes on: "):
        engine = LayerWiseInferenceEngine(DATA / "llama3", backend=backend, **options)
    with engine:
        assert engine.backend.name() == "cpp"
        agree(engine.forward(TEXTS[1]), reference("llama3")[1][-1])


def forget_kernels(backend, engine, monkeypatch) -> str:
    """Lets a place compile its kernels again; the module that gives it their text."""
    place = place_of(engine)
    if backend in COMPILED:
        monkeypatch.setattr(place, "_programs", {})
        monkeypatch.setattr(
            place.__class__.__module__ + ".machine_code", machine_code.machine_code.__wrapped__
        )
        return "airllm.backends.gpu.machine_code"
    if backend == "opencl":
        monkeypatch.setattr(place.engine.program, "_built", {})
        monkeypatch.setattr(place.engine.program, "_own", threading.local())
    else:
        monkeypatch.setattr(place.engine, "_pipelines", {})
    return f"tensor_ops_{backend}.engine"


def test_a_driver_that_does_not_compile(backend, monkeypatch):
    """Its compiler is real, and gets a text that it must refuse."""
    with open_engine("llama3", backend, fallback_backends=["cpp"]) as engine:
        monkeypatch.setattr(f"{forget_kernels(backend, engine, monkeypatch)}.text", lambda *given: NO_KERNEL)
        with pytest.warns(BackendFallback, match=SAYS[COMPILE]):
            agree(engine.forward(TEXTS[1]), reference("llama3")[1][-1])


def test_a_device_that_is_lost_can_be_opened_again(monkeypatch):
    """WebGPU can end a device, and then says so itself."""
    if why_not := registry.open_backend("webgpu").why_not:
        pytest.skip(why_not)
    with open_engine("llama3", "webgpu", fallback_backends=["cpp"]) as engine:
        engine.forward(TEXTS[1][:9], cache := engine.new_cache())
        place_of(engine).engine.handle.destroy()
        with pytest.warns(BackendFallback, match=SAYS[LOST]):
            agree(engine.forward(TEXTS[1][9:], cache), reference("llama3")[1][-1])
    with warnings.catch_warnings(), open_engine("llama3", "webgpu") as engine:
        warnings.simplefilter("error")
        agree(engine.forward(TEXTS[1]), reference("llama3")[1][-1])


def test_memory_that_another_program_takes_is_a_fault_of_the_driver(backend):
    """More than there is, asked of the driver itself."""
    with open_engine("llama3", backend) as engine:
        device = engine.model.on_device.device
        device.arena.limit = None
        if backend == "webgpu":
            with pytest.raises(NotImplementedError, match="expected at most"):  # a limit that it knows
                device.memory(1 << 50)
            return
        with pytest.raises(Exception, match="INVALID_BUFFER_SIZE|cudaErrorMemoryAllocation") as found:
            device.memory(1 << 50)
        assert device.fault(found.value).kind == MEMORY


def test_memory_that_another_program_has_taken_before(backend, monkeypatch, capsys):
    """A named backend says so; with fallbacks, the model opens on another one. The command prints a line."""
    place = type(registry.open_backend(backend).module.device_ops().place)
    monkeypatch.setattr(place, "free_memory", lambda self: 20_000)
    with pytest.raises(DeviceFault, match=SAYS[MEMORY]) as found:
        open_engine("llama3", backend)
    assert "18750 bytes of the device are free, expected at least " in str(found.value)
    with pytest.warns(BackendFallback, match="cpp goes on: "):
        engine = LayerWiseInferenceEngine(DATA / "llama3", backend=backend, fallback_backends=["cpp"])
    with engine:
        assert engine.backend.name() == "cpp"
    assert commands.main(["profile", str(DATA / "llama3"), "--backend", backend]) == 1
    assert re.match("airllm: .* has no memory left: 18750 bytes", capsys.readouterr().err)


def test_names_of_fallbacks_are_checked_at_once(backend):
    with pytest.raises(ValueError, match="pytorch"):
        LayerWiseInferenceEngine(DATA / "llama3", backend=backend, fallback_backends=["pytorch"])


def test_errors_of_a_user_are_no_faults(backend):
    with open_engine("llama3", backend, context=8, fallback_backends=["cpp"]) as engine:
        with pytest.raises(ValueError, match="expected at most 8"):
            engine.forward(TEXTS[1])
        assert engine.backend.name() == backend and engine.model.on_device
