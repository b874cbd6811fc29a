"""Builds tensor_ops_cuda to run in host memory: the module's own sources, its kernels compiled as C++, and
stand-ins for the CUDA runtime and for cuBLAS. Address sanitizer watches it where there is one.

    python build.py FOLDER      builds it into FOLDER and prints how to run the checks there
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
CPP_EXT = HERE.parents[1] / "cpp_ext"
sys.path.insert(0, str(CPP_EXT.parent))

from cpp_ext.commands import cpp_build, cuda_probes, probes  # noqa: E402

FLAGS = ["-O0", "-g1", "-std=c++17", "-fPIC", "-fvisibility=hidden"]


def why_not() -> str:
    """Why it cannot be built here; "" if it can."""
    findings = [cuda_probes.nvcc(), *probes.cpp_prerequisites()]
    return "; ".join(str(finding) for finding in findings if not finding)


def sanitizer() -> str:
    """What to preload for address sanitizer, "" if this compiler has none. It looks for the C++ library's
    functions when it starts, and Python itself has not loaded that."""
    found = [compilers_library(name) for name in ("libasan.so", "libstdc++.so")]
    return " ".join(found) if all(found) else ""


def compilers_library(name: str) -> str:
    answer = subprocess.run(
        [*probes.cxx_command(), f"-print-file-name={name}"], capture_output=True, text=True
    )
    path = answer.stdout.strip()
    return path if os.path.isabs(path) else ""


def compiler_of_kernels() -> list[str]:
    """The call of a compiler that takes CUDA's kernels, and their text."""
    include = [f"-I{path}" for path in (HERE, cuda_probes.toolkit(cuda_probes.nvcc()).include)]
    return [*compiler(), *include, "-include", str(HERE / "kernels_on_host.h"), "-x", "c++"]


def compiler() -> list[str]:
    return [*probes.cxx_command(), *FLAGS, *(["-fsanitize=address"] if sanitizer() else [])]


def module(folder: Path) -> Path:
    """Builds the module, and what stands in for libraries, into `folder`, to be imported from there."""
    toolkit = cuda_probes.toolkit(cuda_probes.nvcc())
    cxx = compiler()
    include = [f"-I{path}" for path in (HERE, toolkit.include)] + cpp_build.includes()
    kernels = ["-D__CUDA_ARCH_LIST__=0", "-include", str(HERE / "kernels_on_host.h"), "-x", "c++"]
    calls = {
        "kernels.o": [*cxx, *include, *kernels, "-c", str(CPP_EXT / "cuda" / "launch" / "kernels.cu")],
        "runtime.o": [*cxx, *include, "-c", str(HERE / "runtime_on_host.cpp")],
        "driver.o": [*cxx, *include, "-c", str(HERE / "driver_on_host.cpp")],
        "graphs.o": [*cxx, *include, "-c", str(HERE / "graphs_on_host.cpp")],
        "module.o": [*cxx, *include, "-c", str(CPP_EXT / "tensor_ops_cuda.cpp")],
    }
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(lambda item: run([*item[1], "-o", str(folder / item[0])]), calls.items()))
    made = folder / ("tensor_ops_cuda" + probes.EXT_SUFFIX)
    run([*cxx, "-shared", *(str(folder / name) for name in calls), "-ldl", "-lpthread", "-o", str(made)])
    for name in ("cublas", "nvrtc"):  # where pip would have put them
        library = folder / "nvidia" / "cu13" / "lib" / f"lib{name}.so.13"
        library.parent.mkdir(parents=True, exist_ok=True)
        source = str(HERE / f"{name}_on_host.cpp")
        soname = f"-Wl,-soname,{library.name}"
        run([*probes.cxx_command(), *FLAGS, "-shared", soname, source, "-o", str(library)])
    return made


def run(call: list[str]) -> None:
    answer = subprocess.run(call, capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(call)}\n{answer.stderr}")


def environment(folder: Path) -> dict[str, str]:
    """What a Python process needs to import the module from `folder`."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = {"ASAN_OPTIONS": "detect_leaks=0", "AIRLLM_CUDA_MATMUL": "tiled", "PYTHONPATH": path}
    options["AIRLLM_CACHE_DIR"] = str(folder / "cache")
    options["AIRLLM_TEST_NVRTC"] = str(folder)
    options["AIRLLM_TEST_NVRTC_COMPILER"] = f"env -u LD_PRELOAD {sys.executable} {HERE / 'nvrtc_on_host.py'}"
    options["AIRLLM_TEST_REQUIRE"] = "cuda"  # pip's PoCL cannot be loaded beside address sanitizer
    preload = {"LD_PRELOAD": sanitizer()} if sanitizer() else {}
    return {**os.environ, **options, **preload}


if __name__ == "__main__":
    made = module(Path(sys.argv[1]).resolve())
    settings = environment(made.parent)
    names = (
        "LD_PRELOAD",
        "ASAN_OPTIONS",
        "AIRLLM_CUDA_MATMUL",
        "AIRLLM_TEST_NVRTC",
        "AIRLLM_TEST_NVRTC_COMPILER",
    )
    names += ("PYTHONPATH",)
    shown = " ".join(f"{name}='{settings[name]}'" for name in names if name in settings)
    print(f"env {shown} python -m pytest --noconftest {HERE}/checks_*.py")
