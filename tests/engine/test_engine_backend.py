"""Which backend an engine runs a model on: stand-ins for a GPU and the processor, by a clock of a test."""

import contextlib
import json

import numpy as np
import pytest

from airllm import PersistentKernel, backends, tensor_ops
from airllm.backends import registry
from airllm.bench import tune
from airllm.cli import commands
from airllm.engine import speed
from airllm.engine.devices import backend_choice
from airllm.engine.devices.backend_choice import Opening
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.ops.op import OPS
from tests.support.models import speaking_model

PRODUCTS = 7 * speaking_model.LAYERS + 1  # of a token


class Machine:
    """A machine whose backends take so many seconds for a product; `now` is its clock."""

    def __init__(self, make):
        self.now, self.products, self.make = 0.0, [], make

    def has(self, name, seconds, **attributes):
        def linear(x, weight, bias=None, *, out=None):
            self.now += seconds
            self.products.append(name)
            return OPS["linear"].define(x, weight, bias, out=out)

        return self.make(name, linear=linear, **attributes)


@pytest.fixture
def machine(fake, monkeypatch, tmp_path):
    """A processor that takes 10 ms for a product; a test adds the device."""
    made = Machine(fake)
    made.has("cpp", 0.01)
    monkeypatch.setattr(speed, "clock", lambda: made.now)
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda,cpp")
    yield made
    monkeypatch.undo()
    tensor_ops.reload_backend()


def open_engine(folder, **options):
    tensor_ops.reload_backend()
    with LayerWiseInferenceEngine(folder, **options) as engine:
        assert len(engine.generate("the thin", 2)) > 0
        return engine.backend_choice


@pytest.mark.parametrize(("seconds", "taken"), ((1.0, "cpp"), (0.001, "cuda")), ids=("slow", "fast"))
def test_a_device_runs_the_models_that_it_makes_faster(machine, folder, seconds, taken):
    machine.has("cuda", seconds)
    found = open_engine(folder)
    assert found.name == taken and machine.products[-1] == taken
    assert found.speeds["cpp"].tokens_per_second == pytest.approx(1 / (0.01 * PRODUCTS))
    per_second = 1 / (seconds * PRODUCTS)
    if seconds < 0.01:
        assert found.speeds["cuda"].tokens_per_second == pytest.approx(per_second)
    else:  # known by its layers alone
        assert found.speeds["cuda"].at_most
        assert found.speeds["cuda"].tokens_per_second == pytest.approx(per_second * PRODUCTS / (PRODUCTS - 1))
    assert tensor_ops.get_backend() == "cuda"  # ops that are called by themselves stay where they were


@pytest.mark.parametrize(
    ("seconds", "parts", "taken"),
    ((1.0, {}, "cpp"), (0.001, {}, "cuda"), (1.0, {"DecoderGraph": object}, "cuda")),
    ids=("slow", "fast", "keeps the weights"),
)
def test_a_persistent_kernel_is_not_put_on_a_slower_device_either(machine, folder, seconds, parts, taken):
    machine.has("cuda", seconds, **parts)
    tensor_ops.reload_backend()
    assert PersistentKernel(model=folder).backend == taken
    assert PersistentKernel(model=folder, backend="cuda").backend == "cuda"


def test_of_several_devices_the_fastest_is_taken(machine, folder, monkeypatch):
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda,opencl,cpp")
    machine.has("cuda", 0.005)
    machine.has("opencl", 0.001)
    assert open_engine(folder).name == "opencl"


@pytest.mark.parametrize("way", ("option", "environment", "forced", "preferred", "block", "process"))
def test_what_was_named_is_kept_and_nothing_is_measured(machine, folder, monkeypatch, tmp_path, way):
    machine.has("cuda", 1.0)
    monkeypatch.setattr(backend_choice, "speeds_of", None)
    file = tmp_path / "backend.json"
    file.write_text(json.dumps({"force_backend" if way == "forced" else "preferred_backend": "cuda"}))
    if way in ("forced", "preferred"):
        monkeypatch.delenv("AIRLLM_BACKEND")
        monkeypatch.setenv("AIRLLM_CONFIG", str(file))
    elif way != "environment":
        monkeypatch.setenv("AIRLLM_BACKEND", "cpp,python")
    else:
        monkeypatch.setenv("AIRLLM_BACKEND", "cuda")
    tensor_ops.reload_backend()
    if way == "process":
        tensor_ops.set_backend("cuda")
    block = tensor_ops.use_backend("cuda") if way == "block" else contextlib.nullcontext()
    option = {"backend": "cuda"} if way == "option" else {}
    with block, LayerWiseInferenceEngine(folder, **option) as engine:
        assert engine.backend.name() == "cuda" and engine.backend_choice.speeds == {}


def test_nothing_is_measured_where_the_order_gives_the_processor(machine, folder, monkeypatch):
    machine.has("cuda", 0.0001, only_when_asked=lambda: "its only device is a CPU")
    monkeypatch.setattr(backend_choice, "speeds_of", None)
    assert open_engine(folder).name == "cpp"
    machine.has("cuda", 0.0001)
    monkeypatch.setenv("AIRLLM_BACKEND", "cpp,cuda")
    assert open_engine(folder).name == "cpp"


def test_without_the_processors_kernels_numpy_stands_beside_the_device(machine, folder, monkeypatch):
    monkeypatch.setitem(registry._opened, "cpp", registry.Backend("cpp", why_not="not built"))
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda,python")
    machine.has("cuda", 0.001)
    monkeypatch.setattr(speed, "measure_speed", lambda model, *rest: speed.Speed(len(model.ops.name())))
    found = open_engine(folder)
    assert found.name == "python" and list(found.speeds) == ["python", "cuda"]


def test_what_was_measured_is_kept_for_as_long_as_it_holds(machine, folder, tmp_path, monkeypatch):
    device = machine.has("cuda", 1.0)
    first = open_engine(folder)
    assert "measured now, kept in " in first.why
    spent = machine.products.count("cuda")
    again = open_engine(folder)
    assert machine.products.count("cuda") == spent and again.speeds == first.speeds
    assert again.why.startswith("the fastest, measured 2") and str(backend_choice.cache_file()) in again.why
    for changed in ("options", "device", "processor", "model", "version"):
        if changed == "device":
            registry._opened["cuda"] = registry.Backend(
                "cuda", device, "another device", kernels=registry._opened["cuda"].kernels
            )
        elif changed == "processor":
            machine.has("cpp", 0.01, device=lambda: "CPU (sse2, 64 threads)")
        elif changed == "model":
            folder = speaking_model.write(tmp_path / "other", rope_theta=1e5)
        elif changed == "version":
            monkeypatch.setattr(backend_choice, "_version", lambda name: "9.9")
        assert (
            "measured now" in open_engine(folder, cache_dtype="f16" if changed == "model" else "f32").why
        ), changed
        assert "measured 2" in open_engine(folder, cache_dtype="f16" if changed == "model" else "f32").why, (
            changed
        )


@pytest.mark.parametrize(
    "text",
    (
        "",
        "{",
        "[]",
        '{"KEY": 3}',
        '{"KEY": {"measured": "x", "speeds": {"cpp": {"tokens": 1}}}}',
        '{"KEY": {"measured": "x", "speeds": {}}}',
    ),
)
def test_a_file_that_says_nothing_is_written_anew(machine, folder, text):
    machine.has("cuda", 1.0)
    open_engine(folder)
    file = backend_choice.cache_file()
    (key,) = json.loads(file.read_text())
    file.write_text(text.replace("KEY", key))
    assert "measured now" in open_engine(folder).why
    assert list(json.loads(file.read_text())[key]["speeds"]) == ["cpp", "cuda"]


def test_where_nothing_can_be_kept_it_is_measured_each_time(machine, folder, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "file"))
    machine.has("cuda", 1.0)
    for _ in range(2):
        found = open_engine(folder)
        assert found.name == "cpp" and "measured now, and at the next time again: " in found.why


def test_where_nothing_can_be_kept_nothing_is_forgotten(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "none"):
        monkeypatch.setenv("AIRLLM_CACHE_DIR", str(folder))
        backend_choice.forget()


def test_a_device_that_cannot_run_the_model_is_not_taken(machine, folder, capsys):
    def failing(*args, **options):
        raise RuntimeError("CL_OUT_OF_RESOURCES")

    machine.make("cuda", linear=failing)
    found = open_engine(folder)
    assert (
        found.name == "cpp" and found.speeds["cuda"].why_not == "cannot run this model: CL_OUT_OF_RESOURCES"
    )


def test_devices_are_tried_for_seconds_only(machine, folder, monkeypatch):
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda,opencl,cpp")
    machine.has("cuda", 2.0)
    machine.has("opencl", 0.0001)
    found = open_engine(folder)
    assert found.name == "cpp" and found.speeds["opencl"].why_not.startswith(
        "not tried, the devices before it took "
    )


def test_a_model_that_is_none_is_the_error_that_it_is_without_a_device(machine, tmp_path):
    machine.has("cuda", 1.0)
    tensor_ops.reload_backend()
    with pytest.raises(FileNotFoundError):
        LayerWiseInferenceEngine(tmp_path / "none.gguf")


def test_info_says_which_backend_runs_a_model_and_why(machine, folder, capsys, monkeypatch):
    machine.has("cuda", 1.0)
    tensor_ops.reload_backend()
    for when in ("measured now", "measured 2"):
        assert commands.main(["info", str(folder)]) == 0
        *_, line, host, device, decode = capsys.readouterr().out.splitlines()
        assert line.startswith(f"Backend:     cpp: the fastest, {when}")
        assert host.split() == ["cpp", "6.7", "tokens/s"] and device.split() == [
            "cuda",
            "under",
            "0.071",
            "tokens/s",
        ]
        assert decode.startswith("Decode:      op by op: ") and "no call for whole layers" in decode
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda")
    tensor_ops.reload_backend()
    assert commands.main(["info", str(folder)]) == 0
    *_, line, host, device, note, decode = capsys.readouterr().out.splitlines()
    assert line == "Backend:     cuda: AIRLLM_BACKEND forces it"
    assert note == "  cpp makes 93.3 times as many tokens: backend auto takes the fastest"


def test_tuning_forgets_what_was_kept(machine, folder, capsys, tmp_path, monkeypatch):
    machine.has("cuda", 1.0)
    open_engine(folder)
    monkeypatch.setenv("AIRLLM_TUNING", str(tmp_path / "tuning.json"))
    monkeypatch.setattr(tune, "draw", lambda *_: "")
    monkeypatch.setattr(tune, "QUICK", tune.Plan(("float32",), ((1, 8),), ((1, 8),), 1e-4))
    monkeypatch.setattr(backends, "get_available_backends", lambda: ["python"])
    assert backend_choice.cache_file().exists()
    assert commands.main(["tune", "--quick", "--ops", "silu"]) == 0
    assert not backend_choice.cache_file().exists()


@pytest.mark.parametrize("options", ({}, {"compute": "float32"}, {"max_memory": "8MB"}), ids=str)
def test_a_layer_at_a_time_is_the_same_pass(folder, options):
    with LayerWiseInferenceEngine(folder, **options) as engine:
        model, cache = engine.model, engine.new_cache()
        *_, last = [x.copy() for x in model.layer_by_layer(65, cache)]
        assert cache.length == 0
        (whole,) = model.forward([[65]], [cache])
        assert np.array_equal(last, whole) and cache.length == 1


def test_a_slow_device_is_known_by_a_part_of_the_layers(machine, folder):
    machine.has("cuda", 1.0)
    tensor_ops.reload_backend()
    found = Opening(folder).speed("cuda", best=1000.0)
    assert found.at_most and len(machine.products) == 2 * 7  # a layer, before it is timed and then
