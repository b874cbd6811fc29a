"""Devices whose driver does not work: each place that tells of devices says the same, and uses the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import checkouts
import pytest
from device_backends import ran
from environment import REQUIRED

from airllm.backends.reasons import error_line
from cpp_ext.commands import opencl_probes, probes

HERE = Path(__file__).resolve().parents[1]
LOG = "warning: a first line\nerror: unknown target CPU 'generic'\nerror: another line"
BROKEN = "0:0 Broken CPU (Broken 0.1)"
REASON = (
    "OpenCL kernels do not compile: error: unknown target CPU 'generic' (this PoCL, Broken 0.1, is older "
    "than the CPU; Debian: apt-get install pocl-opencl-icd; a GPU comes with its driver; pip uninstall "
    "pocl-binary-distribution removes PyPI's PoCL; on a CPU cpp is faster anyway)"
)
REFUSED = f"{BROKEN} cannot be used: {REASON}"
BACKENDS = (
    "from airllm import backends, tensor_ops\nfrom airllm.backends import registry\n"
    "from airllm.bench import op_benchmark\nimport json\n"
)


@pytest.fixture(scope="module")
def icd(tmp_path_factory):
    """A file by which OpenCL's loader finds the broken driver."""
    pytest.importorskip("pyopencl")
    folder = tmp_path_factory.mktemp("broken")
    if sys.platform != "linux" or not probes.cxx_command():
        pytest.skip("no compiler for a driver that this loader takes")
    command = [*probes.cxx_command()[:1], "-x", "c", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run(
        [*command, HERE / "support" / "kernels" / "broken_opencl.c", "-o", folder / "libbroken.so"],
        check=True,
    )
    (folder / "broken.icd").write_text(f"{folder / 'libbroken.so'}\n")
    return folder / "broken.icd"


@pytest.fixture
def alone(icd, monkeypatch):
    """A machine whose only OpenCL device compiles nothing."""
    monkeypatch.setenv("OCL_ICD_VENDORS", str(icd))
    monkeypatch.setenv("BROKEN_OPENCL_LOG", LOG)


@pytest.fixture
def beside(icd, monkeypatch):
    """A machine on which it is listed first, as the best one. The details of the others, of which some may
    be too old for this CPU.
    """
    vendors = Path(os.environ.get("OCL_ICD_VENDORS", "/etc/OpenCL/vendors"))
    others = opencl_probes.devices()
    if not others and "opencl" not in REQUIRED:
        pytest.skip(f"OpenCL beside a broken driver: {others}")
    for file in vendors.glob("*.icd") if vendors.is_dir() else [vendors]:
        (icd.parent / f"z-{file.name}").write_text(file.read_text())
    monkeypatch.setenv("OCL_ICD_VENDORS", str(icd.parent))
    monkeypatch.setenv("BROKEN_OPENCL_LOG", LOG)
    return others.details


def run_json(code, **env):
    """What a process of its own prints as JSON, with the backends imported."""
    return json.loads(ran(f"{BACKENDS}{code}", **env).stdout)


def setup(command, **env):
    """A command of setup.py, and everything that it wrote."""
    answer = checkouts.run([*checkouts.SETUP, command], checkouts.ROOT, **env)
    return answer.returncode, answer.stdout, answer.stderr


# ---- the only device ----


def test_a_device_that_compiles_nothing_is_not_available(alone):
    code = """
info, found = tensor_ops.get_backend_info(), {each.name: each for each in backends.discover_backends()}
print(json.dumps([
    info["unavailable"]["opencl"], found["opencl"].reason, backends.get_backend_info("opencl")["reason"],
    registry.open_backend("opencl").why_not,
    *[b["reason"] for b in op_benchmark.describe_backends(["opencl"])],
    "opencl" in backends.list_backends(), backends.is_backend_available("opencl"),
    backends.get_backend_info("opencl")["device_count"],
    [b["state"] for b in op_benchmark.describe_backends(["opencl"])], info["backend"],
]))"""
    *reasons, listed, available, count, state, used = run_json(code)
    assert reasons == [REFUSED] * 5
    assert (listed, available, count, state) == (False, False, 0, ["unavailable"]) and used != "opencl"


def test_what_is_printed_of_it_is_one_line(alone):
    lines = ran(
        f"{BACKENDS}tensor_ops.print_backend_info(); backends.print_backend_summary()"
    ).stdout.splitlines()
    about = [line.strip() for line in lines if "unknown target CPU" in line]
    assert about == [f"opencl     not available: {REFUSED}", f"Error: {REFUSED}"]
    assert not any("Build on" in line or "options:" in line or "another line" in line for line in lines)


def test_capabilities_try_a_device(alone):
    assert str(opencl_probes.devices()) == probes.module("tensor_ops_opencl").why_not == REFUSED
    assert not opencl_probes.devices() and not probes.module("tensor_ops_opencl")


def test_build_opencl_fails_where_no_device_compiles(alone):
    status, out, err = setup("build_opencl")
    assert status == 1 and f"{BROKEN}: {REASON}" in out
    assert "do not compile for any device here" in err and "error: another line" in err  # the whole log


def test_the_unit_tests_of_modules_say_so_too(alone):
    code = "import test_cpp_ext as t; print(json.dumps(t.why_not('opencl')))"
    assert run_json(code) == f"RuntimeError: {REFUSED}"


def test_detect_and_benchmark_takes_it_for_a_missing_driver(alone):
    from cpp_ext.commands import build_all

    assert REASON in build_all.missing_for("opencl")


def test_a_device_named_by_the_environment_is_never_replaced(beside):
    code = (
        "import tensor_ops_opencl as t\ntry: t.device()\nexcept RuntimeError as e: print(json.dumps(str(e)))"
    )
    asked = "AIRLLM_OPENCL_DEVICE=broken"
    assert run_json(code, AIRLLM_OPENCL_DEVICE="broken") == f"{asked}: {REFUSED}"


# ---- beside another that works ----


def test_the_default_is_the_next_device_that_works(beside):
    code = """
import tensor_ops_opencl as o
info = o.get_opencl_info()
reasons = {d["label"]: d["reason"] for p in info["platforms"] for d in p["devices"]}
found = next(each for each in backends.discover_backends() if each.name == "opencl")
print(json.dumps([
    info["device"], reasons, o.unusable(), o.variants(), [d.index for d in found.devices], found.unusable,
    backends.is_backend_available("opencl"),
]))"""
    used, reasons, unusable, variants, places, lines, available = run_json(code)
    assert next(iter(reasons)) == BROKEN and len(reasons) == len(beside) + 1
    assert named(unusable) == named({BROKEN: REASON} | whys(beside))
    assert unusable == {label: why for label, why in reasons.items() if why}
    working = [label for label, why in reasons.items() if not why]
    assert available and used == working[0]
    assert places == [i for i, why in enumerate(reasons.values()) if not why]
    assert lines == [f"{label} cannot be used: {why}" for label, why in unusable.items()]
    assert {v.split()[0] for v in variants} == {label.split()[0] for label in working}


def whys(details):
    """The reasons of those that cannot be used."""
    return dict(each.split(" cannot be used: ", 1) for each in details if " cannot be used: " in each)


def named(of):
    """By the names of devices, without their numbers."""
    return {label.split(" ", 1)[1]: why for label, why in of.items()}


def test_capabilities_list_each_device_with_its_reason(beside):
    found = opencl_probes.devices()
    assert found and len(found.details) == len(beside) + 1
    assert found.details[0] == REFUSED
    assert named(whys(found.details[1:])) == named(whys(beside))
    assert probes.module("tensor_ops_opencl")


def test_a_driver_that_ends_the_process_takes_nothing_else_down(beside, monkeypatch):
    monkeypatch.delenv("BROKEN_OPENCL_LOG")
    found = opencl_probes.devices()
    assert found and len(found.details) == len(beside) + 1
    assert found.details[0] == f"{BROKEN} cannot be used: its driver ends the process with status -6"


# ---- which devices the tests run on ----


def pytest_run(*arguments, **env):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return checkouts.run(command, checkouts.ROOT, PYTEST_ADDOPTS="", **env)


ONE = "tests/backends/test_opencl.py::test_info_describes_every_device"


def test_tests_of_devices_that_do_not_work_are_skipped_with_the_reason(alone):
    done = pytest_run(ONE)
    assert done.returncode == 0 and f"airllm: NOT tested: opencl: {REFUSED}" in done.stdout
    assert "1 skipped" in done.stdout and "no OpenCL here: " in done.stdout


def test_the_suite_does_not_start_where_what_is_required_does_not_work(alone):
    done = pytest_run(ONE, AIRLLM_TEST_REQUIRE="opencl")
    assert done.returncode == 3 and REASON in done.stdout + done.stderr


def test_the_others_are_tested_where_one_does_not_work(beside):
    done = pytest_run(ONE, AIRLLM_TEST_REQUIRE="opencl")
    assert done.returncode == 0 and "1 passed" in done.stdout, checkouts.output_of(done)
    assert f"airllm: NOT tested: opencl: {BROKEN}: {REASON}" in done.stdout


@pytest.mark.parametrize(
    ("log", "line"),
    (
        ("c++\nx.inl:7: error: no such thing\n note\n(options: -I /x)", "x.inl:7: error: no such thing"),
        ("a\n  error: unknown target CPU\nBuild log\n(options: -cl-std=CL1.2)", "error: unknown target CPU"),
        ("Traceback\n  File x\nRuntimeError: broken\n", "RuntimeError: broken"),
        ("0 errors\n/usr/lib/error/x\nended", ""),
        ("", ""),
    ),
)  # fmt: skip
def test_the_reason_in_a_log_is_the_line_that_names_the_error(log, line):
    assert error_line(log) == line
