"""Which devices OpenCL has here, and which one is used. tests/ops/test_ops.py runs the ops on every one."""

import json
import threading

import numpy as np
import pytest
from device_backends import across_a_fork, after_a_fork, ran
from opencl_variants import VARIANTS, on_a_device

import tensor_ops_opencl as opencl
from airllm.tensor_ops import OPS


def python(code, **env):
    """What code prints in a process of its own."""
    return ran(code, **env).stdout.strip()


# ---- without a device ----


def test_importing_starts_nothing():
    code = (
        "import sys, tensor_ops_opencl as t; t.only_when_asked; print('pyopencl' in sys.modules, t.calls())"
    )
    assert python(code) == "False 0"


@pytest.mark.parametrize("platforms", ["an error", "none"])
def test_says_why_it_cannot_run_without_a_device(platforms, monkeypatch):
    cl = pytest.importorskip("pyopencl")

    def get_platforms():
        if platforms == "none":
            return []
        raise cl.LogicError("clGetPlatformIDs failed: PLATFORM_NOT_FOUND_KHR")

    monkeypatch.setattr(cl, "get_platforms", get_platforms)
    opencl.select(None)
    info = opencl.get_opencl_info()
    assert not info["available"] and info["platforms"] == []
    for asked in (opencl.device, opencl.variants, lambda: list(opencl.build_report())):
        with pytest.raises(RuntimeError, match="no OpenCL device here .GPUs come with") as raised:
            asked()
        assert str(raised.value) == info["reason"]
    with pytest.raises(RuntimeError, match="no OpenCL device here"):
        opencl.silu(np.ones(3, np.float32))


def test_says_why_it_cannot_run_without_pyopencl():
    code = (
        "import sys; sys.modules['pyopencl'] = None; import tensor_ops_opencl as t\n"
        "print(t.get_opencl_info()['reason'])\ntry: t.device()\nexcept ImportError as e: print(e)"
    )
    assert python(code).count("pyopencl") == 2


def test_names_of_ops_are_those_declared():
    from airllm.backends.gpu.launches import KERNELS as launched

    assert list(launched) == [name for name in OPS if name in launched]
    with pytest.raises(AttributeError, match="no attribute 'no_such_op'"):
        opencl.no_such_op  # noqa: B018


# ---- devices ----


@on_a_device
def test_info_describes_every_device():
    info = opencl.get_opencl_info()
    devices = [device for platform in info["platforms"] for device in platform["devices"]]
    assert info["available"] and info["reason"] == "" and info["device"] in [d["label"] for d in devices]
    assert info["device"] in opencl.device()
    assert all(
        d["compute_units"] > 0 and d["memory_bytes"] > 0 and d["kernels"] in ("cpu", "gpu") for d in devices
    )
    json.dumps(info)


def compiles(device):
    """Whether a driver compiles anything at all."""
    import pyopencl as cl

    try:
        cl.Program(cl.Context([device.handle]), "kernel void nothing(void) {}").build(cache_dir=False)
    except cl.RuntimeError:
        return False
    return True


@on_a_device
def test_every_kernel_compiles_for_every_device_whose_driver_compiles():
    from tensor_ops_opencl import devices

    able = {device.label for device in devices.find_devices() if compiles(device)}
    reports = [report for report in opencl.build_report() if report["label"] in able]
    assert len(reports) == 2 * len(able) > 0 and able == {v for v in VARIANTS if "gpu kernels" not in v}
    for report in reports:
        assert report["ok"], report["log"]
        assert len(report["kernels"]) > 10 and report["seconds"] > 0


@on_a_device
def test_a_failed_build_is_reported_with_its_log(monkeypatch):
    from tensor_ops_opencl import survey

    monkeypatch.setattr(
        survey, "text", lambda form, family: "__kernel void broken(__global float* x) { undeclared = 1; }"
    )
    for report in (report for report in opencl.build_report() if report["label"] in VARIANTS):
        assert not report["ok"] and "undeclared" in report["log"]
        assert "\n" not in report["reason"] and "undeclared" in report["reason"]


def place_of(label):
    """The index of a device among all, those that do not work too."""
    from tensor_ops_opencl import devices

    return str([device.label for device in devices.find_devices()].index(label))


@on_a_device
@pytest.mark.parametrize("named", ["index", "pair", "name", "label"])
def test_the_environment_chooses_the_device(named):
    label = [v for v in VARIANTS if "gpu kernels" not in v][-1]
    pair, last = label.split()[0], VARIANTS[-1]
    name = {"index": place_of(label), "pair": pair, "name": label.upper(), "label": last}[named]
    code = "import tensor_ops_opencl as t; i = t.get_opencl_info(); print(i['chosen_by']); print(i['device'])"
    chosen_by, device = python(code, AIRLLM_OPENCL_DEVICE=name).splitlines()
    assert chosen_by == "AIRLLM_OPENCL_DEVICE"
    assert device == (VARIANTS[-1] if named == "label" else label)


@on_a_device
def test_the_configuration_file_chooses_the_device(tmp_path):
    file = tmp_path / "backend.json"
    code = "import tensor_ops_opencl as t; i = t.get_opencl_info(); print(i['chosen_by']); print(i['reason'])"
    file.write_text(json.dumps({"opencl_device": place_of(VARIANTS[0])}))
    assert python(code, AIRLLM_CONFIG=str(file)) == f"{file}: opencl_device"
    file.write_text('{"opencl_device": [0]}')
    assert f"{file}:1: opencl_device has a list, expected" in python(code, AIRLLM_CONFIG=str(file))


@on_a_device
@pytest.mark.parametrize("name", ["99", "9:9", "no such device"])
def test_an_unknown_device_names_the_known_ones(name):
    code = "import tensor_ops_opencl as t\ntry: t.device()\nexcept ValueError as e: print(e)"
    told = python(code, AIRLLM_OPENCL_DEVICE=name)
    assert told.startswith(f"AIRLLM_OPENCL_DEVICE: unknown OpenCL device {name!r}, expected")
    assert VARIANTS[0].split(" (")[0] in told
    with pytest.raises(ValueError, match=r"^select\(\): unknown OpenCL device"):
        opencl.select(name)


@on_a_device
def test_the_default_is_a_gpu_or_the_newest_driver(monkeypatch):
    from tensor_ops_opencl import selection

    monkeypatch.delenv("AIRLLM_OPENCL_DEVICE", raising=False)
    opencl.select(None)
    ranks = {device.label: device.rank() for device in selection.choice.working_devices()}
    assert ranks[opencl.get_opencl_info()["device"]] == max(ranks.values())


@on_a_device
def test_a_thread_may_use_a_device_of_its_own():
    """As kernels of one process do that share a model; others go on with what was selected for all."""
    opencl.select(VARIANTS[-1])
    try:
        ours, seen = opencl.device(), []

        def look() -> None:
            for index in (0, None):
                opencl.use_device(index)
                seen.append(opencl.device())

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert opencl.device() == ours == seen[1] and ours.startswith(VARIANTS[-1])
        assert opencl.device_infos()[0]["name"] in seen[0] and not seen[0].startswith(VARIANTS[-1])
    finally:
        opencl.select(None)


@on_a_device
def test_only_when_asked_where_all_devices_are_cpus():
    kinds = {d["type"] for p in opencl.get_opencl_info()["platforms"] for d in p["devices"]}
    assert bool(opencl.only_when_asked()) == (kinds == {"CPU"})


@on_a_device
def test_the_backend_can_be_asked_for_by_name():
    code = (
        "from airllm import tensor_ops as t; import tensor_ops_opencl as o; print(t.get_backend(), o.calls())"
    )
    assert python(code, AIRLLM_BACKEND="opencl") == "opencl 2"  # the device was tried, and then the backend


@on_a_device
@across_a_fork
def test_a_forked_process_is_told_instead_of_waiting_for_ever():
    opencl.silu(np.ones(4, np.float32))
    assert "forked" in after_a_fork(lambda: opencl.silu(np.ones(4, np.float32)))
