"""Which backends there are, on which devices, with how much memory, and how one is asked for."""

import io
import re
import sys
import types

import cpuinfo
import numpy as np
import pytest
from process_choice import kept

from airllm import backends, tensor_ops
from airllm.backends import devices, registry
from airllm.backends.api.discovery import DiscoveredBackend
from airllm.backends.config_schema import ABSENT, ALIASES, BUILT_IN
from airllm.backends.declaration import Declaration, all_declarations


def _module(infos):
    module = types.ModuleType("tensor_ops_made_up")
    module.device = lambda: "a device of a test"
    module.silu = lambda x, out=None: x / (1 + np.exp(-x))
    module.device_infos = lambda: infos
    return module


@pytest.fixture
def made_up(monkeypatch):
    """A backend "made_up" with two devices, as another distribution would add it."""
    infos = [
        {"name": "One", "total_memory": 4 << 30, "free_memory": 1 << 30, "compute_capability": "9.0"},
        {"name": "Two", "total_memory": 2 << 30, "unified_memory": True},
    ]
    monkeypatch.setitem(sys.modules, "tensor_ops_made_up", _module(infos))
    monkeypatch.setitem(all_declarations(), "made_up", Declaration(module="tensor_ops_made_up"))
    yield "made_up"
    registry._opened.pop("made_up", None)


def test_every_known_backend_is_found_with_devices_or_a_reason():
    found = {each.name: each for each in backends.discover_backends()}
    assert set(found) >= {*BUILT_IN, *ABSENT}
    assert all(bool(each.devices) != bool(each.reason) for each in found.values())
    assert found["python"].available and found["nki"].reason == ABSENT["nki"]


def test_discovery_tells_what_was_seen_when_the_backend_was_opened(monkeypatch):
    broken = registry.Backend("cpp", why_not="silu(1) is wrong")
    monkeypatch.setitem(registry._opened, "cpp", broken)
    assert next(each.reason for each in backends.discover_backends() if each.name == "cpp") == broken.why_not


def test_the_names_of_libraries_say_what_multiplies_and_which_one_that_is():
    for name in ("mkl", "mkldnn", "onednn", "openblas"):
        info = backends.get_backend_info(name)
        assert not info["available"] and "NumPy's" in info["reason"]
    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    assert built["name"] in tensor_ops.get_backend_info()["devices"]["python"]
    assert "PyTorch" in backends.get_backend_info("triton")["reason"]
    assert backends.get_backend_info("openmp")["name"] == "cpp"


def test_the_summary_has_the_layout_of_its_document(made_up, capsys):
    backends.print_backend_summary()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "=== Available Backends ==="
    at = lines.index("✓ NumPy (CPU)")
    assert re.fullmatch(r"    \[0\] .+: \d+\.\d\d GB \(\d+\.\d\d GB free\)", lines[at + 1])
    at = lines.index("✓ made_up (other)")
    assert lines[at + 1 : at + 3] == [
        "    [0] One: 4.00 GB (1.00 GB free)",
        "    [1] Two: 2.00 GB (unified memory)",
    ]
    at = lines.index("✗ NKI (Neuron)")
    assert lines[at + 1].startswith("    Error: ")
    assert lines[-2] == "" and lines[-1].startswith("Recommended backend: ")


def test_a_terminal_of_few_characters_gets_others(made_up, monkeypatch):
    """As in POSIX's locale."""
    printed = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    monkeypatch.setattr(sys, "stdout", printed)
    backends.print_backend_summary()
    backends.list_backends(verbose=True)
    lines = printed.buffer.getvalue().decode("ascii").splitlines()
    for mark in (
        "+ NumPy (CPU)", "+ made_up (other)", "- NKI (Neuron)",
        "+ python, numpy: NumPy (CPU)", "+ made_up: made_up (other)", "- nki: NKI (Neuron)",
    ):  # fmt: skip
        assert lines.count(mark) == 1


def test_info_of_one_backend(made_up):
    info = backends.get_backend_info(made_up)
    assert info["available"] and info["device_count"] == 2 and info["compute_capability"] == 90
    assert info["max_memory"] == 4 << 30 and info["devices"][1].name == "Two"
    host = backends.get_backend_info("numpy")
    assert host["name"] == "python" and host["compute_units"] == devices.usable_cores()
    absent = backends.get_backend_info("onednn")
    assert not absent["available"] and absent["reason"] and absent["device_count"] == 0


def test_lists_and_defaults(capsys):
    names = backends.get_available_backends()
    assert "python" in names and all(map(backends.is_backend_available, names))
    assert backends.list_backends() == names and not capsys.readouterr().out
    assert backends.list_backends(verbose=True) == names
    listed = capsys.readouterr().out.splitlines()
    assert {"✓ python, numpy: NumPy (CPU)", "✗ nki: NKI (Neuron)"} <= set(listed)
    named = [line[2:].partition(":")[0].split(", ") for line in listed if line[0] in "✓✗"]
    assert {each for names in named for each in names} >= {*BUILT_IN, *ABSENT, *ALIASES}
    try:
        backends.set_default_backend("python")
        assert backends.get_default_backend() == "python"
        assert backends.best_available_backend() == registry.best().name  # not the one in use
    finally:
        backends.set_default_backend("auto")


def test_a_preference_gives_way_and_a_name_does_not():
    assert backends.init_backend(backends.BackendPreference.Rocm).name() == backends.get_backend()
    assert backends.init_backend("nki", fallback_backends=["rocm", "numpy"]).name() == "python"
    with pytest.raises(ValueError, match="(?s)no backend of nki, rocm runs here.*nki: .*rocm: .*known: cuda"):
        backends.init_backend("nki", fallback_backends=["rocm"])
    for error in (ValueError, ImportError):
        with pytest.raises(error, match="asked for by name and cannot run here"):
            backends.init_backend("nki")
    with pytest.raises(ValueError, match="unknown backend 'cud', expected one of: cuda"):
        backends.is_backend_available("cud")


def test_a_backend_is_named_in_letters_of_any_case(made_up):
    x = np.linspace(-2, 2, 9, dtype=np.float32)
    assert backends.is_backend_available("NumPy") and backends.is_backend_available("Made_Up")
    assert backends.get_backend_info("NUMPY")["name"] == "python"
    assert backends.init_backend("NKI", ["Python"]).name() == "python"
    assert np.array_equal(tensor_ops.silu(x, backend="Python"), tensor_ops.silu(x, backend="python"))
    with tensor_ops.use_backend("PYTHON") as chosen:
        assert chosen.name == "python" == backends.init_backend("Auto").name()
    before = backends.get_backend()
    try:
        for set_it in (backends.set_backend, backends.set_default_backend):
            set_it("Python")
            assert backends.get_backend() == "python"
            set_it("AUTO")
            assert backends.get_backend() == before
    finally:
        tensor_ops.set_backend("auto")


def test_a_test_that_leaves_another_choice_fails():
    """Also if only why the backend was chosen differs."""
    usual = registry.process_wide
    for name in ("python", usual.backend.name):
        with pytest.raises(pytest.fail.Exception, match="left as .*'asked for by name', True"), kept():
            backends.set_backend(name)
        assert registry.process_wide is usual
    with kept():
        backends.set_backend("python")
        backends.set_backend("auto")


def test_a_reason_is_never_empty():
    assert DiscoveredBackend("x").available  # so an empty list of devices needs one
    found = registry.reason_of("x", RuntimeError(""))
    assert found == "RuntimeError"


def test_a_processor_that_the_kernel_does_not_name(monkeypatch):
    monkeypatch.setattr(devices, "_lines", lambda path: ["processor\t: 0", "CPU part\t: 0xd0c"])
    monkeypatch.setattr(cpuinfo, "get_cpu_info", lambda: {"brand_raw": "Neoverse-N1"})
    assert devices.cpu_name.__wrapped__() == "Neoverse-N1"


@pytest.mark.parametrize(
    "family, model, name, expected",
    [
        (25, 17, "AMD EPYC", "AMD EPYC Zen 4"),
        (26, 2, "AMD EPYC", "AMD EPYC Zen 5"),
        (6, 207, "Intel(R) Xeon(R) Processor", "Intel(R) Xeon(R) Processor Emerald Rapids"),
        (6, 85, "Some Processor", "Some Processor family 6 model 85"),
        (25, 17, "AMD EPYC 9B14", "AMD EPYC 9B14"),
    ],
)
def test_a_name_without_a_number_gets_the_core(monkeypatch, family, model, name, expected):
    """Virtual machines name Zen 4 and Zen 5 alike, and their measurements differ by half."""
    lines = [f"cpu family\t: {family}", f"model\t\t: {model}", f"model name\t: {name}", "model\t: 1"]
    monkeypatch.setattr(devices, "_lines", lambda path: lines)
    assert devices.cpu_name.__wrapped__() == expected


def test_memory_is_that_of_the_control_group(tmp_path, monkeypatch):
    group = tmp_path / "cgroup" / "a" / "b"
    group.mkdir(parents=True)
    (group.parent / "memory.max").write_text(f"{3 << 20}\n")
    (group.parent / "memory.current").write_text(f"{2 << 20}\n")
    (group.parent / "memory.stat").write_text(f"anon 5\ninactive_file {1 << 18}\nactive_file {1 << 18}\n")
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("7\n")
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    limits = list(devices._group_limits(tmp_path / "cgroup", own))
    assert limits == [(3 << 20, (2 << 20) - (1 << 19))]
    monkeypatch.setattr(devices, "_group_limits", lambda: iter(limits))
    assert devices.host_memory() == (3 << 20, (1 << 20) + (1 << 19))
