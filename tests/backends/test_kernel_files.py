"""Kernel files are read alone, as an editor or a tool reads them: each includes what it uses."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from environment import REQUIRED

from cpp_ext.commands import probes

CPU_KERNELS = sorted((probes.CPP_EXT / "cpu").rglob("*.inl"))
GPU_HEADERS = sorted((probes.CPP_EXT / "gpu_kernels").rglob("*.h"))
NEEDS_A_BODY = "for_each_dtype.h"  # includes the file that its includer names
SEARCHED = ("gpu_kernels/gpu", "gpu_kernels/cpu_devices", "tensor_ops_webgpu/kernels")  # for files by name


def name(path: Path) -> str:
    return str(path.relative_to(probes.CPP_EXT))


def check_syntax(compiler: list[str], path: Path) -> None:
    """Of a file that includes this one alone: of the main file GCC would not take `#pragma once`."""
    command = [*compiler, "-fsyntax-only", "-Wall", "-Werror", "-"]
    done = subprocess.run(command, input=f'#include "{path}"\n', capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", [p for p in GPU_HEADERS if p.name != NEEDS_A_BODY], ids=name)
def test_a_header_of_gpu_kernels_compiles_alone(path):
    clang = shutil.which("clang")
    if not clang:
        assert "clang" not in REQUIRED, "AIRLLM_TEST_REQUIRE names clang, and there is no such program"
        pytest.skip("clang, which reads OpenCL C, is not installed")
    check_syntax([clang, "-x", "cl", "-cl-std=CL1.2", "-Wno-unused-function"], path)


@pytest.mark.parametrize("path", CPU_KERNELS, ids=name)
def test_a_kernel_file_of_cpu_compiles_alone(path):
    compiler = probes.cxx_command()
    if not compiler:
        assert "cpp" not in REQUIRED, "AIRLLM_TEST_REQUIRE names cpp, and there is no C++ compiler"
        pytest.skip("there is no C++ compiler")
    if path.name.startswith("avx") and platform.machine() != "x86_64":
        pytest.skip("has instructions of x86-64")
    # what a file has for others is not used where it is alone
    check_syntax([*compiler, "-std=c++17", "-Wno-unused", "-x", "c++"], path)


@pytest.mark.parametrize("folder", SEARCHED)
def test_every_kernel_file_has_a_name_of_its_own(folder):
    names = [path.name for path in (probes.CPP_EXT / folder).rglob("*.*")]
    assert names and sorted(set(names)) == sorted(names)
