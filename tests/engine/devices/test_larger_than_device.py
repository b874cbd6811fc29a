"""Models that are larger than a device: which layers stay there, what crosses the bus, and what it takes."""

import re
import time
from pathlib import Path

import pytest

from airllm.backends import registry
from airllm.backends.device.faults import LOST, DeviceFault
from airllm.engine.devices import offload
from airllm.engine.devices.fallback import BackendFallback
from airllm.engine.request import request
from airllm.engine.scheduling.requests import Limits, SequenceRequest
from airllm.files import pages
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.budget import MemoryBudgetError
from airllm.memory.device_plan import SPLIT, STREAM, DeviceSizes, spread
from airllm.memory.kv_cache import Cache
from airllm.memory.layers import Layer
from tests.support.engines import device_models
from tests.support.engines.device_models import agree, agree_with_all, counts
from tests.support.kernels.slow_bus import SlowOpenCL
from tests.support.models import large_model, tiny_gguf
from tests.support.models.tiny_models import DATA, reference, texts
from tests.support.models.uneven_gguf import write_uneven

KIB = 1024
TEXTS = texts()
FORMS = ("split", "stream")
backend = device_models.placed


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 65 MB in 18 layers."""
    return large_model.write_gguf(tmp_path_factory.mktemp("large") / "large.gguf", "q4_0")


@pytest.fixture(scope="module")
def large_with_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same bytes, with four experts in each layer."""
    path = tmp_path_factory.mktemp("large") / "experts.gguf"
    return large_model.write_gguf(path, "q4_0", experts=4)


@pytest.fixture(scope="module")
def large_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """About these bytes in six layers, nearly all of them in four experts of each."""
    with pytest.MonkeyPatch.context() as changes:
        changes.setattr(large_model, "LAYERS", 6)
        changes.setattr(large_model, "WIDE", wide := 8192)
        shapes = {"gate": (wide, 768), "up": (wide, 768), "down": (768, wide)}
        changes.setattr(large_model, "_MLP", shapes)
        path = tmp_path_factory.mktemp("large") / "experts.gguf"
        return large_model.write_gguf(path, "q4_0", experts=4)


def open_engine(path: Path, backend: str, **options) -> LayerWiseInferenceEngine:
    return LayerWiseInferenceEngine(path, backend=backend, **{"cache_dtype": "f32", **options})


def least(path: Path, backend: str, **options) -> int:
    """The bytes that the message about a budget of too few says are enough."""
    with pytest.raises(MemoryBudgetError, match="device_memory is 1 bytes, expected at least ") as found:
        open_engine(path, backend, device_memory=1, **options)
    return int(re.search(r"at least (\d+)", str(found.value))[1])


def open_small(path: Path, backend: str, form: str, **options) -> LayerWiseInferenceEngine:
    """An engine with the smallest device that this form can do with."""
    room = least(path, backend, offload=form, **options)
    return open_engine(path, backend, offload=form, device_memory=room, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ("llama3", "gemma3", "qwen2", "phi3"))
def test_logits_are_those_of_transformers(name, form, backend):
    with open_engine(DATA / name, backend, gpu_layers=1, offload=form) as engine:
        plan = engine.model.on_device.plan
        assert (plan.form, plan.stays) == (form, 1)
        agree_with_all(engine, reference(name))


@pytest.mark.parametrize("name", ("gpt_oss", "llama4", "glm4_moe"))
def test_layers_of_experts_are_streamed_too(name, backend):
    """With biases, with dense layers between, with a shared expert. A layer of experts that does not stay
    passes with all of them, once a token.
    """
    with open_engine(DATA / name, backend, gpu_layers=0, offload="stream") as engine:
        agree_with_all(engine, reference(name))
        layers, cache = engine.model.layers, engine.new_cache()
        engine.forward(TEXTS[0][:-4], cache)
        passing = len(layers) if len(layers) > 2 else 0  # two places hold two layers
        nbytes = sum(map(_matrix_bytes, layers[:passing]))
        for token in TEXTS[0][-4:]:
            start = counts(backend)
            engine.forward([token], cache)
            spent = counts(backend) - start
            assert nbytes <= spent.uploaded <= nbytes + 4 * KIB
            assert spent.waits == 1 or backend == "webgpu"  # its host copies by itself
            assert spent.resident == 0


def _matrix_bytes(layer: Layer) -> int:
    """Bytes of a layer's matrices, and of all that its experts have."""
    own = sum(each.nbytes for each in layer.weights.values() if each.ndim > 1)
    if not layer.experts:
        return own
    experts = map(layer.experts.look_up, range(layer.config.experts))
    return own + sum(each.nbytes for weights in experts for each in weights.values())


def test_experts_in_blocks_are_streamed(backend, tmp_path):
    path = tiny_gguf.write_gguf("mixtral", tmp_path / "mixtral.gguf", "blocks")
    with open_engine(path, backend, gpu_layers=0, offload="stream") as engine:
        assert engine.model.on_device.plan.streamed == (0, 1)
        agree(engine.forward(TEXTS[1], all_positions=True), reference("mixtral", "blocks")[1])


def test_layers_that_share_keys_and_values_are_not_parted(backend):
    """Layers 2 and 3 of this model read those of 0 and 1."""
    with pytest.raises(ValueError, match="gpu_layers has value 2, expected one of 0, 4"):
        open_engine(DATA / "gemma4", backend, gpu_layers=2)
    with open_engine(DATA / "gemma4", backend, gpu_layers=1, offload="stream") as engine:
        assert engine.model.on_device.plan.stays == 1
        for text, wanted in zip(TEXTS, reference("gemma4"), strict=True):
            agree(engine.forward(text, all_positions=True), wanted)


def test_where_a_model_can_be_split():
    """A layer that others read is on the same side as they are."""

    def splits(*sources):
        each = [1] * len(sources)
        return DeviceSizes(each, each, each, 0, 0, len, "", sources).splits

    assert splits(0, 1, 2, 3) == [1, 2, 3]
    assert splits(0, 1, 2, 1, 2) == [1]
    assert splits(0, 1, 0, 1) == []
    assert splits(0, 1, 2, 3, 3) == [1, 2, 3]


@pytest.mark.parametrize("form", FORMS)
def test_layers_of_other_sizes_and_formats_pass_too(form, backend, tmp_path):
    path = write_uneven(tmp_path / "uneven.gguf")
    with open_engine(path, "python") as host, open_small(path, backend, form) as engine:
        agree(engine.forward(TEXTS[1]), host.forward(TEXTS[1]))
    path = tiny_gguf.write_gguf("llama3", tmp_path / "llama3.gguf", "blocks")
    for compute in ("float32", "stored")[: 1 + (form == "stream")]:  # the processor rounds activations
        with open_small(path, backend, form, compute=compute) as engine:
            agree(engine.forward(TEXTS[1], all_positions=True), reference("llama3", "blocks")[1])


@pytest.mark.parametrize("form", FORMS)
def test_no_more_memory_is_taken_than_allowed(form, backend):
    """Up to the last token of the context, with the longest passes that there are."""
    before, context = counts(backend).resident, 300
    with open_small(DATA / "qwen2", backend, form, context=context) as engine:
        plan, arena = engine.model.on_device.plan, engine.model.on_device.device.arena
        cache = engine.new_cache()
        engine.forward((TEXTS[0] * 8)[: context - 20], cache)
        engine.forward(TEXTS[0][:20], cache)
        assert cache.length == context
        assert 0.3 * plan.limit < arena.peak <= plan.nbytes <= plan.limit
    del cache
    assert counts(backend).resident == before


@pytest.mark.parametrize("form", FORMS)
def test_what_crosses_the_bus_per_token(form, backend):
    """Of split layers, a hidden state; of streamed ones, their matrices once, and nothing waits for them."""
    with open_engine(DATA / "gemma3", backend, gpu_layers=2, offload=form) as engine:
        on_device, layers = engine.model.on_device, engine.model.layers
        cache = engine.new_cache()
        engine.forward(TEXTS[0][:-4], cache)
        streamed = [layers[i].weights.values() for i in on_device.plan.streamed]
        matrices = sum(each.nbytes for weights in streamed for each in weights if each.ndim > 1)
        assert len(streamed) == (5 if form == "stream" else 0)
        for token in TEXTS[0][-4:]:
            start = counts(backend)
            logits = engine.forward([token], cache)
            spent = counts(backend) - start
            assert matrices < spent.uploaded <= matrices + 64 * KIB
            assert spent.downloaded == logits.nbytes
            assert spent.waits == 1 or (backend, form) == ("webgpu", "stream")  # its host copies by itself
            assert spent.resident == 0
        assert sorted(cache.on_device()) == ([5, 6] if form == "split" else sorted(range(7)))


def test_layers_stay_as_many_as_fit_and_those_between_are_streamed(backend):
    path = DATA / "gemma3"
    rooms = {form: least(path, backend, offload=form) for form in FORMS}
    stays = {form: [] for form in FORMS}
    for form in FORMS:
        for more in range(0, 120 * KIB, 20 * KIB):
            with open_engine(path, backend, offload=form, device_memory=rooms[form] + more) as engine:
                plan = engine.model.on_device.plan
                stays[form].append(plan.stays)
                assert plan.nbytes <= rooms[form] + more
    for found in stays.values():
        assert found == sorted(found) and found[0] < found[-1]
    assert spread(7, 3) == (0, 2, 4) and spread(7, 7) == tuple(range(7))


def test_a_pass_that_was_left_early_does_not_disturb_the_next(backend):
    with open_engine(DATA / "gemma3", backend, gpu_layers=0, offload="stream") as engine:
        cache = engine.new_cache()
        engine.forward(TEXTS[1][:-3], cache)
        for token in TEXTS[1][-3:]:
            for some in (1, 2, 5):
                states = engine.model.layer_by_layer(token, cache)
                for _ in range(some):
                    next(states)
                states.close()
            last = engine.forward([token], cache)
        agree(last, reference("gemma3")[1][-1])


@pytest.mark.parametrize(("rate", "here", "form"), ((1e12, 1.0, STREAM), (1.0, 1e-6, SPLIT)))
def test_what_is_faster_is_taken_as_measured(rate, here, form, backend, monkeypatch):
    path = DATA / "llama3"
    room = max(least(path, backend, offload=each) for each in FORMS)
    monkeypatch.setattr(offload.Offload, "_bytes_per_second", lambda self: rate)
    monkeypatch.setattr(offload.Offload, "_seconds_here", lambda self: here)
    with open_engine(path, backend, device_memory=room) as engine:
        plan = engine.model.on_device.plan
        assert plan.form == form
        assert re.match("a token takes split .* ms, stream .* ms, as measured", plan.why)
        agree(engine.forward(TEXTS[1]), reference("llama3")[1][-1])


def test_seconds_and_rates_are_measured(backend):
    with open_engine(DATA / "llama3", backend) as engine:
        there = registry.open_backend(backend).module.device_ops()
        model = engine.model
        weights = offload.Weights(model.layers, model.embedding, model.output_norm, model.output)
        found = offload.Offload(model.ops, there, weights, 64, "f32", engine.model._device_options)
        assert 0 < found._seconds_here() < 1 and 0 < found._seconds_there() < 1
        assert found._bytes_per_second() > 1e3


@pytest.mark.parametrize("form", FORMS)
def test_sequences_of_a_batch_wait_for_memory(form, backend, folder):
    """Those that do not fit together come one after the other, and prefixes are shared."""
    prompts = ["the thin", "the thing in", "an inn", "the thin one"]
    with LayerWiseInferenceEngine(folder, backend=backend, cache_dtype="f32") as engine:
        wanted = [engine.generate(prompt, 6) for prompt in prompts]
    with open_small(folder, backend, form, context=40, compute="float32") as engine:
        assert engine.generate(prompts, 6) == wanted
        assert [engine.generate(prompt, 6) for prompt in prompts] == wanted


def test_prefixes_of_ended_sequences_make_way_on_the_device(backend, folder):
    """A scheduler keeps them as long as there is room. Here there is room for two sequences."""
    prompts = [f"{letter}{letter} the thin thing in the inn" for letter in "abcdef"]
    options = {"backend": backend, "cache_dtype": "f32", "context": 40}
    with LayerWiseInferenceEngine(folder, **options) as engine:
        wanted = [engine.generate(prompt, 4) for prompt in prompts]
        plan = engine.model.on_device.plan
    with LayerWiseInferenceEngine(folder, device_memory=plan.nbytes + plan.caches, **options) as engine:
        scheduler, texts = engine.scheduler(Limits()), []
        for prompt in prompts:
            scheduler.add(SequenceRequest(engine.tokenizer.encode(prompt), request(4)))
            text = ""
            while not scheduler.is_idle:
                for event in scheduler.step():
                    assert event.error is None
                    text += event.text
            texts.append(text)
        assert texts == wanted
        assert scheduler.load().prefix_bytes > 0


@pytest.mark.parametrize("form", FORMS)
def test_a_copy_of_a_prefix_is_where_the_layers_are(form, backend):
    with open_engine(DATA / "llama3", backend, gpu_layers=1, offload=form) as engine:
        engine.forward(TEXTS[1][:-4], cache := engine.new_cache())
        other = engine.new_cache()
        other.copy_prefix(cache, 15)
        assert other.on_device() == cache.on_device()
        agree(engine.forward(TEXTS[1][15:], other), reference("llama3")[1][-1])


def test_all_layers_may_be_on_the_processor(backend):
    with open_engine(DATA / "llama3", backend, gpu_layers=0) as engine:
        agree(engine.forward(TEXTS[1], cache := engine.new_cache()), reference("llama3")[1][-1])
        assert not cache.on_device()


@pytest.mark.parametrize(
    ("options", "message"),
    (
        ({"gpu_layers": -1}, "gpu_layers has value -1, expected a number of layers, 0 or more"),
        ({"offload": "disk"}, "offload has value 'disk', expected one of auto, split, stream"),
        ({"device_memory": "some"}, "device_memory has value 'some', expected a number and B"),
        (
            {"gpu_layers": 3, "device_memory": 60000},
            r"gpu_layers has value 3, expected at most \d, which fit",
        ),
    ),
)
def test_options_that_cannot_be_are_refused(options, message, backend):
    with pytest.raises(ValueError, match=message):
        open_engine(DATA / "llama3", backend, context=32, **options)


@pytest.mark.parametrize("option", ({"device_memory": "1GB"}, {"gpu_layers": 1}, {"offload": "stream"}))
def test_where_no_device_keeps_a_model_its_options_are_refused(option):
    (name,) = option
    with pytest.raises(ValueError, match=f"{name} has value .*, expected None: python computes in host"):
        open_engine(DATA / "llama3", "python", **option)


def test_matrices_come_from_pinned_memory_where_there_is(monkeypatch):
    """PoCL's buffers that the host maps stand in for those of a GPU's driver."""
    if why_not := registry.open_backend("opencl").why_not:
        pytest.skip(why_not)
    from tensor_ops_opencl.engine import engine as opened
    from tensor_ops_opencl.selection import choice

    monkeypatch.setattr(opened(choice.in_use()), "shares_memory", False)
    with open_engine(DATA / "llama3", "opencl", gpu_layers=1, offload="stream") as engine:
        staging = engine.model.on_device.layers[0]._staging
        assert staging.pins and all(len(pieces) == 1 for groups in staging._pieces for pieces in groups)
        agree(engine.forward(TEXTS[1]), reference("llama3")[1][-1])


@pytest.mark.parametrize("options", ({}, {"gpu_layers": 2, "offload": "stream"}), ids=("whole", "stream"))
@pytest.mark.parametrize("model", ("large", "large_experts"))
def test_within_a_budget_of_the_host_weights_pass_through(model, options, backend, request, monkeypatch):
    """The file's pages in memory are never more than the budget, while weights go to the device and after;
    those of experts neither. Streamed layers pass with all of their experts, once a token.
    """
    if not pages.SUPPORTED:
        pytest.skip("this system has no budgets")
    if backend == "webgpu" and (model != "large" or not options):
        pytest.skip("OpenCL has it, and llvmpipe takes seconds")
    path, most = request.getfixturevalue(model), 40_000_000
    with open_engine(path, backend, context=64) as engine:
        wanted = [engine.forward([5], cache := engine.new_cache()), engine.forward([6], cache)]
    seen = []
    place = type(registry.open_backend(backend).module.device_ops().place)
    for name in ("upload", "begin_upload"):
        real = getattr(place, name)
        monkeypatch.setattr(
            place, name, lambda *given, real=real: seen.append(_pages_of(path)) or real(*given)
        )
    with open_engine(path, backend, context=64, max_memory=most, **options) as engine:
        assert engine.model.on_device and engine.model.residency.limit.nbytes == most
        assert engine.model.on_device.plan.stays == options.get("gpu_layers", engine.config.layers)
        found = [engine.forward([5], cache := engine.new_cache())]
        start = counts(backend)
        found.append(engine.forward([6], cache))
        uploaded = (counts(backend) - start).uploaded
        passing = sum(_matrix_bytes(engine.model.layers[i]) for i in engine.model.on_device.plan.streamed)
        assert passing <= uploaded <= passing + 64 * KIB
        assert max(seen) <= most and _pages_of(path) <= most
    assert len(seen) > 20
    for logits, expected in zip(found, wanted, strict=True):
        agree(logits, expected)


def test_experts_by_columns_are_not_streamed_within_a_budget():
    """Each upload would need a copy of them. If all stay on the device, they pass once."""
    if not pages.SUPPORTED or registry.open_backend("opencl").why_not:
        pytest.skip("this system has no budgets, or no OpenCL")
    options = {"max_memory": "32MB", "context": 64, "compute": "float32"}
    with open_engine(DATA / "gpt_oss", "opencl", **options) as engine:
        assert engine.config.experts_by_columns
        assert engine.model.on_device and engine.model.residency.limit
        agree(engine.forward(TEXTS[1]), reference("gpt_oss")[1][-1])
    with pytest.raises(
        ValueError, match="expected None: experts by columns are streamed as copies, for which"
    ):
        open_engine(DATA / "gpt_oss", "opencl", gpu_layers=0, offload="stream", **options)


def _pages_of(path: Path) -> int:
    """Bytes of a mapped file that are in this process's memory."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    total = 0
    for line in lines:
        if line.endswith(str(path)):
            total += next(int(each.split()[1]) << 10 for each in lines if each.startswith("Rss:"))
    return total


def test_a_fault_within_a_budget_of_the_host(large):
    """The backend that goes on has the same budget. On OpenCL alone: llvmpipe takes seconds."""
    if why_not := registry.open_backend("opencl").why_not:
        pytest.skip(why_not)
    options, most = {"context": 64, "compute": "float32"}, 40_000_000
    with open_engine(large, "cpp", **options) as engine:
        wanted = engine.forward([5, 6])
    with open_engine(large, "opencl", max_memory=most, fallback_backends=["cpp"], **options) as engine:
        assert engine.model.on_device
        engine.forward([5], cache := engine.new_cache())
        place = engine.model.on_device.device.place
        place.run = lambda *given: 1 / 0
        with pytest.raises(ZeroDivisionError):  # no fault of the device
            engine.forward([6], cache)
        fault = DeviceFault(LOST, "a device", "as a test says")
        place.run = lambda *given: (_ for _ in ()).throw(fault)
        with pytest.warns(BackendFallback):
            agree(engine.forward([6], cache), wanted)
        assert not engine.model.residency.whole and engine.model.residency.limit.nbytes == most


@pytest.mark.parametrize("model", ("large", "large_with_experts"))
def test_uploads_run_while_layers_are_computed(model, request):
    """On a bus that is emulated, a pass takes the time of its bytes at the bus's rate, or its computation."""
    if why_not := registry.open_backend("opencl").why_not:
        pytest.skip(why_not)
    rate, path = 6e8, request.getfixturevalue(model)
    with open_engine(path, "opencl", gpu_layers=0, offload="stream", context=64) as engine:
        cache = engine.new_cache()
        engine.forward([5], cache)
        computed, nbytes = min(_pass(engine, cache, "opencl") for _ in range(4))
        SlowOpenCL(engine.model.on_device.device.place, rate)
        for _ in range(40):  # on a busy machine, most passes wait for a core
            taken, nbytes = _pass(engine, cache, "opencl")
            if taken <= 1.15 * max(nbytes / rate, computed):
                break
        assert 0.9 * nbytes / rate < taken  # a layer may come between two passes
        assert taken <= 1.15 * max(nbytes / rate, computed)


def test_uploads_begin_when_the_layer_before_was_started(backend):
    """Each layer waits for its upload, its launches are with the driver, then the next one is uploaded."""
    with open_engine(DATA / "gemma3", backend, gpu_layers=0, offload="stream") as engine:
        engine.forward(TEXTS[2], cache := engine.new_cache())
        place, events = engine.model.on_device.device.place, []
        for name in ("finish_upload", "mark", "begin_upload"):
            real = getattr(place, name)
            setattr(place, name, lambda *given, real=real, name=name: events.append(name[0]) or real(*given))
        begin = place.begin_upload
        waiting = []
        place.begin_upload = lambda *given: waiting.extend(getattr(place, "_waiting", ())) or begin(*given)
        engine.forward([5], cache)
        assert re.fullmatch("(fmb+){7}", "".join(events)), events
        assert not waiting  # launches that WebGPU has not submitted


def _pass(engine: LayerWiseInferenceEngine, cache: Cache, backend: str) -> tuple[float, int]:
    """Seconds of a token, and the bytes that it uploads."""
    start, before = time.perf_counter(), counts(backend)
    engine.forward([5], cache)
    return time.perf_counter() - start, (counts(backend) - before).uploaded
