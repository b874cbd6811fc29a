"""The scripts of benchmarks/ and examples/, as their users run them."""

import json
import sys

import checkouts
import pytest
from scripts import ROOT, run

from airllm.backends import available
from airllm.bench import op_benchmark
from benchmarks.engine_peers import Engine, NoEngine

pytestmark = pytest.mark.usefixtures("no_vulkan")

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


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("kill -ILL $$", "llama_cpp: illegal instruction; it was built for another CPU"),
        ("exit 3", "exit status 3"),
    ],
)
def test_an_engine_that_ends_without_a_word_says_how(end, said, tmp_path):
    """A llama.cpp that was built on another machine says nothing itself."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{end}\n")
    interpreter.chmod(0o755)
    with pytest.raises(NoEngine, match=said):
        Engine(str(interpreter), "llama_cpp", tmp_path / "model.gguf", 1)


def test_every_example_runs():
    done = run(script="examples/backend_examples.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11. directly" in done.stdout and "Traceback" not in done.stdout


PEER_WITH_AVX512 = """
def llama_log_callback(function):
    return function


def llama_log_set(*_):
    pass


def llama_backend_init():
    pass


def llama_print_system_info():
    return b"CPU : AVX2 = 1 | AVX512 = 1 | "


__version__ = "1"
"""


@pytest.mark.parametrize("isa", ["avx2", "avx512", "AVX512_BF16"])
def test_a_peer_with_more_instructions_is_no_peer(isa, tmp_path, monkeypatch):
    (tmp_path / "llama_cpp.py").write_text(PEER_WITH_AVX512)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("AIRLLM_CPU_ISA", isa)
    with pytest.raises(NoEngine) as refused:
        Engine(sys.executable, "llama_cpp", tmp_path / "no.gguf", 1)
    assert ("was built with AVX-512, and AIRLLM_CPU_ISA is avx2" in str(refused.value)) == (isa == "avx2")
