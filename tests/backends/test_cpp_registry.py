"""The C++ registry: programs that use it, compiled as a user would, and what they compute."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import checkouts
import numpy as np
import pytest
from environment import REQUIRED

import airllm
from airllm.backends.config_schema import ALIASES, BUILT_IN, canonical_name
from airllm.ops.op import OPS
from airllm.tensor_ops import Quantized

ROOT = Path(__file__).parents[2]
HEADER = "airllm/backend/backends.h"
CXX = shutil.which("g++")
NO_AVX512 = "-DAIRLLM_WITHOUT_AVX512"
# Every name that a backend has in Python, and some in letters of another case.
NAMES = [*BUILT_IN, *ALIASES, "CPU", "OpenMP", "NumPy", "CUDA"]
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


def compiler() -> str:
    if CXX is None:
        assert "cpp" not in REQUIRED, "AIRLLM_TEST_REQUIRE names cpp, and there is no g++"
        pytest.skip("no g++")
    return CXX


def compile_program(program: Path, source: str, flags: list[str]) -> Path:
    """A source compiled as the documentation says, but unoptimized: that takes a fifth of the time."""
    command = [compiler(), *WARNINGS, str(ROOT / source), *flags, "-O0", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AIRLLM_")}
    command = [program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **environment}, timeout=300)


def read_printed(done: subprocess.CompletedProcess) -> dict[str, np.ndarray]:
    """The lines "op: numbers"."""
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-8000:]
    lines = re.findall(r"^([a-z][\w ]*):((?: [-+.\de]+)+)$", done.stdout, re.M)
    return {name: np.array(numbers.split(), float) for name, numbers in lines}


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """examples/registry.cpp, compiled with the options that the command line gives, without AVX-512: in half
    the time."""
    command = [sys.executable, "-m", "airllm", "cpp-flags"]
    flags = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    assert flags == airllm.get_cpp_flags()
    program = tmp_path_factory.mktemp("example") / "registry"
    return compile_program(program, "examples/registry.cpp", [*flags, NO_AVX512, "-save-temps=obj"])


@pytest.fixture(scope="module")
def named(tmp_path_factory):
    """tests/cpp/test_registry.cpp, under ThreadSanitizer, which does not understand OpenMP."""
    flags = [*airllm.get_cpp_flags(openmp=False), "-fsanitize=thread", "-DAIRLLM_PLAIN_VECTORS"]
    program = compile_program(
        tmp_path_factory.mktemp("checked") / "checked", "tests/cpp/test_registry.cpp", flags
    )
    done = run(program, *NAMES)
    assert done.stderr == "" and "WRONG" not in done.stdout, done.stdout[-2000:] + done.stderr[-8000:]
    return done


@pytest.fixture(scope="module")
def checked(named):
    """The results of the ops that it prints."""
    return read_printed(named)


def numbers(*shape: int, first: int) -> np.ndarray:
    """As the programs make them."""
    i = np.arange(np.prod(shape))
    made = ((i * 37 + first * 11) % 101).astype(np.float32) / np.float32(25) - np.float32(2)
    return made.reshape(shape)


def quantize_weight(weight: np.ndarray, format: str) -> Quantized:
    return OPS["quantize"].exact(weight, format)


def close(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> None:
    assert np.abs(found - expected.ravel()).max() <= tolerance * np.abs(expected).max()


def check_example(found: dict[str, np.ndarray]) -> None:
    close(found["rms_norm"], OPS["rms_norm"].exact(numbers(3, 70, first=1), numbers(70, first=2)))
    close(found["swiglu"], OPS["swiglu"].exact(numbers(70, first=1), numbers(70, first=2)))
    weight = quantize_weight(numbers(5, 64, first=1), "q8_0")
    exact = OPS["linear"].exact(numbers(2, 64, first=2), weight, numbers(5, first=3))
    close(found["linear"], exact, 1e-2)  # x is rounded to 8 bits
    angles = np.float32(0.1) * np.arange(16, dtype=np.float32).reshape(2, 8)
    q = OPS["apply_rope"].exact(numbers(4, 2, 16, first=1), np.cos(angles), np.sin(angles))
    k, v = numbers(2, 6, 16, first=2), numbers(2, 6, 16, first=3)
    close(found["attention"], OPS["attention"].exact(q, k, v, causal=True))


def test_the_example_computes_what_the_definitions_say(example):
    done = run(example)
    check_example(read_printed(done))
    assert "CUDA is not available\ndefault: cpu\n" in done.stdout
    assert done.stdout.endswith("threads agree: yes\n")


def test_the_environment_chooses_an_instruction_set(example):
    known = re.search(r"it has: (.+)$", run(example, AIRLLM_CPU_ISA="mmx").stderr, re.M)
    assert known
    for isa in known[1].split(", "):
        done = run(example, AIRLLM_CPU_ISA=isa, AIRLLM_NUM_THREADS="1")
        assert f"backend cpu: CPU ({isa}, 1 thread)\n" in done.stdout
        check_example(read_printed(done))


@pytest.mark.parametrize(
    "variable, value, message",
    (
        ("AIRLLM_CPU_ISA", "mmx", "AIRLLM_CPU_ISA: this CPU has no kernels for 'mmx'; it has: "),
        ("AIRLLM_NUM_THREADS", "none", "AIRLLM_NUM_THREADS has value 'none', expected a whole number from 1"),
    ),
)
def test_what_the_environment_cannot_mean_is_the_reason_why_nothing_runs(example, variable, value, message):
    done = run(example, **{variable: value})
    assert done.returncode == 1
    assert done.stderr.startswith("no backend runs here:\n  cuda: ") and f"\n  cpu: {message}" in done.stderr


def test_the_program_needs_no_python(example):
    linked = subprocess.run(["ldd", example], capture_output=True, text=True, check=True).stdout
    assert "libstdc++" in linked and "python" not in linked
    if not shutil.which("nm"):
        assert "objdump" not in REQUIRED, "AIRLLM_TEST_REQUIRE names objdump: binutils has nm too"
        pytest.skip("nm (binutils) is not installed")
    names = subprocess.run(["nm", example], capture_output=True, text=True, check=True).stdout
    assert "BackendRegistry" in names and not re.search(r" _?Py[A-Z_]|pybind", names)


def test_checks_backends_of_a_program_and_several_threads(checked):
    """The program itself fails on a wrong message, answer or race; this is that it came to its end."""
    assert len(checked) == 18


def test_a_backend_has_the_names_that_it_has_in_python(named):
    """But for those of libraries, which are no backends. The own name of the C++ backend is cpu there, and
    Metal is known everywhere.
    """
    found = dict(re.findall(r"^name (\w+): (\w+)$", named.stdout, re.M))
    assert set(found) == set(NAMES)
    for name, backend in found.items():
        own = canonical_name(name)
        assert backend == {"cpp": "cpu", "mkldnn": "none", "metal": "mlx"}.get(own, own), name


def test_elements(checked):
    x, y = numbers(50, first=1), numbers(50, first=2)
    close(checked["silu"], OPS["silu"].exact(x))
    close(checked["gelu"], OPS["gelu"].exact(x))
    close(checked["gelu none"], OPS["gelu"].exact(x, approximate="none"))
    close(checked["geglu"], OPS["geglu"].exact(x, y))


def test_rows(checked):
    x, y = numbers(6, 10, first=1), numbers(6, 10, first=2)
    weight, bias = numbers(10, first=3), numbers(10, first=4)
    total, normed = OPS["add_rms_norm"].exact(x, y, weight, eps=1e-2)
    close(checked["sum"], total)
    close(checked["normed"], normed)
    close(checked["layer_norm"], OPS["layer_norm"].exact(x, weight, bias))
    close(checked["softmax"], OPS["softmax"].exact(x, scale=0.5))
    masked = OPS["softmax"].exact(x.reshape(2, 3, 10), mask=y[:3])
    close(checked["softmax masked"], masked)
    cos, sin = y.ravel()[:8].reshape(2, 4), weight[:8].reshape(2, 4)
    close(checked["apply_rope"], OPS["apply_rope"].exact(x.reshape(3, 2, 10), cos, sin, interleaved=True))
    narrow = (x.view(np.uint32) & 0xFFFF0000).view(np.float32)  # truncated to bfloat16
    close(checked["rms_norm bfloat16"], OPS["rms_norm"].exact(narrow, weight), 1e-2)


@pytest.mark.parametrize("m", (3, 33))
def test_products(checked, m):
    x, rows = numbers(m, 64, first=1), numbers(20, 64, first=2)
    name = "" if m == 3 else f" {m}"
    close(checked["matmul" + name], OPS["matmul"].exact(x, numbers(64, 20, first=2)))
    close(checked["linear q4_0" + name], OPS["linear"].exact(x, quantize_weight(rows, "q4_0")), 1e-2)
    if m == 33:
        close(checked["linear f32 33"], OPS["linear"].exact(x, rows, numbers(20, first=3)))


def test_dequantize_is_bit_for_bit_that_of_python(checked):
    values = quantize_weight(numbers(20, 64, first=1), "q5_1").dequantize()
    assert (checked["dequantize"].astype(np.float32) == values.ravel()).all()


def test_attention_over_keys_with_room_for_more(checked):
    q = numbers(2, 4, 3, 16, first=1)
    k, v = numbers(2, 2, 9, 16, first=2)[:, :, :7], numbers(2, 2, 9, 12, first=3)[:, :, :7]
    mask = (np.arange(21) % 3 != 1).reshape(3, 7)
    options = {"causal": True, "scale": 0.5, "softcap": 20.0, "window": 5}
    exact = OPS["attention"].exact(q, k, v, mask, **options, sinks=np.array([-1, 0, 0.5, 3]))
    close(checked["attention"], exact)


LAUNCHER = """for argument; do case "$last" in -o) object=$argument;; esac; last=$argument; done
case "$*" in
  *backends.cpp) "$@" -M && cp {compiled} "$object";;
  *) exec "$@";;
esac
"""


def cmake(*arguments: str, cwd: Path) -> str:
    """What CMake says."""
    if not shutil.which("cmake"):
        assert "cmake" not in REQUIRED, "AIRLLM_TEST_REQUIRE names cmake, and there is no such program"
        pytest.skip("no cmake")
    done = subprocess.run(["cmake", *arguments], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_cmake_finds_the_backends_and_builds_the_program_of_the_guide(example, tmp_path):
    """With what was compiled for the example already, where CMake has the backends compiled."""
    compiler()
    guide = (ROOT / "BACKEND_GUIDE.md").read_text()
    for name, language in (("main.cpp", "cpp"), ("CMakeLists.txt", "cmake")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", guide, re.S)
        (tmp_path / name).write_text(text)
    compiled_before = example.with_name("registry-backends.o")
    launcher = checkouts.script(tmp_path / "launcher", LAUNCHER.format(compiled=compiled_before))
    command = [sys.executable, "-m", "airllm", "cpp-flags", "--cmake-dir"]
    folder = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    assert folder == airllm.get_cmake_dir()
    where = (f"-Dairllm_DIR={folder}", f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}")
    cmake("-B", "build", *where, "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON", cwd=tmp_path)
    (calls,) = (
        each["command"].split()
        for each in json.loads((tmp_path / "build" / "compile_commands.json").read_text())
        if each["file"].endswith("backends.cpp")
    )
    assert {"-O3", "-fopenmp", f"-I{airllm.get_include()}", airllm.get_cpp_flags()[-1]} <= set(calls)
    cmake("--build", "build", cwd=tmp_path)
    (expected,) = re.findall(r"`\./main` prints:\n\n```text\n(.*?)```", guide, re.S)
    assert run(tmp_path / "build" / "main").stdout == expected


@pytest.mark.parametrize("asked, fits", (("0.1", "TRUE"), (airllm.__version__, "TRUE"), ("99", "")))
def test_cmake_is_told_the_version(asked, fits, tmp_path):
    """In a checkout, and in a package that is installed."""
    folder = Path(airllm.get_cmake_dir())
    installed = tmp_path / "airllm"
    shutil.copytree(folder, installed / "cpp_ext" / "cmake")
    for name in ("__init__.py", "cpp_program.py"):
        shutil.copy(ROOT / "airllm" / name, installed)
    for place in (folder, installed / "cpp_ext" / "cmake"):
        (tmp_path / "asks.cmake").write_text(
            f"set(PACKAGE_FIND_VERSION {asked})\ninclude({place}/airllm-config-version.cmake)\n"
            'message("${PACKAGE_VERSION}:${PACKAGE_VERSION_COMPATIBLE}")\n'
        )
        assert cmake("-P", "asks.cmake", cwd=tmp_path).strip() == f"{airllm.__version__}:{fits}"


def test_the_flags_come_in_halves():
    compile, link = airllm.get_cpp_flags(link=False), airllm.get_cpp_flags(compile=False)
    assert f"-I{airllm.get_include()}" in compile and (Path(airllm.get_include()) / HEADER).is_file()
    assert link[-1].endswith("backends.cpp") and Path(link[-1]).is_file() and link[-1] not in compile
    assert "-fopenmp" in compile and "-fopenmp" in link
    assert "-fopenmp" not in airllm.get_cpp_flags(openmp=False)


@pytest.mark.parametrize(
    "option, flags",
    (
        ("--compile", {"link": False}),
        ("--link", {"compile": False}),
        ("--no-openmp", {"openmp": False}),
    ),
)
def test_the_command_line_gives_them_too(option, flags, capsys):
    from airllm.cli.commands import main

    assert main(["cpp-flags", option]) == 0
    assert capsys.readouterr().out.split() == airllm.get_cpp_flags(**flags)


def test_the_header_alone_is_quick_and_drags_nothing_in(tmp_path):
    """It includes the standard library alone, and defines no macro."""
    (tmp_path / "main.cpp").write_text(f"#include <{HEADER}>\n")
    command = [compiler(), *airllm.get_cpp_flags(link=False), "-MM", str(tmp_path / "main.cpp")]
    includes = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours = {path for path in includes.split() if path.startswith(str(ROOT))}
    header = Path(airllm.get_include()) / HEADER
    headers = {header, header.with_name("shipped.h")}
    assert ours == set(map(str, headers))
    assert not any(re.search(r"^\s*#\s*define", path.read_text(), re.M) for path in headers)


def test_the_program_of_the_guide_compiles(tmp_path):
    (program,) = re.findall(r"```cpp\n(.*?)```", (ROOT / "BACKEND_GUIDE.md").read_text(), re.S)
    (tmp_path / "main.cpp").write_text(program)
    command = [compiler(), *WARNINGS, "-fsyntax-only", str(tmp_path / "main.cpp")]
    done = subprocess.run([*command, *airllm.get_cpp_flags(link=False)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
