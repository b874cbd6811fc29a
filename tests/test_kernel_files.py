"""Kernel files are read alone, as an editor or a tool reads them: each includes what it uses."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

CPP_EXT = Path(__file__).parents[1] / "cpp_ext"
CPU_KERNELS = sorted((CPP_EXT / "cpu").rglob("*.inl"))
GPU_HEADERS = sorted((CPP_EXT / "gpu_kernels").rglob("*.h"))
NEEDS_A_BODY = "for_each_dtype.h"  # includes the file that its includer names


def name(path):
    return str(path.relative_to(CPP_EXT))


def check_syntax(compiler, language, path):
    command = [compiler, "-fsyntax-only", "-Wall", "-Werror", *language, "-"]
    done = subprocess.run(command, input=f'#include "{path}"\n', capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [p for p in GPU_HEADERS if p.name != NEEDS_A_BODY], ids=name)
def test_a_header_of_gpu_kernels_compiles_alone(path):
    if not (clang := shutil.which("clang")):
        pytest.skip("clang, which reads OpenCL C, is not installed")
    check_syntax(clang, ["-x", "cl", "-cl-std=CL1.2", "-Wno-unused-function"], path)


@pytest.mark.parametrize("path", CPU_KERNELS, ids=name)
def test_a_kernel_file_of_cpu_compiles_alone(path):
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    if path.name.startswith("avx") and platform.machine() != "x86_64":
        pytest.skip("has instructions of x86-64")
    # what a file has for others is not used where it is alone
    check_syntax(compiler, ["-std=c++17", "-Wno-unused", "-x", "c++"], path)
