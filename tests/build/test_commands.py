"""Every command of setup.py and every example of BACKEND_CONFIG.md, run as a user runs them, in copies."""

import ast
import json
import os
import re
import sys
from types import SimpleNamespace

import checkouts
import pytest

from airllm.backends import open_backend
from cpp_ext.commands import (
    CommandError,
    build_opencl,
    opencl_probes,
    probes,
    test_capabilities,
)

REQUIRED = os.environ.get("AIRLLM_TEST_REQUIRE", "").split(",")
WITHOUT_PACKAGES = [sys.executable, "-S", "setup.py"]  # -S leaves site-packages out
SHOWN = """Current Backend Configuration:
  Preferred backend: {}
  Force backend: {}
  Priority order: {}

Configuration file: {}
"""


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """A checkout with the C++ backend, shared by tests that leave it as it is."""
    return checkouts.built_copy(tmp_path_factory.mktemp("built"))


def settings(checkout):
    return json.loads((checkout / "backend.json").read_text())


# ---- configure_backend ----


def test_show_prints_what_the_document_prints_and_needs_no_package(checkout):
    answer = checkouts.run([*WITHOUT_PACKAGES, "configure_backend", "--show"], checkout)
    assert answer.returncode == 0, checkouts.output_of(answer)
    assert answer.stdout == SHOWN.format("auto", None, "cuda, opencl, cpp, python", checkout / "backend.json")
    # what that order stands for, which `airllm info` tells too
    assert (
        answer.stderr
        == "(this order, as shipped, stands for all: cuda, rocm, mlx, opencl, webgpu, cpp, python)\n"
    )


@pytest.mark.parametrize(
    "options, preferred, force, priority",
    [
        (["--backend=cpp"], "cpp", None, "cuda, opencl, cpp, python"),
        (["--backend", "cuda"], "cuda", None, "cuda, opencl, cpp, python"),
        (["--backend=opencl"], "opencl", None, "cuda, opencl, cpp, python"),
        (["--backend=python"], "python", None, "cuda, opencl, cpp, python"),
        (["--backend=NumPy"], "python", None, "cuda, opencl, cpp, python"),
        (["--backend=auto"], "auto", None, "cuda, opencl, cpp, python"),
        (["--backend=cuda", "--force"], "cuda", "cuda", "cuda, opencl, cpp, python"),
        (["--priority=opencl,cuda,cpp,python"], "auto", None, "opencl, cuda, cpp, python"),
        (["--backend=auto", "--priority=cpp,cuda, opencl"], "auto", None, "cpp, cuda, opencl"),
        (["--backend=cpp", "--show"], "cpp", None, "cuda, opencl, cpp, python"),
    ],
)
def test_a_change_is_written_and_shown(checkout, options, preferred, force, priority):
    answer = checkouts.run([*checkouts.SETUP, "configure_backend", *options], checkout)
    assert answer.returncode == 0, checkouts.output_of(answer)
    assert answer.stdout == SHOWN.format(preferred, force, priority, checkout / "backend.json")
    assert settings(checkout) == {
        "preferred_backend": preferred,
        "backend_priority": priority.split(", "),
        "force_backend": force,
    }


@pytest.mark.parametrize("name", ["auto", "cpp"])
def test_a_backend_without_force_ends_force_mode(checkout, name):
    for options in (["--backend=cuda", "--force"], [f"--backend={name}"]):
        assert checkouts.run([*checkouts.SETUP, "configure_backend", *options], checkout).returncode == 0
    assert settings(checkout)["force_backend"] is None
    assert settings(checkout)["preferred_backend"] == name


def test_reset_mends_a_broken_file_and_the_error_says_so(checkout):
    (checkout / "backend.json").write_text("{")
    answer = checkouts.run([*checkouts.SETUP, "configure_backend", "--show"], checkout)
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"configure_backend: {checkout / 'backend.json'}:1:2: is not JSON")
    assert "configure_backend --reset" in answer.stderr
    assert checkouts.run([*checkouts.SETUP, "configure_backend", "--reset"], checkout).returncode == 0
    assert (checkout / "backend.json").read_text() == (checkouts.ROOT / "backend.json").read_text()


@pytest.mark.parametrize(
    "options, message",
    [
        ([], "nothing to do, expected --show, --backend=NAME, --priority=LIST or --reset"),
        (["--force"], "--force needs the name of a backend, such as --backend=cuda --force"),
        (["--backend=auto", "--force"], "--force needs the name of a backend"),
        (["--backend=tpu"], "--backend=tpu: has the unknown backend 'tpu', expected one of: auto, cuda, "),
        (["--backend="], "--backend=: has the unknown backend ''"),
        (["--backend"], "argument --backend: expected one argument"),
        (["--priority=cpp,tpu"], "--priority=cpp,tpu: has the unknown backend 'tpu', expected one of: cuda"),
        (["--priority=cpp,python,cpp"], "--priority=cpp,python,cpp: has 'cpp' twice"),
        (["--priority="], "--priority=: has the unknown backend ''"),
        (["--reset", "--backend=cpp"], "--reset stands alone"),
        (["--back=cpp"], "unrecognized arguments: --back=cpp (options: --help, --show, --backend, --force"),
        (["cpp"], "unrecognized arguments: cpp"),
    ],
)
def test_wrong_options_are_one_message_and_change_nothing(checkout, options, message):
    answer = checkouts.run([*checkouts.SETUP, "configure_backend", *options], checkout)
    assert answer.returncode == 2
    assert answer.stderr.startswith(f"configure_backend: {message}")
    assert "Traceback" not in answer.stderr and answer.stdout == ""
    assert (checkout / "backend.json").read_text() == (checkouts.ROOT / "backend.json").read_text()


def test_the_named_file_is_shown_and_changed(checkout, tmp_path):
    named = {"AIRLLM_CONFIG": str(tmp_path / "named.json")}
    shown = checkouts.run([*checkouts.SETUP, "configure_backend", "--show"], checkout, **named)
    assert "the file does not exist: these are the defaults" in shown.stderr
    answer = checkouts.run([*checkouts.SETUP, "configure_backend", "--backend=cpp"], checkout, **named)
    assert answer.stdout.endswith(f"Configuration file: {tmp_path / 'named.json'}\n")
    assert json.loads((tmp_path / "named.json").read_text())["preferred_backend"] == "cpp"
    assert settings(checkout)["preferred_backend"] == "auto"


def test_show_says_when_the_environment_counts_more(checkout):
    answer = checkouts.run(
        [*checkouts.SETUP, "configure_backend", "--show"], checkout, AIRLLM_BACKEND="python"
    )
    assert answer.returncode == 0
    assert answer.stderr.endswith("\n(AIRLLM_BACKEND=python is set and counts more)\n")


DEPLOYMENT = """
if [ "$GPU_TYPE" = "nvidia" ]; then
    python setup.py configure_backend --backend=cuda --force
elif [ "$GPU_TYPE" = "amd" ]; then
    python setup.py configure_backend --backend=opencl --force
else
    python setup.py configure_backend --backend=cpp
fi
"""


@pytest.mark.parametrize(
    "kind, preferred, force", [("nvidia", "cuda", "cuda"), ("amd", "opencl", "opencl"), ("", "cpp", None)]
)
def test_the_deployment_script_of_the_document_runs(checkout, kind, preferred, force):
    answer = checkouts.run(DEPLOYMENT, checkout, GPU_TYPE=kind)
    assert answer.returncode == 0, checkouts.output_of(answer)
    assert (settings(checkout)["preferred_backend"], settings(checkout)["force_backend"]) == (
        preferred,
        force,
    )


def test_a_forced_backend_that_cannot_run_fails_at_import_with_the_remedies(checkout):
    """Nothing is built in this copy."""
    command = "python setup.py configure_backend --backend=cuda --force; python -c 'import airllm.tensor_ops'"
    answer = checkouts.run(command, checkout, PYTHONPATH=str(checkout))
    assert answer.returncode == 1
    assert "No module named 'tensor_ops_cuda'" in answer.stderr
    for remedy in ("python setup.py build_cuda", "python setup.py configure_backend --backend=auto"):
        assert remedy in answer.stderr


# ---- the examples of BACKEND_CONFIG.md ----

DOCUMENT = (checkouts.ROOT / "BACKEND_CONFIG.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL)


def test_every_example_of_backend_config_md_runs_in_its_order(tmp_path):
    """bash and python must succeed, console must answer as printed, json must be a configuration."""
    checkout = checkouts.built_copy(tmp_path / "checkout")
    runners = {"bash": run_bash, "console": run_console, "python": run_python, "json": run_json}
    assert {language for language, _ in BLOCKS} == set(runners)
    for language, text in BLOCKS:
        runners[language](checkout, text)


def run_bash(checkout, text):
    answer = checkouts.run(text, checkout, PYTHONPATH=str(checkout))
    assert answer.returncode == 0, f"{text}\n{checkouts.output_of(answer)}"


def run_console(checkout, text):
    for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
        answer = checkouts.run(command, checkout, PYTHONPATH=str(checkout))
        written = (answer.stdout + answer.stderr).replace(str(checkout), "/path/to")
        assert written == expected, f"{command}\n{checkouts.output_of(answer)}"


def run_python(checkout, text):
    """A comment behind a print is what it prints."""
    answer = checkouts.run([sys.executable, "-c", text], checkout, PYTHONPATH=str(checkout))
    assert answer.returncode == 0, f"{text}\n{checkouts.output_of(answer)}"
    for expected in re.findall(r"^ *print\(.*\)  # (.*)$", text, re.MULTILINE):
        assert expected in answer.stdout.splitlines(), f"{text}\n{checkouts.output_of(answer)}"


def run_json(checkout, text):
    (checkout / "backend.json").write_text(text)
    run_bash(checkout, "python setup.py configure_backend --show; python setup.py configure_backend --reset")


def test_the_error_table_of_backend_config_md_is_true(tmp_path):
    texts = {
        "broken JSON": '{\n  "preferred_backend": "cpp"\n  "force_backend": null\n}',
        "unknown backend": '{\n  "preferred_backend": "cppp"\n}',
        "wrong type": '{\n\n\n\n\n\n  "backend_priority": "cpp"\n}',
        "named twice": '{\n  "backend_priority": [\n    "cpp",\n    "cpp"\n  ]\n}',
        "no device": '{\n  "opencl_device": null\n}',
        "misspelt key": '{\n  "prefered_backend": "cpp"\n}',
    }
    texts["named twice"] = '{\n  "backend_priority": ["python",\n    "openmp",\n    "cpp"\n  ]\n}'
    from airllm.backends import config

    table = dict(re.findall(r"^\| ([\w ]+) \| `(/path/to/backend.json:.*)` \|$", DOCUMENT, re.MULTILINE))
    assert table.keys() == texts.keys()
    for mistake, text in texts.items():
        (tmp_path / "backend.json").write_text(text)
        with pytest.raises(config.ConfigError) as caught:
            config.read(tmp_path / "backend.json")
        assert str(caught.value).replace(str(tmp_path), "/path/to") == table[mistake]


# ---- setuptools around the commands ----


def test_the_commands_are_listed_and_can_be_chained(checkout):
    listed = checkouts.run([*checkouts.SETUP, "--help-commands"], checkout)
    for name in ("build_ext", "build_cuda", "build_opencl", "test_capabilities", "configure_backend"):
        assert re.search(rf"^  {name} +\w", listed.stdout, re.MULTILINE)
    chain = ["configure_backend", "--backend=cuda", "--force", "configure_backend", "--priority=cpp,python"]
    answer = checkouts.run([*checkouts.SETUP, *chain[:3], "test_capabilities"], checkout)
    assert answer.returncode == 0, checkouts.output_of(answer)
    assert settings(checkout)["force_backend"] == "cuda"
    assert "Backend   Can be built" in answer.stdout


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["biuld_cuda"], "invalid command 'biuld_cuda'"),
        (["build_ext", "--in"], "option --in not recognized|not a unique prefix"),
        (["build_cuda", "--foo"], "build_cuda: unrecognized arguments: --foo"),
        (["build_opencl", "--foo"], "build_opencl: unrecognized arguments: --foo"),
        (["test_capabilities", "--foo"], "test_capabilities: unrecognized arguments: --foo"),
        (["configure_backend", "--force", "test_capabilities"], "configure_backend: --force needs the name"),
    ],
)
def test_a_wrong_name_or_option_is_an_error(checkout, arguments, message):
    answer = checkouts.run([*checkouts.SETUP, *arguments], checkout)
    assert answer.returncode not in (0, None) and re.search(message, answer.stderr), checkouts.output_of(
        answer
    )
    assert "Traceback" not in answer.stderr


def test_without_setuptools_the_own_commands_work_and_the_others_name_the_remedy(checkout):
    answer = checkouts.run([*WITHOUT_PACKAGES, "sdist"], checkout)
    assert answer.returncode == 1
    assert answer.stderr.startswith("setup.py: sdist needs setuptools: pip install setuptools")
    answer = checkouts.run([*WITHOUT_PACKAGES, "build_ext", "--inplace"], checkout)
    assert answer.returncode == 1
    assert answer.stderr == (
        "build_ext: tensor_ops_cpp cannot be built here\n  pybind11 is not installed: pip install pybind11\n"
    )


# ---- build_opencl ----


def has_devices():
    if not opencl_probes.devices() and "opencl" not in REQUIRED:
        pytest.skip(f"build_opencl: {opencl_probes.devices()}")


def test_the_probe_finds_the_device_that_the_backend_opens():
    opened = open_backend("opencl")
    if opened.why_not:
        assert "opencl" not in REQUIRED, opened.why_not
        pytest.skip(opened.why_not)
    found = opencl_probes.devices()
    assert any(opened.device.startswith(each) for each in found.details), found


def test_build_opencl_compiles_every_kernel_for_every_device_that_works(checkout):
    has_devices()
    answer = checkouts.run([*checkouts.SETUP, "build_opencl"], checkout)
    assert answer.returncode == 0, checkouts.output_of(answer)
    lines = re.findall(r"^compiled +(gpu|cpu) +[\d.]+ s +(\d+) kernels +(.*)$", answer.stdout, re.MULTILINE)
    assert {form for form, _, _ in lines} == {"gpu", "cpu"} and all(int(count) for _, count, _ in lines)
    assert len(lines) == 2 * sum("cannot be used" not in device for device in opencl_probes.devices().details)


def test_build_opencl_prints_the_log_of_a_kernel_that_does_not_compile(checkout):
    has_devices()
    with open(checkout / "cpp_ext" / "gpu_kernels" / "cpu_devices" / "rows" / "rows.h", "a") as text:
        text.write("\nkernel void broken() { undeclared = 1; }\n")
    answer = checkouts.run([*checkouts.SETUP, "build_opencl"], checkout)
    assert answer.returncode == 1
    assert re.search(r"^FAILED +cpu ", answer.stdout, re.MULTILINE)
    assert re.search(r"^compiled +gpu ", answer.stdout, re.MULTILINE)
    assert "build_opencl: the kernels do not compile for" in answer.stderr and "undeclared" in answer.stderr


def test_build_opencl_without_pyopencl_says_how_to_get_it(checkout):
    answer = checkouts.run([*WITHOUT_PACKAGES, "build_opencl"], checkout)
    assert answer.returncode == 1 and "Traceback" not in answer.stderr
    assert re.match(r"build_opencl: .*No module named", answer.stderr)
    assert 'pip install -e ".[opencl]"' in answer.stderr and "pocl-opencl-icd" in answer.stderr


def test_build_opencl_without_a_device_says_how_to_get_one(monkeypatch):
    def build_report():
        raise RuntimeError("no OpenCL device")

    monkeypatch.setitem(sys.modules, "tensor_ops_opencl", SimpleNamespace(build_report=build_report))
    with pytest.raises(CommandError, match=r"^no OpenCL device\n.*pip install -e .*pocl-opencl-icd"):
        build_opencl.run(None)


def report(label, ok, asked=False, form="cpu"):
    """What the backend says of compiling one form for a device."""
    found = {"label": label, "device": label[4:], "ok": ok, "asked": asked, "form": form, "seconds": 0.5}
    reason = "" if ok else "kernels do not compile: error: why"
    return found | {"kernels": ["silu"] * 90 if ok else [], "reason": reason, "log": f"{reason}\nall of it"}


def built_for(monkeypatch, capsys, *reports):
    """What build_opencl prints and what it fails with, "" if it does not."""
    monkeypatch.setitem(sys.modules, "tensor_ops_opencl", SimpleNamespace(build_report=lambda: iter(reports)))
    try:
        build_opencl.run(None)
    except CommandError as error:
        return capsys.readouterr().out, str(error)
    return capsys.readouterr().out, ""


def test_build_opencl_succeeds_if_a_device_works_and_says_which_does_not_and_why(monkeypatch, capsys):
    printed, failed = built_for(monkeypatch, capsys, report("0:0 Old", False), report("1:0 New", True))
    assert failed == "" and printed.splitlines() == [
        "FAILED    cpu    0.5 s  none         0:0 Old: kernels do not compile: error: why",
        "compiled  cpu    0.5 s  90 kernels   1:0 New",
        "1 of the above cannot be used; the others are ready.",
    ]


@pytest.mark.parametrize(
    "reports, what",
    [
        ([report("0:0 Old", False), report("1:0 Older", False)], "any device here"),
        ([report("0:0 Old", True), report("0:0 Old", False, form="gpu")], "any device here"),
        ([report("0:0 Old", False, asked=True), report("1:0 New", True)], "the device that was asked for"),
    ],
)
def test_build_opencl_fails_if_no_device_works_or_not_the_one_asked_for(monkeypatch, capsys, reports, what):
    _, failed = built_for(monkeypatch, capsys, *reports)
    assert failed.startswith(f"the kernels do not compile for {what}\nOld, ") and "all of it" in failed
    assert ("Older" in failed) == (len(reports) == 2 and reports[1]["label"] == "1:0 Older")


def test_build_opencl_succeeds_if_one_of_those_that_a_name_means_works(monkeypatch, capsys):
    reports = report("0:0 Old", False, asked=True), report("1:0 New", True, asked=True)
    assert built_for(monkeypatch, capsys, *reports)[1] == ""


# ---- test_capabilities ----


def test_capabilities_of_this_machine(built):
    answer = checkouts.run([*checkouts.SETUP, "test_capabilities"], built)
    assert answer.returncode == 0, checkouts.output_of(answer)
    rows = re.findall(r"^(\w+) +(yes|no) +(yes|no) +(\S.*)$", answer.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["cuda", "rocm", "mlx", "opencl", "webgpu", "cpp", "python"]
    assert rows[5][1:3] == ("yes", "yes") and rows[6][1:3] == ("yes", "yes")
    for text in ("by cpuid:", "by py-cpuinfo:", "C++ compiler", "Python headers", "pybind11", "OpenMP"):
        assert text in answer.stdout


def test_capabilities_without_any_package_or_tool_says_what_is_missing(checkout, tmp_path):
    python = checkouts.empty_environment(tmp_path / "venv")
    nowhere = {"PATH": "/nowhere", "CUDA_HOME": "/nowhere", "PYTHONPATH": ""}
    answer = checkouts.run([str(python), "setup.py", "test_capabilities"], checkout, **nowhere)
    assert answer.returncode == 0, checkouts.output_of(answer)
    for text in (
        "by cpuid:      not checked: it needs a C++ compiler",
        "by py-cpuinfo: not checked: pip install py-cpuinfo",
        "no C++ compiler on PATH (g++, c++, clang++): apt-get install g++, or set CXX",
        "pybind11 is not installed: pip install pybind11",
        "there is no program /nowhere/bin/nvcc",
        "No module named 'pyopencl': pip install -e",
        "No module named 'mlx'",
        "NumPy is not installed: pip install numpy",
    ):
        assert text in answer.stdout
    cpp = answer.stdout.partition("\nC++:\n")[2].partition("\n\n")[0]
    assert cpp.count("no C++ compiler") == 1 and "-fopenmp" not in cpp  # nothing was compiled
    rows = re.findall(r"^(\w+) +(yes|no) +(yes|no)", answer.stdout, re.MULTILINE)
    assert rows == [
        ("cuda", "no", "no"),
        ("rocm", "no", "no"),
        ("mlx", "yes", "no"),
        ("opencl", "no", "no"),
        ("webgpu", "yes", "no"),
        ("cpp", "no", "no"),
        ("python", "yes", "no"),
    ]


def test_a_disagreement_about_the_cpu_is_reported():
    lines = test_capabilities.cpu_lines(probes.Cpu("X", ("avx", "avx2"), ("avx", "fma")))
    assert lines[-1] == "they disagree on avx2, fma: the backend uses cpuid"
    assert len(test_capabilities.cpu_lines(probes.Cpu("X", ("avx",), ("avx",)))) == 3


def test_an_unbuilt_backend_names_its_command():
    unbuilt = probes.Finding("m", why_not=probes.NOT_BUILT)
    row = test_capabilities.Capability("cpp", (), unbuilt, "python setup.py build_ext --inplace").row()
    assert row == ("cpp", "yes", "no", "it is not built: python setup.py build_ext --inplace")


def test_an_old_python_is_told_in_one_line(tmp_path):
    """pip runs setup.py before it knows which Python the project requires; so do those who build in place."""
    old = "import runpy, sys; sys.version, sys.version_info = '3.9.18 (main)', (3, 9, 18)"
    code = f"{old}; runpy.run_path({str(checkouts.ROOT / 'setup.py')!r}, run_name='__main__')"
    answer = checkouts.run([sys.executable, "-c", code], tmp_path)
    assert answer.returncode == 1 and answer.stdout == ""
    assert answer.stderr == f"airllm needs Python 3.10 or newer, this is 3.9.18 ({sys.executable})\n"
    ast.parse((checkouts.ROOT / "setup.py").read_text(), feature_version=(3, 6))
