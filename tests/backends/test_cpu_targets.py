"""The CPU kernels for other CPUs, for another system and by another compiler: the same source everywhere."""

import os
import re
import shutil
import subprocess

import pytest
from environment import ALL, REQUIRED, needs
from kernel_programs import CPP, SETS, compile_program, compiler, passes

WINE = os.pathsep.join(["/usr/lib/wine", os.environ.get("PATH", "")])  # Debian has the loader there


def test_neon_kernels_on_an_emulated_arm(tmp_path):
    cxx, emulator = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64-static")
    needs("neon", cxx and emulator, "aarch64-linux-gnu-g++ or qemu-aarch64-static is not installed")
    # with -O1 it compiles 2.5 times as long, and runs no faster
    program = compile_program(tmp_path, cxx, "-Og", "-static")
    printed = passes(emulator, "-cpu", "cortex-a53", program)  # which has no dot products
    assert "neon: " in printed and "neon_dotprod" not in printed
    # what it shares with neon, most of it, was checked there: the same functions of one program
    printed = passes(emulator, "-cpu", "cortex-a76", program, "neon_dotprod", "-neon")
    assert "neon_dotprod: " in printed and "neon: " not in printed
    # rows of any dtype are packed by the same code
    others = ("-neon", "-neon_dotprod")
    printed = passes(emulator, "-cpu", "max", program, "neon_i8mm", *others, "float32")
    assert "neon_i8mm: " in printed and "neon_dotprod: " not in printed
    done = subprocess.run([emulator, "-cpu", "cortex-a76", program, "neon_i8mm"], capture_output=True)
    assert done.returncode == 0 and b"neon_i8mm" not in done.stdout  # it has no products of matrices
    assert functions_with("smmla", program, "aarch64-linux-gnu-objdump") == {"cpu::neon_i8mm"}


def functions_with(instruction, program, objdump):
    """The namespaces of the functions that have an instruction."""
    text = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", "-C", program], capture_output=True, text=True
    )
    function, found = "", set()
    for line in text.stdout.splitlines():
        if line.endswith(">:"):
            function = line
        elif f"\t{instruction}\t" in line:
            found |= set(re.findall(r"cpu::\w+", function)[:1] or [function])
    return found


def test_windows_programs(tmp_path):
    """What of the core needs no Python, with Windows' calls, run by wine: the kernels of SSE2, and threads.
    All sets take wine more than five minutes. Wheels for Windows are compiled by Clang, not by MinGW's GCC.
    """
    cxx, wine = shutil.which("x86_64-w64-mingw32-g++-posix"), shutil.which("wine64", path=WINE)
    needs("mingw", cxx and wine, "g++-mingw-w64-x86-64-posix or wine64 is not installed")
    if not ALL and "mingw" not in REQUIRED:
        pytest.skip("compiles for half a minute: AIRLLM_TEST_ALL=1, or AIRLLM_TEST_REQUIRE=mingw")
    own = {"WINEPREFIX": str(tmp_path / "wine"), "WINEDEBUG": "-all"}
    options = {"capture_output": True, "env": {**os.environ, **own}, "timeout": 300}
    program = compile_program(tmp_path, cxx, "-O0", "-static", "-DAIRLLM_WITHOUT_AVX512")
    subprocess.run([wine, "wineboot", "--init"], **options)
    assert "sse2: " in passes(wine, program, "sse2", **own)
    source, threads = CPP / "test_workers.cpp", tmp_path / "threads.exe"
    subprocess.run([cxx, "-std=c++17", "-static", source, "-o", threads], check=True, timeout=300)
    done = subprocess.run([wine, threads], **options)
    assert (done.returncode, done.stdout.split()) == (0, [b"done"])


def test_other_architectures_by_plain_vectors(tmp_path):
    """What is neither x86-64 nor ARM gets the same source, taken apart by the compiler."""
    printed = passes(compile_program(tmp_path, compiler(), "-O0", "-DAIRLLM_PLAIN_VECTORS"))
    assert "scalar: " in printed


def test_clang_compiles_the_same_source(tmp_path):
    needs("clang", shutil.which("clang++"), "clang++ is not installed")
    passes(compile_program(tmp_path, "clang++", "-O0", *SETS))  # compiled in a third of the time
