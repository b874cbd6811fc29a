"""What a token costs on a device that keeps models: predicted by bandwidth and launches."""

import json
import re
import time

import pytest

from airllm import tensor_ops
from airllm.backends import registry, tuning_file
from airllm.backends.config import ConfigError
from airllm.backends.device.cost import measure_cost
from airllm.backends.device_cost import DeviceCost
from airllm.cli import commands
from airllm.engine.devices import device_speed
from airllm.engine.devices.backend_choice import Opening, choose_backend
from airllm.engine.speed import Speed
from airllm.layer_engine import LayerWiseInferenceEngine
from airllm.memory.device_plan import DeviceOptions
from tests.support.engines import device_models
from tests.support.models.tiny_models import DATA

MODEL = DATA / "llama3"
placed = device_models.placed


@pytest.fixture(params=("opencl", "webgpu"))
def backend(request):
    """A backend that says of its device whether it is a processor."""
    return device_models.running(request.param)


@pytest.fixture
def in_order(backend, monkeypatch, tmp_path):
    """The order begins with a device of software; `as_gpu` makes it one of a GPU."""
    monkeypatch.setenv("AIRLLM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("AIRLLM_BACKEND", f"{backend},cpp")

    def as_gpu() -> None:
        monkeypatch.setattr(registry.open_backend(backend).module, "only_when_asked", lambda: "")
        tensor_ops.reload_backend()

    tensor_ops.reload_backend()
    yield as_gpu
    monkeypatch.undo()
    tensor_ops.reload_backend()


def cost(rate: float, launch: float = 1e-6, upload: float = 1e9) -> DeviceCost:
    rates = dict.fromkeys(("float32", "float16", "bfloat16", "q4_0"), rate)
    return DeviceCost("a device", launch, 1e-6, upload, rates)


def counts(backend: str):
    return registry.open_backend(backend).module.counters.read()


def test_a_device_of_software_is_never_taken_by_itself(backend, in_order, monkeypatch):
    monkeypatch.setattr(device_speed, "cost_of", lambda *given: cost(1e15, 1e-12))
    assert choose_backend(Opening(MODEL)).name == "cpp"
    with LayerWiseInferenceEngine(MODEL) as engine:
        assert engine.backend.name() == "cpp"


@pytest.mark.parametrize(("found", "taken"), ((cost(1e15, 1e-12), True), (cost(1e3), False)))
def test_the_faster_one_is_taken_and_no_weights_move_before(found, taken, backend, in_order, monkeypatch):
    in_order()
    monkeypatch.setattr(device_speed, "cost_of", lambda *given: found)
    before = counts(backend)
    chosen = choose_backend(Opening(MODEL))
    assert chosen.name == (backend if taken else "cpp") and chosen.why.startswith("the fastest, measured now")
    assert (counts(backend) - before).uploaded == 0
    (launches, read) = (8 * 3 + 3, _matrix_bytes())
    seconds = 1e-6 + launches * found.launch + read / found.read["float32"]
    assert chosen.speeds[backend].tokens_per_second == pytest.approx(1 / seconds)
    assert choose_backend(Opening(MODEL)).speeds == chosen.speeds  # as it was kept


def _matrix_bytes() -> int:
    """Bytes of the matrices that a token reads: all but the embedding."""
    with LayerWiseInferenceEngine(MODEL, backend="python") as engine:
        model = engine.model
        every = [each for layer in model.layers for each in layer.weights.values() if each.ndim > 1]
        return sum(each.nbytes for each in [*every, model.output])


def test_info_shows_the_table_and_the_reason(backend, in_order, monkeypatch, capsys):
    in_order()
    monkeypatch.setattr(device_speed, "cost_of", lambda *given: cost(1e15, 1e-12))
    assert commands.main(["info", str(MODEL)]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("Backend:"))
    assert lines[at].startswith(f"Backend:     {backend}: the fastest, measured now")
    assert lines[at + 1].split()[0] == "cpp" and lines[at + 1].endswith(" tokens/s")
    assert lines[at + 2].split()[0] == backend
    assert "tokens/s predicted: " in lines[at + 2] and "read there, 27 launches of 1e-06 us" in lines[at + 2]


def test_info_says_how_many_layers_fit_into_what_is_free(backend, in_order, monkeypatch, capsys):
    monkeypatch.setenv("AIRLLM_BACKEND", backend)
    tensor_ops.reload_backend()
    place = type(registry.open_backend(backend).module.device_ops().place)

    def arrays(free: int) -> str:
        monkeypatch.setattr(place, "free_memory", lambda self: free)
        assert commands.main(["info", str(MODEL)]) == 0
        lines = capsys.readouterr().out.splitlines()
        return next(line for line in lines if line.startswith("Arrays:"))

    short = arrays(10_000)
    assert "there is too little memory on the device: 9375 bytes of the device are free, expected" in short
    least = int(re.search(r"at least (\d+)", short)[1])
    assert re.match(r"Arrays:      \d of 3 layers stay on the device, ", arrays(least * 16 // 15 + 99))


def test_what_is_timed_is_computed(placed):
    """Launches whose results nobody used were put off and never started, and so were products."""
    there = registry.open_backend(placed).module.device_ops()
    before = counts(placed)
    measure_cost(there, "x", [])
    spent = counts(placed) - before
    assert spent.launches >= 4 * (33 + 1)  # three times to be recorded, and at least once to be timed
    assert spent.replayed >= 33 + 1


def test_a_device_is_measured_within_half_a_second(backend):
    """Its kernels are compiled before, as they must be for the model. Of three times the shortest counts, for
    other processes may take the processor meanwhile."""
    there = registry.open_backend(backend).module.device_ops()
    measure_cost(there, "x", ["q4_0", "float16"])
    before, seconds = counts(backend), []
    for _ in range(3):
        start = time.perf_counter()
        found = measure_cost(there, "x", ["q4_0", "float16", "no_format"])
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.5, seconds
    assert 0 < found.launch < 0.01 and 0 < found.wait < 0.1 and found.upload > 1e6
    assert list(found.read) == ["q4_0", "float16"] and min(found.read.values()) > 1e5
    assert (counts(backend) - before).resident == 0


def test_layers_that_do_not_fit_cost_what_their_form_costs(backend, monkeypatch):
    monkeypatch.setattr(device_speed, "cost_of", lambda *given: cost(1e9, upload=1e7))

    def speed(**options) -> Speed:
        return Opening(MODEL, device=DeviceOptions(**options)).predict(backend, Speed(100.0))

    assert "on the processor" in (split := speed(layers=1)).how
    assert 1 / split.tokens_per_second > 2 / 3 / 100
    assert "uploaded at 10.0 MB/s" in (stream := speed(layers=0, offload="stream")).how
    assert speed().tokens_per_second > max(stream.tokens_per_second, split.tokens_per_second)


def test_what_has_to_be_measured_is_not_predicted(backend):
    host = Speed(100.0)
    assert Opening(DATA / "gemma4").predict(backend, host) is not None
    assert Opening(MODEL, exact=True).predict(backend, host) is None
    assert Opening(MODEL).predict("python", host) is None


def test_costs_of_a_tuning_file_are_used_while_they_hold(backend, monkeypatch, tmp_path):
    label, path = registry.open_backend(backend).device, tmp_path / "tuning.json"
    kept = DeviceCost(label, 1e-6, 2e-6, 3e9, {"float32": 4e9})
    tuning_file.write(path, tuning_file.this_machine({}), "now", {}, {backend: kept})
    monkeypatch.setenv("AIRLLM_TUNING", str(path))
    assert tuning_file.load().devices == {backend: kept}
    assert device_speed.cost_of(backend, None, ["float32"]) == kept
    monkeypatch.setattr(device_speed, "measure_cost", lambda there, device, formats: (device, formats))
    assert device_speed.cost_of(backend, None, ["q8_0"]) == (label, ["q8_0"])  # a format that it lacks
    other = DeviceCost("another device", 1e-6, 2e-6, 3e9, {"float32": 4e9})
    tuning_file.write(path, tuning_file.this_machine({}), "now", {}, {backend: other})
    assert device_speed.cost_of(backend, None, ["float32"]) == (label, ["float32"])
    path.write_text(path.read_text().replace("1e-06", "0"))
    with pytest.raises(ConfigError, match=r"launch has 0 \(a number\), expected a number above 0"):
        tuning_file.load()
    assert device_speed.cost_of(backend, None, ["float32"]) == (label, ["float32"])


def test_tuning_measures_the_devices_that_may_be_taken(backend, in_order, monkeypatch):
    asked = []
    monkeypatch.setattr(device_speed, "measure_cost", lambda ops, device, formats: asked.append(formats))
    assert device_speed.measure_devices(["python", backend]) == {} and not asked
    in_order()
    assert list(device_speed.measure_devices(["python", backend])) == [backend]
    there = registry.open_backend(backend).module.device_ops()
    assert {"q4_0", "q4_k"} < set(asked[0]) <= {*there.place.formats(), "float16"}


def test_a_file_without_devices_is_read_as_before(tmp_path, monkeypatch):
    path = tmp_path / "tuning.json"
    tuning_file.write(path, tuning_file.this_machine({}), "now", {})
    without = {key: value for key, value in json.loads(path.read_text()).items() if key != "devices"}
    path.write_text(json.dumps(without))
    assert tuning_file.read(path).devices == {}


def test_speeds_that_were_kept_before_are_still_read():
    assert Speed(tokens_per_second=2.0, at_most=False, why_not="").how == ""
