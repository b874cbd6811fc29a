"""Compiler flags for C++ programs that use the backends without Python.

    g++ main.cpp $(python -m airllm cpp-flags) -o main
    cmake -B build -Dairllm_DIR=$(python -m airllm cpp-flags --cmake-dir)    # for find_package(airllm)

`cpp_ext/include/airllm/backend/backends.h` is the header. This module imports only the standard library.
"""

from pathlib import Path


def get_include() -> str:
    """The folder to pass to a C++ compiler as -I, for `#include <airllm/backend/backends.h>`."""
    return str(_sources() / "include")


def get_cmake_dir() -> str:
    """The folder with airllm-config.cmake, to pass to CMake as airllm_DIR, for `find_package(airllm)`."""
    return str(_sources() / "cmake")


def get_cpp_flags(*, compile: bool = True, link: bool = True, openmp: bool = True) -> list[str]:
    """Options for g++ or clang++, to follow a program's own sources.

    `compile`: the language standard, optimization, threads and the folder of the header. `link`: threads, and
    the source file of the backends and their kernels. That file takes a minute or more to compile, so a
    program of many files should make one object file of it. OpenMP places threads as OMP_PLACES says;
    `openmp=False` is for a compiler without it. Later options override these.
    """
    threads = ["-pthread", *(["-fopenmp"] if openmp else [])]
    flags = ["-std=c++17", "-O3", f"-I{get_include()}"] if compile else []
    source = [str(_sources() / "program" / "backends.cpp")] if link else []
    return [*flags, *threads, *source]


def _sources() -> Path:
    """The sources: inside this package if it is installed, next to it in a checkout."""
    package = Path(__file__).resolve().parent
    places = (package / "cpp_ext", package.parent / "cpp_ext")
    return next(folder for folder in places if (folder / "include").is_dir())
