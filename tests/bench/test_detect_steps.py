"""The steps of detect_and_benchmark.py, in this process: builds, timings, the model, and what is missing."""

import importlib.util
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import detect_and_benchmark
from airllm import progress
from airllm.backends import config
from airllm.bench import measure, model_benchmark, op_benchmark, report
from airllm.bench import run as bench_run
from airllm.bench.shapes import case_of, is_contraction
from airllm.files import smollm2
from airllm.tensor_ops import OPS
from cpp_ext.commands import build_all, cuda_probes

pytestmark = pytest.mark.usefixtures("no_vulkan")


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
