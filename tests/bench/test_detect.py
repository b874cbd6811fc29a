"""detect_and_benchmark.py as its users run it, the benchmarks and the examples."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import checkouts
import numpy as np
import pytest

import detect_and_benchmark
from airllm import progress
from airllm.backends import available, config, tuning_file
from airllm.bench import (
    measure,
    model_benchmark,
    op_benchmark,
    report,
)
from airllm.bench import run as bench_run
from airllm.bench.shapes import case_of, is_contraction
from airllm.files import smollm2
from airllm.tensor_ops import OPS
from cpp_ext.commands import build_all, cuda_probes

ROOT = Path(__file__).resolve().parents[2]
NOTHING_BUILT = ("--quick", "--no-build", "--no-real-data")
TINY = ("--quick", "--ops", "rms_norm,matmul", "--sizes", "1x64,4x128")


def run(*arguments, script="detect_and_benchmark.py", cwd=ROOT, **environment):
    return subprocess.run(
        [sys.executable, ROOT / script, *map(str, arguments)],
        cwd=cwd, capture_output=True, text=True, timeout=600, env={**os.environ, **environment},
    )  # fmt: skip


def install(folder, text):
    """A backend `broken`, as a third party's is installed: by an entry point of a package on the path."""
    (folder / "tensor_ops_broken.py").write_text(text)
    distribution = folder / "broken-1.0.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (distribution / "entry_points.txt").write_text("[airllm.backends]\nbroken = tensor_ops_broken\n")


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """A run on what is built already: the process and the folder of its report."""
    folder = tmp_path_factory.mktemp("report")
    backends = ",".join(name for name in available() if name != "opencl")
    options = ("--no-build", "--no-real-data", "--tune", "--backends", f"{backends},cuda", "--output", folder)
    done = run(*TINY, *options, AIRLLM_TUNING=str(folder / "tuning.json"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done, folder


def test_what_is_tuned_is_written_and_shown(ran):
    done, folder = ran
    assert f"Written to {folder / 'tuning.json'}" in done.stdout.replace("\n", "")
    assert set(tuning_file.read(folder / "tuning.json").ops) == {"rms_norm", "matmul"}
    assert "<h2>Choice by size</h2>" in (folder / "report.html").read_text()
    assert {row["op"] for row in json.loads((folder / "report.json").read_text())["choice"]["rows"]} == {
        "rms_norm", "matmul"
    }  # fmt: skip


def test_tuning_needs_a_file_to_write(tmp_path):
    done = run("--tune", *NOTHING_BUILT, "--output", tmp_path)
    assert done.returncode == 2 and "AIRLLM_TUNING=off" in done.stderr


def test_the_json_has_everything(ran):
    result = json.loads((ran[1] / "report.json").read_text())
    assert result["format"] == 1 and result["seconds"] > 0
    assert {"machine", "bandwidth", "threads", "builds", "backends", "tests", "speed", "data"} <= set(result)
    assert set(result["bandwidth"]) == {"copy", "read", "how"}
    names = [
        each["name"] for each in result["backends"] if each["state"] in ("active", "available", "passed over")
    ]
    assert "python" in names
    checked = {(t["backend"], t["op"], t["dtype"], t["rows"], t["cols"]) for t in result["tests"]}
    assert len(checked) == len(result["tests"]) == len(names) * 2 * len(op_benchmark.CHECKED)
    assert all(test["passed"] and 0 <= test["error"] <= 1 for test in result["tests"])
    sides = {*names, *(["torch"] if "torch" in result["machine"]["versions"] else [])}
    timed = {(r["op"], r["rows"], r["cols"], r["implementation"]) for r in result["speed"]}
    assert timed == {
        (op, *size, s) for op in ("rms_norm", "matmul") for size in ((1, 64), (4, 128)) for s in sides
    }
    assert all(r["dtype"] == "float32" and r["median"] > 0 and r["gb_s"] > 0 for r in result["speed"])
    assert all(1 <= r["rounds"] <= measure.ROUNDS for r in result["speed"]) and not result["checks_left_out"]


def test_every_backend_that_does_not_run_has_its_reason(ran):
    result = json.loads((ran[1] / "report.json").read_text())
    for each in result["backends"]:
        assert each["device"] or each["reason"], each
        assert (each["device"] or each["reason"].splitlines()[0][:60]) in ran[0].stdout


def test_the_page_is_made_from_the_same_results(ran):
    text = (ran[1] / "report.html").read_text()
    result = json.loads((ran[1] / "report.json").read_text())
    assert text.count("<svg") == 4  # the speed of each op, and where which backend wins
    assert "<h3>rms_norm</h3>" in text and "<h3>matmul</h3>" in text
    assert result["machine"]["cpu"] in text


def test_output_in_a_pipe_is_plain_text_with_the_four_steps(ran):
    text = ran[0].stdout
    assert [step for step in ("1/4", "2/4", "3/4", "4/4") if step in text] == ["1/4", "2/4", "3/4", "4/4"]
    assert "\x1b" not in text and "\r" not in text and ran[0].stderr == ""
    assert "Each time is the median of " in text and text.index("In short") > text.index("x NumPy") > 0
    assert "No model was timed: --no-real-data was given" in text
    assert "NOT REAL INPUT: random numbers" in text and "--no-real-data was given" in text
    assert str(ran[1] / "report.html") in text


def test_the_real_models_numbers_are_used_and_named(real_file, tmp_path):
    name = "cpp" if "cpp" in available() else "python"
    page, data = tmp_path / "page.html", tmp_path / "data.json"
    options = (
        "--quick",
        "--no-build",
        "--backends",
        name,
        "--ops",
        "silu",
        "--sizes",
        "1x64",
        "--threads",
        "1",
    )
    done = run(*options, "--dtypes", "float16", "--html", page, "--json", data, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(data.read_text())
    assert result["data"]["real"] and "SmolLM2-135M-Instruct" in result["data"]["source"]
    assert "SmolLM2-135M-Instruct" in done.stdout and "SmolLM2-135M-Instruct" in page.read_text()
    assert [each["name"] for each in result["backends"]] == [name]
    assert {row["dtype"] for row in result["speed"]} == {"float16"}
    assert set(result["threads"].values()) == {1}
    (row,) = result["model"]["rows"]
    assert row["backend"] == name and row["answer"]["median"] > 0 and "tokens/s  an answer of" in done.stdout
    assert "<h2>A model</h2>" in page.read_text()
    assert not (tmp_path / "benchmark_report").exists()


@pytest.mark.parametrize(
    "options, message",
    [
        (["--ops", "rms_norm,foo"], "unknown op 'foo'; known: rms_norm, layer_norm, add_rms_norm, silu, "),
        (["--dtypes", "float64"], "unknown dtype 'float64'; known: float32, float16, bfloat16"),
        (
            ["--backends", "vulkan"],
            "unknown backend 'vulkan'; known: cuda, rocm, mlx, opencl, webgpu, cpp, python",
        ),
        (["--sizes", "1x64,4096"], "unknown size '4096'; sizes are ROWSxCOLUMNS, such as 1x4096,128x4096"),
        (["--sizes", "0x64"], "unknown size '0x64'"),
        (["--ops", ","], "unknown op nothing; known: rms_norm"),
        (["--threads", "0"], "--threads has 0, expected 1 or more"),
    ],
)
def test_a_wrong_name_is_one_message_with_the_known_ones(options, message, tmp_path):
    done = run(*options, "--output", tmp_path / "report")
    assert done.returncode == 2 and done.stdout == ""
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    "text, message",
    [
        ('{"preferred_backend": "cpp"', "backend.json:1:28: is not JSON: Expecting ',' delimiter"),
        ('{"x": 1,\n"force_backend": "tpu"}', "backend.json:2: force_backend has the unknown backend 'tpu'"),
        ('{\n\n"opencl_device": null}', "backend.json:3: opencl_device has null, expected a device"),
    ],
)
def test_a_broken_configuration_is_one_message(text, message, tmp_path):
    file = tmp_path / "backend.json"
    file.write_text(text)
    done = run(*NOTHING_BUILT, "--output", tmp_path / "report", AIRLLM_CONFIG=str(file))
    assert (done.returncode, done.stdout) == (2, ""), done.stdout + done.stderr
    assert done.stderr.startswith(f"detect_and_benchmark.py: {tmp_path}/{message}")
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "report").exists()


def test_a_backend_of_the_environment_that_does_not_exist_is_one_message(tmp_path):
    done = run(*NOTHING_BUILT, "--output", tmp_path, AIRLLM_BACKEND="tpu")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("detect_and_benchmark.py: AIRLLM_BACKEND=tpu: unknown backend 'tpu'")


def test_a_forced_backend_that_cannot_run_is_reported_with_its_reason(tmp_path):
    """One of this test's own, for any of the built-in ones may run here."""
    broken = "def device():\n    raise RuntimeError('no such hardware: plug it in')\n"
    install(tmp_path, broken)
    file = tmp_path / "backend.json"
    file.write_text('{"force_backend": "broken"}')
    done = run(
        *NOTHING_BUILT, "--output", tmp_path / "report",
        AIRLLM_CONFIG=str(file), PYTHONPATH=str(tmp_path),
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr.startswith("detect_and_benchmark.py: no such hardware: plug it in\n")
    assert "'broken' was asked for by name and cannot run here" in done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "report").exists()


class Sized:
    """Arrays of every size that take no memory; `size` is that of the last ones."""

    def inputs(self, op, rows, cols, dtype, rng):
        self.size = rows, cols
        case = case_of(op, rows, cols)
        return [self.array(o, case, dtype) for o in op.operands if not o.optional]

    def array(self, operand, case, dtype):
        if not operand.is_float:
            return operand.random(np.random.default_rng(0), dtype, case.batch, case.sizes)
        return np.broadcast_to(np.zeros((), dtype), case.shape(operand))


@pytest.fixture(autouse=True, scope="module")
def no_vulkan():
    """A run times every backend that runs here, and WebGPU on a processor takes half a minute for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VK_DRIVER_FILES", "/nowhere")
        yield


@pytest.mark.parametrize("slower, seconds, most", [(1, 30, 32), (4, 30, 40), (4, 6, 24)])
def test_quick_timings_end_in_time_on_a_busy_machine(slower, seconds, most, monkeypatch):
    """By a clock of this test's own, on a machine where three backends are as slow as NumPy is on an old one,
    10 ns an element, 10 ns a hundred products, 0.1 ms at least, and `slower` when it is busy. What goes over
    the time is the first round of long calls, which is taken whatever happens.
    """
    now, data = 0.0, Sized()

    def passes(seconds):
        nonlocal now
        now += seconds

    def call_of(name, op, arrays, parameters):
        seconds = op_benchmark.work(op, *data.size) * (1e-10 if is_contraction(op) else 1e-8)
        return lambda: passes(slower * max(1e-4, seconds))

    monkeypatch.setattr(measure, "time", SimpleNamespace(perf_counter=lambda: now, sleep=passes))
    monkeypatch.setattr(op_benchmark, "make_call", call_of)
    monkeypatch.setattr(measure, "optional", lambda name: None)
    names = config.IN_ORDER[-3:]
    limits = replace(op_benchmark.QUICK, total=seconds)
    rows = op_benchmark.speed(names, list(OPS), ["float32"], None, data, limits, lambda *_: None)
    assert len(rows) == len(names) * len(op_benchmark.QUICK.sizes) * len(OPS)
    assert now < most
    timed = [row["rounds"] for row in rows if "rounds" in row]
    assert min(timed) >= (report.FEW if slower == 1 else 1)
    assert np.mean(timed) >= (6 if seconds == 30 else 1.5)


def test_quick_leaves_out_the_builds_that_take_long_and_says_so(monkeypatch):
    monkeypatch.setattr(build_all, "missing_for", lambda name: "")
    done = subprocess.CompletedProcess([], 0, "", "")
    monkeypatch.setattr(build_all, "run_command", lambda *command, on_progress: done)
    without = cuda_probes.Finding("CUDA driver", why_not="no driver")
    for driver, cuda in ((without, "skipped"), (cuda_probes.Finding("CUDA driver"), "up to date")):
        monkeypatch.setattr(cuda_probes, "driver", lambda found=driver: found)
        quick = build_all.build_all(report.console(), quick=True)
        assert [each["state"] for each in quick] == ["up to date", cuda, "skipped", "skipped"]
        assert all("--quick" in each["detail"] for each in quick if each["state"] == "skipped")
    full = build_all.build_all(report.console(), quick=False)
    assert [each["state"] for each in full] == ["up to date", "up to date", "up to date", "checked"]


def test_what_takes_long_says_how_far_it_is_in_a_pipe_too(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", 0)
    with progress.step(report.console(), "Checking") as told:
        told(1, 4, "silu on cpp")
        told(0, 0, "build_ext: 3 s")
    assert capsys.readouterr().out == "Checking ...\n  25 %, silu on cpp\n  build_ext: 3 s\n"


def test_a_setup_command_that_takes_long_tells_its_time():
    seen = []
    done = build_all.run_command("--version", on_progress=lambda *at: seen.append(at))
    assert done.returncode == 0 and done.stdout.strip()
    assert all("--version: " in text for _, _, text in seen)


def test_a_report_that_cannot_be_written_is_refused_before_anything_long(tmp_path):
    (tmp_path / "file").touch()
    done = run(*NOTHING_BUILT, "--output", tmp_path / "file" / "report")
    assert (done.returncode, done.stdout) == (2, "") and len(done.stderr.splitlines()) == 1
    assert f"cannot be written: {tmp_path / 'file'} is not a folder" in done.stderr


BROKEN = """
import numpy as np

def device():
    return "a broken device"

def silu(x, *, out=None):
    return {silu}

def rms_norm(x, weight, eps=1e-6, *, out=None):
    return np.zeros_like(x)
"""


@pytest.mark.parametrize(
    "silu, state, message",
    [
        (
            "(x / (1 + np.exp(-x.astype(np.float32)))).astype(x.dtype)",
            "available",
            "check: broken: rms_norm 1x64",
        ),
        ("np.zeros_like(x)", "wrong", "backend: broken:"),
    ],
    ids=["one op gives zeros", "all give zeros"],
)
def test_a_backend_that_answers_zeros_makes_the_run_fail(silu, state, message, tmp_path):
    install(tmp_path, BROKEN.format(silu=silu))
    options = ("--quick", "--no-build", "--no-real-data", "--ops", "rms_norm", "--sizes", "1x64")
    done = run(*options, "--backends", "broken,python", "--output", tmp_path, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"FAILED {message}" in done.stdout
    result = json.loads((tmp_path / "report.json").read_text())
    assert [each["state"] for each in result["backends"] if each["name"] == "broken"] == [state]
    assert "failed.</b>" in (tmp_path / "report.html").read_text()
    assert all(test["passed"] for test in result["tests"] if test["backend"] == "python")


def test_what_is_missing_is_named_with_the_command_that_installs_it(monkeypatch, capsys):
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in ("rich", "gguf") else installed(name)
    )
    with pytest.raises(SystemExit) as ended:
        detect_and_benchmark.main([])
    assert "needs rich, gguf" in str(ended.value.code)
    assert 'python -m pip install -e ".[all]"' in str(ended.value.code)
    assert "python -m pip install rich gguf" in str(ended.value.code)


def test_a_build_that_fails_shows_its_log_and_is_a_failure(monkeypatch, capsys):
    def failing(*command, on_progress):
        return subprocess.CompletedProcess(command, 1, "compiling\n", "kernels.inl:7: error: no such thing\n")

    monkeypatch.setattr(build_all, "run_command", failing)
    monkeypatch.setattr(build_all, "missing_for", lambda name: "")
    build = build_all.build(report.console(), "cpp")
    assert build == {"name": "cpp", "state": "failed", "detail": "kernels.inl:7: error: no such thing"}
    assert "compiling" in capsys.readouterr().out
    assert report.failures({"builds": [build], "backends": [], "tests": []})


def test_the_model_runs_on_the_backends_that_auto_may_take_and_that_are_right(monkeypatch):
    asked = []
    monkeypatch.setattr(smollm2, "fetch", lambda timeout: Path("a model"))
    monkeypatch.setattr(
        model_benchmark, "measure_model", lambda *given, **limits: asked.append((given, limits)) or ["row"]
    )
    states = {"python": "available", "cuda": "unavailable", "mlx": "available", "opencl": "passed over"}
    result = {
        "backends": [{"name": n, "state": s} for n, s in (states | {"cpp": "active"}).items()],
        "tests": [{"backend": "mlx", "passed": False}, {"backend": "cpp", "passed": True}],
        "data": {"why_not": ""},
    }
    choice = bench_run.Choice.parse(None, None, None, None)
    this = bench_run.Run(report.console(), choice, True, 3, True, measure.Budget(6), result)
    assert this.time_model()["rows"] == ["row"]
    (path, names, threads, _), limits = asked.pop()
    assert (path, names, threads) == (Path("a model"), ["cpp", "python"], 3)
    assert limits["rounds"] == 3 and 2 < limits["within"] <= 3  # half of what is left
    result["backends"] = [{"name": "cuda", "state": "unavailable"}]
    assert this.time_model()["why_not"].startswith("no backend that was asked for")
    result["data"] = {"why_not": "no network"}
    assert this.time_model()["why_not"] == "no network" and not asked


POCL_LOG = """0:0 a processor
  rms_norm: error: unknown target CPU 'generic'
(options: -cl-std=CL1.2 -I /somewhere/pyopencl/cl)
"""


@pytest.mark.parametrize(
    ("backends", "configured", "state"),
    ((None, "auto", "unavailable"), ("opencl,cpp", "auto", "failed"), (None, "opencl", "failed")),
)
def test_a_device_that_takes_no_kernel_is_a_failure_only_where_it_was_asked_for(
    backends, configured, state, monkeypatch, tmp_path, capsys
):
    file = tmp_path / "backend.json"
    file.write_text(json.dumps({"preferred_backend": configured}))
    monkeypatch.setenv("AIRLLM_CONFIG", str(file))
    monkeypatch.setattr(build_all, "missing_for", lambda name: "")

    def run_command(*command, on_progress):
        failed = command[0] == "build_opencl"
        return subprocess.CompletedProcess(command, int(failed), POCL_LOG * failed, "")

    monkeypatch.setattr(build_all, "run_command", run_command)
    builds = build_all.build_all(report.console(), quick=False, named=(backends or "").split(","))
    reason = "rms_norm: error: unknown target CPU 'generic'"
    detail = reason if state == "failed" else f"{reason} (python setup.py build_opencl)"
    assert builds[-1] == {"name": "opencl", "state": state, "detail": detail}
    told = report.failures({"builds": builds, "backends": [], "tests": []})
    assert told == ([f"build: opencl: {reason}"] if state == "failed" else [])
    assert ("(options: -cl-std" in capsys.readouterr().out) == (state == "failed")


def test_a_missing_tool_is_a_reason_and_no_failure(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    build = build_all.build(report.console(), "cpp")
    assert build["state"] == "skipped" and "no-such-compiler" in build["detail"]
    assert not report.failures({"builds": [build], "backends": [], "tests": []})


def test_the_whole_run_in_a_copy_of_the_checkout(tmp_path):
    """With what is built already, which setup.py leaves alone, and no nvcc: test_builds builds for CUDA."""
    left_out = shutil.ignore_patterns(
        ".git", "__pycache__", "benchmark_report", ".*_cache", "*.egg-info", "venv"
    )
    copy = tmp_path / "checkout"
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    done = subprocess.run(
        [sys.executable, "detect_and_benchmark.py", *TINY, "--no-real-data"],
        cwd=copy, capture_output=True, text=True, timeout=600,
        env={**os.environ, "AIRLLM_NVCC": "/no/nvcc", "AIRLLM_HIPCC": "/no/hipcc"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((copy / "benchmark_report" / "report.json").read_text())
    builds = {build["name"]: build for build in result["builds"]}
    assert list(builds) == ["cpp", "cuda", "rocm", "opencl"]
    assert builds["cuda"]["state"] == "skipped" and "/no/nvcc" in builds["cuda"]["detail"]
    assert {build["state"] for build in builds.values()} <= {"built", "up to date", "checked", "skipped"}
    assert "Can be built" in result["capabilities"]


SLEEPY = """
_linear = linear


def linear(*arguments, **options):
    import time

    time.sleep(0.02)
    return _linear(*arguments, **options)
"""


@pytest.mark.parametrize("script", ["benchmarks/bench_ops.py", "benchmarks/bench_matmul.py"])
def test_a_benchmark_writes_its_table_and_figures(script, tmp_path):
    size = ["--sizes", "1x64"] if script.endswith("bench_ops.py") else ["--rows", "1", "--width", "64"]
    done = run(
        *size, "--seconds", "0.01", "--output", tmp_path, script=script, AIRLLM_CACHE_DIR="/dev/null/none"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "NOT REAL INPUT" in done.stdout
    (table,), (figures,) = tmp_path.glob("*.md"), tmp_path.glob("*.json")
    assert table.stem == figures.stem and "| vs PyTorch |" in table.read_text()
    assert len(json.loads(figures.read_text())["passes"]) == 2


def test_the_dispatch_benchmark_gives_the_hop(tmp_path):
    if "cpp" not in available():
        pytest.skip("the C++ backend is not built")
    done = run("--seconds", "0.01", "--output", tmp_path, script="benchmarks/bench_dispatch.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| hop |" in done.stdout and "| silu |" in done.stdout


def test_two_checkouts_are_compared(tmp_path):
    """Each side imports its own: a second one whose linear sleeps is slower there, and alike elsewhere."""
    if "cpp" not in available():
        pytest.skip("the C++ backend is not built")
    slower = checkouts.built_copy(tmp_path / "slower")
    with open(slower / "airllm" / "tensor_ops.py", "a") as text:
        text.write(SLEEPY)
    short = ("--rounds", "2", "--seconds", "0.001")
    done = run(ROOT, slower, *short, script="benchmarks/compare_checkouts.py")
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, last = done.stdout.splitlines()
    ratios = {line[:24].strip(): float(line.split()[-1]) for line in lines}
    assert len(ratios) == 16 and {"prefill q4_k", "decode f16"} <= set(ratios)
    assert ratios["linear q4_0 1 rows"] < 0.1
    assert last == f"geometric mean {float(last.split()[-1]):.3f}" and float(last.split()[-1]) < 1


def test_backends_are_chosen_in_letters_of_any_case():
    assert op_benchmark.choose_backends("CPU, numpy,OpenCL") == ["cpp", "python", "opencl"]


def test_benchmark_py_reports_the_active_backend():
    done = run(script="benchmarks/benchmark.py", AIRLLM_BACKEND="python")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Active backend: python (NumPy")
    assert all(f"  {name} " in done.stdout for name in ("rms_norm", "silu", "gelu"))
    done = run("--help", script="benchmarks/benchmark.py")
    assert done.returncode == 0 and done.stdout.startswith("usage: benchmark.py"), done.stderr
    assert "configure_backend --backend=cpp" in done.stdout and "Active backend" not in done.stdout
    assert run("cpp", script="benchmarks/benchmark.py").returncode == 2


def test_every_example_runs():
    done = run(script="examples/backend_examples.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11. directly" in done.stdout and "Traceback" not in done.stdout
