"""The choice by measured size: tuning.json, the route of a call, and the words for it."""

import json
import threading

import numpy as np
import pytest

from airllm import tensor_ops
from airllm.backends import config, registry, routing, tuning_file
from airllm.ops.op import OPS

SMALL, LARGE = np.ones((1, 64), np.float32), np.ones((64, 64), np.float32)
SHAPES = ((1, 64), (64, 64))


def point(shape, name="x", **us):
    times = {backend: [t, 0.98 * t, 1.02 * t] if isinstance(t, int) else t for backend, t in us.items()}
    return {"arrays": {name: list(shape)}, "us": times}


SILU = [point(SHAPES[0], opencl=4, cuda=40, python=30), point(SHAPES[1], opencl=900, cuda=60, python=300)]


@pytest.fixture
def machine(fake, monkeypatch):
    """Two backends beside python: cuda, which the order gives, and opencl, which must be asked for."""
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda,opencl,python")
    yield {"cuda": fake("cuda"), "opencl": fake("opencl", only_when_asked=lambda: "its only device is a CPU")}
    monkeypatch.undo()
    tensor_ops.reload_backend()


@pytest.fixture
def tuned(machine, tmp_path, monkeypatch):
    """Writes what was measured on this machine, and reads it in; `changes` are to the text of the file."""

    def write(ops=None, reload=True, **changes):
        devices = {name: registry.open_backend(name).device for name in registry.available()}
        here = vars(tuning_file.this_machine(devices)) | changes
        values = {"measured": "today", "machine": here, "ops": ops or {"silu": {"float32": SILU}}}
        file = tmp_path / "tuning.json"
        file.write_text(json.dumps(values, indent=1))
        monkeypatch.setenv("AIRLLM_TUNING", str(file))
        if reload:
            tensor_ops.reload_backend()
        return machine

    return write


@pytest.fixture(params=["native", "python"])
def route(request, monkeypatch):
    """Which of the two routes is used: that of the C++ backend, or its stand-in."""
    if request.param == "native":
        if registry.open_backend("cpp").why_not:
            pytest.skip("the C++ backend is not built")
    else:
        monkeypatch.setitem(registry._opened, "cpp", registry.Backend("cpp", why_not="not built"))
    return registry.open_backend("cpp").module


def ran(machine, call):
    """Which backends' kernels a call has run."""
    before = {name: module.count for name, module in machine.items()}
    result = call()
    np.testing.assert_allclose(result, OPS["silu"].exact(np.ones_like(result)), rtol=1e-3)
    return [name for name, module in machine.items() if module.count > before[name]]


def test_a_call_goes_to_the_backend_that_wins_at_its_size(tuned, route):
    machine = tuned()
    assert tensor_ops.get_backend() == "cuda"
    assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["opencl"]
    assert ran(machine, lambda: tensor_ops.silu(x=SMALL)) == ["opencl"]
    assert ran(machine, lambda: tensor_ops.silu(SMALL, out=np.empty_like(SMALL))) == ["opencl"]
    assert ran(machine, lambda: tensor_ops.silu(LARGE)) == ["cuda"]
    assert ran(machine, lambda: tensor_ops.silu(np.ones((3, 5), np.float32))) == ["opencl"]
    assert ran(machine, lambda: tensor_ops.silu(np.ones(10**6, np.float32))) == ["cuda"]


def test_what_was_not_measured_goes_where_the_order_says(tuned, route):
    machine = tuned()
    assert ran(machine, lambda: tensor_ops.silu(SMALL.astype(np.float16))) == ["cuda"]
    assert "gelu: cuda: not measured" in tensor_ops.get_backend_info()["choices"]["gelu"][0]
    assert tensor_ops.explain("silu", SMALL.astype(np.float16)) == (
        "silu (1, 64) float16: cuda: not measured, the first that runs in the order"
    )


def test_arrays_that_must_be_prepared_are_routed_too(tuned, fake, route):
    def picky(x, *, out=None):
        if not x.flags.c_contiguous:
            raise ValueError("silu: x has strides")
        seen.append(x.shape)
        return OPS["silu"].define(x)

    tuned()
    registry.open_backend("opencl").kernels["silu"], seen = picky, []
    tensor_ops.reload_backend()
    tensor_ops.silu(np.ones((1, 128), np.float32)[:, ::2])
    assert seen == [(1, 64)]


def test_the_sizes_of_two_arrays_decide_of_products(tuned, machine, route):
    def point_of(rows, width, **us):
        made = point((rows, width), **us)
        return {**made, "arrays": {**made["arrays"], "weight": [width, width]}}

    points = [point_of(1, 64, cuda=9, opencl=1), point_of(64, 64, cuda=1, opencl=9)]
    points.append(point_of(1, 4096, cuda=1, opencl=9))
    seen = []
    for name in machine:
        registry.open_backend(name).kernels["linear"] = lambda *arrays, name=name, **rest: seen.append(name)
    tuned({"linear": {"float32": points}})
    weight = np.ones((64, 64), np.float32)
    tensor_ops.linear(SMALL, weight), tensor_ops.linear(SMALL, weight=weight)
    tensor_ops.linear(LARGE, weight)
    tensor_ops.linear(np.ones((1, 2048), np.float32), np.ones((2048, 2048), np.float32))
    tensor_ops.linear(SMALL, weight.astype(np.float16))
    tensor_ops.linear(SMALL, tensor_ops.quantize(weight, "q8_0"))
    assert seen == ["opencl", "opencl", "cuda", "cuda", "cuda", "cuda"]
    assert (
        tensor_ops.explain("linear", SMALL, weight)
        == "linear (1, 64), (64, 64): opencl, 1.00 us; cuda 9.00 us"
    )
    with pytest.raises(
        ValueError, match="linear has 1 arrays, expected x and weight, of which .*tuning.json has times"
    ):
        tensor_ops.explain("linear", SMALL)


def test_the_two_routes_tell_all_sizes_alike():
    native = registry.open_backend("cpp").module
    if native is None:
        pytest.skip("the C++ backend is not built")
    kernels = [lambda *arrays, i=i: i for i in range(routing.OCTAVES)]
    table = {"float32": (kernels, bytes(range(routing.OCTAVES)))}
    made = [make(lambda *arrays: "usual", 1, table) for make in (native.route, routing.route)]
    for size in (0, 1, 2, 3, 4, 1023, 1024, 1 << 20):
        assert [routed(np.ones(size, np.float32)) for routed in made] == [size.bit_length()] * 2
    for other in (np.ones(4), np.ones(4, bool), np.ones(4, np.float16), np.ones(4, int), [1.0], None):
        assert [routed(other) for routed in made] == ["usual"] * 2
    assert [routed() for routed in made] == ["usual"] * 2
    for wrong in ({"float64": table["float32"]}, {"float32": (kernels, b"\0")}, {"float32": ([], bytes(48))}):
        with pytest.raises(ValueError, match="route: tables has"):
            native.route(len, 1, wrong)
    with pytest.raises(ValueError, match="route: arrays has value 3, expected 1 or 2"):
        native.route(len, 3, table)


def test_where_the_first_of_the_order_wins_its_kernel_is_bound_itself(tuned):
    tuned({"silu": {"float32": [point(SHAPES[0], cuda=4, opencl=40)]}})
    assert registry.choice().kernels["silu"] is registry.open_backend("cuda").kernels["silu"]


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        ({"cuda": 100, "opencl": 95}, "cuda"),
        ({"cuda": [100, 70, 130], "opencl": [80, 60, 110]}, "cuda"),
        ({"cuda": 100, "opencl": 80}, "opencl"),
        ({"cuda": 100, "opencl": 80, "python": 50}, "python"),
        ({"opencl": 90, "python": 80}, "python"),
    ],
)
def test_another_backend_must_be_clearly_faster(tuned, times, winner):
    tuned({"silu": {"float32": [point(SHAPES[0], **times)]}})
    told = tensor_ops.explain("silu", SMALL)
    assert told.startswith(f"silu (1, 64): {winner}, ")
    assert ("not clearly faster" in told) == (winner == "cuda")


def test_every_choice_is_explained(tuned):
    tuned()
    assert tensor_ops.explain("silu", SMALL) == "silu (1, 64): opencl, 4.00 us; python 30.0 us; cuda 40.0 us"
    assert tensor_ops.explain("silu", (1, 64)) == tensor_ops.explain("silu", SMALL)
    assert tensor_ops.explain("silu", (128, 64)) == (
        "silu (128, 64): as measured at (64, 64): cuda, 60.0 us; python 300 us; opencl 900 us"
    )
    info = tensor_ops.get_backend_info()
    assert info["choices"]["silu"] == [tensor_ops.explain("silu", shape) for shape in SHAPES]
    assert info["tuning"]["used"] and info["tuning"]["changed"] == [] and json.dumps(info)
    with pytest.raises(ValueError, match="unknown op 'sillu', expected one of: rms_norm"):
        tensor_ops.explain("sillu", SMALL)
    with tensor_ops.use_backend("python"):
        assert tensor_ops.explain("silu", SMALL) == "silu (1, 64): python: asked for by name"


def test_print_backend_info_says_where_ops_run_elsewhere(tuned, capsys):
    tuned()
    tensor_ops.print_backend_info()
    printed = capsys.readouterr().out
    assert (
        "Choice by size: measured today: " in printed and "\n  silu float32: opencl at (1, 64)\n" in printed
    )


def test_without_a_file_the_order_decides_and_says_so(machine):
    tensor_ops.reload_backend()
    assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["cuda"]
    told = tensor_ops.explain("silu", SMALL)
    assert told.startswith("silu (1, 64): cuda: the first that runs in the order; `airllm tune`")


def test_whoever_names_a_backend_gets_it(tuned, monkeypatch, tmp_path):
    machine = tuned()
    assert ran(machine, lambda: tensor_ops.silu(SMALL, backend="cuda")) == ["cuda"]
    with tensor_ops.use_backend("cuda"):
        assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["cuda"]
        with tensor_ops.use_backend("auto"):
            assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["opencl"]
    tensor_ops.set_backend("cuda")
    assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["cuda"]
    tensor_ops.set_backend("auto")
    assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["opencl"]
    for key in ("preferred_backend", "force_backend"):
        file = tmp_path / f"{key}.json"
        file.write_text(json.dumps({key: "cuda"}))
        monkeypatch.setenv("AIRLLM_CONFIG", str(file))
        monkeypatch.delenv("AIRLLM_BACKEND", raising=False)
        tensor_ops.reload_backend()
        assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["cuda"]
        assert "AIRLLM_CONFIG" in tensor_ops.explain("silu", SMALL)


def test_a_backend_outside_the_order_is_not_taken(tuned, monkeypatch):
    monkeypatch.setenv("AIRLLM_BACKEND", "cuda,python")
    machine = tuned()
    assert ran(machine, lambda: tensor_ops.silu(LARGE)) == ["cuda"]
    assert "opencl is not used: it is not in backend_priority" in tensor_ops.explain("silu", SMALL)


def test_a_fresh_file_counts_after_a_reload(tuned):
    machine = tuned()
    assert ran(machine, lambda: tensor_ops.silu(LARGE)) == ["cuda"]
    tuned({"silu": {"float32": [point(SHAPES[1], cuda=60, opencl=6)]}}, reload=False)
    assert ran(machine, lambda: tensor_ops.silu(LARGE)) == ["cuda"]
    tensor_ops.reload_backend()
    assert ran(machine, lambda: tensor_ops.silu(LARGE)) == ["opencl"]


def test_another_machine_says_so_and_what_was_measured_is_not_used(tuned, capsys):
    with pytest.warns(UserWarning, match=r"(?s)no longer applies here.*cpu: .*, measured: Z80.*airllm tune"):
        machine = tuned(cpu="Z80")
    assert ran(machine, lambda: tensor_ops.silu(SMALL)) == ["cuda"]
    info = tensor_ops.get_backend_info()
    assert not info["tuning"]["used"] and "measured: Z80" in info["tuning"]["why"]
    tensor_ops.print_backend_info()
    assert "measured: Z80" in capsys.readouterr().out
    assert "measured: Z80" in tensor_ops.explain("silu", SMALL)


def test_the_first_of_the_order_on_another_device_is_another_machine(tuned):
    with pytest.warns(UserWarning, match="cuda: a fake device, measured: none"):
        tuned(
            {"silu": {"float32": [point(SHAPES[0], python=4)]}},
            backends={"python": registry.open_backend("python").device},
        )


@pytest.mark.parametrize(
    "reason", ["division by zero", "its device is a fake device, measured: an older one"]
)
def test_a_measured_backend_that_changed_gives_way_to_the_next(tuned, fake, reason):
    devices = {
        "cuda": "a fake device",
        "opencl": "an older one",
        "python": registry.open_backend("python").device,
    }
    if reason == "division by zero":
        fake("opencl", device=lambda: 1 / 0)
    machine = tuned(backends=devices)
    with pytest.warns(UserWarning, match=f"opencl was measured and is not used: {reason}"):
        assert ran(machine, lambda: tensor_ops.silu(SMALL)) == []  # python
    told = "silu (1, 64): python, 30.0 us; opencl 4.00 us; cuda 40.0 us; opencl is not used: " + reason
    assert tensor_ops.explain("silu", SMALL) == told
    changed = tensor_ops.get_backend_info()["tuning"]["changed"]
    assert any(line.startswith("opencl: ") for line in changed) == ("device" in reason)


BROKEN = [
    (lambda v: v.pop("machine"), "machine is missing"),
    (lambda v: v["machine"].update(cores="2"), r'cores has "2" \(a string\), expected a whole number'),
    (lambda v: v.update(ops=[]), "ops has a list, expected an object"),
    (lambda v: v["ops"]["silu"].update(int8=[]), "ops.silu.int8 is an unknown dtype, expected one of"),
    (lambda v: v["ops"]["silu"].update(float32=[]), "ops.silu.float32 is empty"),
    (lambda v: v["ops"]["silu"]["float32"][1]["us"].update(cudda=[1, 1, 1]),
     r"us.cudda is an unknown backend, expected one of machine.backends: cuda, mlx"),
    (lambda v: v["ops"]["silu"]["float32"][1]["us"].update(cuda=[1, 0, 1]),
     r"ops.silu.float32\[1\].us.cuda has a list, expected three times above 0"),
    (lambda v: v["ops"]["silu"]["float32"][1]["us"].update(cuda=[10**400, 1, 1]),
     r"ops.silu.float32\[1\].us.cuda has a list, expected three times above 0"),
    (lambda v: v["ops"]["silu"]["float32"][0]["arrays"].update(x=[10**30]),
     r"ops.silu.float32\[0\].arrays.x is a shape of more values than an array has, expected at most"),
    (lambda v: v["ops"]["silu"]["float32"][1].update(arrays={"y": [1, 64]}),
     r"ops.silu.float32\[1\].arrays has y, expected x, as before"),
    (lambda v: v["ops"]["silu"].update(float16=[{**SILU[0], "arrays": {"x": [1], "y": [1]}}]),
     r"ops.silu.float16\[0\].arrays has x, y, expected x, as before"),
    (lambda v: v["ops"]["silu"]["float32"][0]["arrays"].update(x=[-1]), r"arrays.x has a list, expected"),
    (lambda v: v["ops"]["silu"]["float32"][0].update(us={}), r"float32\[0\] has no arrays or no times"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "says"), BROKEN)
def test_a_broken_file_is_an_error_with_file_line_and_key(tuned, tmp_path, spoil, says):
    tuned()
    file = tmp_path / "tuning.json"
    values = json.loads(file.read_text())
    spoil(values)
    file.write_text(json.dumps(values, indent=1) + "\n\n")
    with pytest.raises(config.ConfigError, match=rf"tuning.json:\d+: .*{says}.*`airllm tune` measures"):
        tensor_ops.set_backend("auto")


def test_the_line_is_that_of_the_key(tuned, tmp_path):
    tuned()
    file = tmp_path / "tuning.json"
    text = file.read_text().replace('"cores": ', '"cores": -0.')
    file.write_text(text)
    line = text[: text.index('"cores"')].count("\n") + 1
    with pytest.raises(config.ConfigError, match=f"json:{line}: machine.cores has -0"):
        tensor_ops.set_backend("auto")
    file.write_text("{")
    with pytest.raises(config.ConfigError, match="json:1:2: is not JSON"):
        tensor_ops.set_backend("auto")


def test_a_named_file_must_exist_and_a_file_lies_beside_the_configuration(machine, monkeypatch, tmp_path):
    monkeypatch.setenv("AIRLLM_TUNING", str(tmp_path / "none.json"))
    with pytest.raises(config.ConfigError, match=r"none.json: there is no such file: `airllm tune`"):
        tensor_ops.set_backend("auto")
    monkeypatch.delenv("AIRLLM_TUNING")
    (tmp_path / "mine.json").write_text("{}")
    monkeypatch.setenv("AIRLLM_CONFIG", str(tmp_path / "mine.json"))
    assert tuning_file.tuning_file() == tmp_path / "tuning.json" and tuning_file.load() is None
    monkeypatch.delenv("AIRLLM_CONFIG")
    assert tuning_file.tuning_file() == config.CHECKOUT / "tuning.json"


def test_an_op_that_is_not_known_is_told_and_not_used(tuned):
    tuned({"silu": {"float32": SILU}, "of_tomorrow": {"float32": SILU}})
    assert tensor_ops.get_backend_info()["tuning"]["unknown_ops"] == ["of_tomorrow"]


def test_writing_keeps_what_is_not_measured_again(tmp_path):
    here, file = tuning_file.this_machine({"python": "NumPy"}), tmp_path / "new" / "tuning.json"
    made = {"float32": (tuning_file.Point({"x": (1, 64)}, {"python": tuning_file.Time(1.23456, 1, 2)}),)}
    tuning_file.write(file, here, "then", {"silu": made, "gelu": made})
    file.write_text(json.dumps({**json.loads(file.read_text()), "note": "mine"}))
    found = tuning_file.write(file, here, "now", {"silu": made})
    assert list(found.ops) == ["silu", "gelu"] and found.measured == "now"
    assert found.ops["silu"]["float32"][0].times["python"].median == 1.235
    assert json.loads(file.read_text())["note"] == "mine"
    elsewhere = tuning_file.this_machine({"python": "NumPy 0"})
    assert list(tuning_file.write(file, elsewhere, "now", {"silu": made}).ops) == ["silu"]


def test_two_that_tune_at_once_keep_each_others_ops(tmp_path, monkeypatch):
    """Another begins to write while one has read the file and not written yet."""
    path, begun = tmp_path / "tuning.json", []
    machine = tuning_file.this_machine({"cpp": "x"})

    def write(op):
        points = (tuning_file.Point({"x": (1, 2)}, {"cpp": tuning_file.Time(1, 1, 1)}),)
        tuning_file.write(path, machine, "today", {op: {"float32": points}})

    def meanwhile(asked):
        found = read(asked)
        if not begun:
            begun.append(threading.Thread(target=write, args=("gelu",)))
            begun[0].start()
            begun[0].join(0.3)  # without a lock it is through in no time
        return found

    write("silu")
    read = tuning_file.read
    monkeypatch.setattr(tuning_file, "read", meanwhile)
    write("softmax")
    begun[0].join()
    assert set(read(path).ops) == {"silu", "gelu", "softmax"}
    assert [file.name for file in tmp_path.iterdir()] == ["tuning.json"]
