"""detect_and_benchmark.py as its users run it."""

import json
import os
import shutil
import subprocess
import sys

import pytest
from scripts import ROOT, run

from airllm.backends import available, tuning_file
from airllm.bench import measure, op_benchmark

pytestmark = pytest.mark.usefixtures("no_vulkan")

NOTHING_BUILT = ("--quick", "--no-build", "--no-real-data")
TINY = ("--quick", "--ops", "rms_norm,matmul", "--sizes", "1x64,4x128")


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
