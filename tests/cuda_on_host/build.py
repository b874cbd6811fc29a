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


def module(folder: Path) -> Path:
    """Builds module and cuBLAS stand-in into `folder`, which is then the place to import from."""
    toolkit = cuda_probes.toolkit(cuda_probes.nvcc())
    cxx = [*probes.cxx_command(), *FLAGS, *(["-fsanitize=address"] if sanitizer() else [])]
    include = [f"-I{path}" for path in (HERE, toolkit.include)] + cpp_build.includes()
    kernels = ["-D__CUDA_ARCH_LIST__=0", "-include", str(HERE / "kernels_on_host.h"), "-x", "c++"]
    calls = {
        "kernels.o": [*cxx, *include, *kernels, "-c", str(CPP_EXT / "cuda" / "launch" / "kernels.cu")],
        "runtime.o": [*cxx, *include, "-c", str(HERE / "runtime_on_host.cpp")],
        "graphs.o": [*cxx, *include, "-c", str(HERE / "graphs_on_host.cpp")],
        "module.o": [*cxx, *include, "-c", str(CPP_EXT / "tensor_ops_cuda.cpp")],
    }
    with ThreadPoolExecutor(len(calls)) as pool:
        list(pool.map(lambda item: run([*item[1], "-o", str(folder / item[0])]), calls.items()))
    made = folder / ("tensor_ops_cuda" + probes.EXT_SUFFIX)
    run([*cxx, "-shared", *(str(folder / name) for name in calls), "-ldl", "-lpthread", "-o", str(made)])
    cublas = folder / "nvidia" / "cu13" / "lib" / "libcublas.so.13"  # where pip would have put it
    cublas.parent.mkdir(parents=True, exist_ok=True)
    source = str(HERE / "cublas_on_host.cpp")
    run([*probes.cxx_command(), *FLAGS, "-shared", "-Wl,-soname,libcublas.so.13", source, "-o", str(cublas)])
    return made


def run(call: list[str]) -> None:
    answer = subprocess.run(call, capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(f"{' '.join(call)}\n{answer.stderr}")


def environment(folder: Path) -> dict[str, str]:
    """What a Python process needs to import the module from `folder`."""
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    options = {"ASAN_OPTIONS": "detect_leaks=0", "AIRLLM_CUDA_MATMUL": "tiled", "PYTHONPATH": path}
    options["AIRLLM_TEST_REQUIRE"] = "cuda"  # pip's PoCL cannot be loaded beside address sanitizer
    preload = {"LD_PRELOAD": sanitizer()} if sanitizer() else {}
    return {**os.environ, **options, **preload}


if __name__ == "__main__":
    made = module(Path(sys.argv[1]).resolve())
    settings = environment(made.parent)
    names = ("LD_PRELOAD", "ASAN_OPTIONS", "AIRLLM_CUDA_MATMUL", "PYTHONPATH")
    shown = " ".join(f"{name}='{settings[name]}'" for name in names if name in settings)
    print(f"env {shown} python -m pytest --noconftest {HERE}/checks_*.py")
