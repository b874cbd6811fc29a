"""benchmarks/gpu_day.py where there is no GPU: it says what is missing, and keeps to its time."""

import json
import sys
import time

import pytest

from airllm.backends import registry
from benchmarks import gpu_day
from benchmarks.gpu_day import Day


@pytest.fixture
def day(tmp_path) -> Day:
    return Day(60, tmp_path / "results")


def test_without_a_gpu_each_backend_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(registry, "why_passed_over", lambda name: f"no device for {name}")
    monkeypatch.setattr(gpu_day, "build", lambda day: None)
    monkeypatch.setattr(sys, "argv", ["gpu_day.py", "--output", str(tmp_path / "day")])
    assert gpu_day.main() == 1
    summary = (tmp_path / "day" / "summary.md").read_text()
    names = set(gpu_day.of_gpus())
    assert names >= {"cuda", "rocm", "mlx", "opencl", "webgpu"} and not names & {"cpp", "python"}
    assert "No backend of a GPU runs here." in summary
    assert all(f"| {name} | not done | 0 | no device for {name} |" in summary for name in names)
    steps = json.loads((tmp_path / "day" / "summary.json").read_text())["steps"]
    assert {step["name"]: step["why_not"] for step in steps} == {n: f"no device for {n}" for n in names}
    assert "cuda: not done: no device for cuda" in capsys.readouterr().out


def test_builds_need_a_driver(day, monkeypatch):
    monkeypatch.setattr(day, "run", lambda name, *_: pytest.fail(f"{name} began"))
    missing = gpu_day.module_recipes()["cuda"].driver()
    if missing:
        pytest.skip("there is a driver")
    gpu_day.build(day)
    assert {step.name for step in day.steps} == {"build cuda", "build rocm"}
    assert "driver" in day.steps[0].why_not


def test_a_build_is_for_the_gpu_that_is_here(tmp_path, monkeypatch):
    for name, text in (("nvidia-smi", "9.0\n9.0\n12.0\n"), ("rocm_agent_enumerator", "gfx000\ngfx90a\n")):
        (tmp_path / name).write_text(f"#!/bin/sh\nprintf '{text}'\n")
        (tmp_path / name).chmod(0o755)
    for name in ("AIRLLM_CUDA_ARCHS", "AIRLLM_HIP_ARCHS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert gpu_day._only_for_this_gpu("cuda") == {"AIRLLM_CUDA_ARCHS": "9.0,12.0"}
    assert gpu_day._only_for_this_gpu("rocm") == {"AIRLLM_HIP_ARCHS": "gfx90a"}
    monkeypatch.setenv("AIRLLM_HIP_ARCHS", "gfx1030")
    assert gpu_day._only_for_this_gpu("rocm") == {}


def test_a_step_has_a_limit_and_its_output_a_file(day):
    done = day.run("some words", [sys.executable, "-c", "print('a'); print('b'); raise SystemExit(3)"], 30)
    assert (done.status, done.last_line, done.verdict) == (3, "b", "failed with status 3")
    assert (day.folder / "some_words.txt").read_text() == "a\nb\n"
    start = time.monotonic()
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(60)'])"
    late = day.run("late", [sys.executable, "-c", child], 1.5)
    assert time.monotonic() - start < 10 and late.why_not == "it took more than 2 s"


def test_no_step_begins_after_the_time_is_up(tmp_path):
    day = Day(0.5, tmp_path)
    assert day.run("never", [sys.executable, "-c", "print(1)"], 30).why_not == "the time was up"


def test_llama_cpp_that_is_not_there_is_a_row(tmp_path):
    row = gpu_day.decode_elsewhere(str(tmp_path / "python"), tmp_path / "model.gguf", 1)
    assert row["backend"] == "llama.cpp" and "No such file" in row["why_not"]
    assert (
        "ModuleNotFoundError" in gpu_day.decode_elsewhere(sys.executable, tmp_path / "m.gguf", 1)["why_not"]
    )


def test_a_name_of_a_backend_that_does_not_run_is_said(day):
    assert gpu_day.gpus(day, ["nki"]) == []
    assert "nki" in day.steps[0].name and day.steps[0].why_not
