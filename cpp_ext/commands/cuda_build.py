"""Build tensor_ops_cuda: nvcc compiles the kernels; the C++ compiler compiles the bindings and links both.

The build needs no GPU. The CUDA runtime is linked statically and the driver is not linked, so every machine
can import the module.
"""

import os
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import CommandError, cpp_build, cuda_probes, gpu_build, probes

NAME = "tensor_ops_cuda"
COMMAND = ("build_cuda",)
DEFAULT_ARCHS = ("75", "80", "86", "89", "90", "100", "120")
OBJECTS = probes.CHECKOUT / "build" / "cuda"
NVCC_READS = ("NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")  # variables that change its output


def build(folder: Path, archs: Sequence[str] | None = None, force: bool = False) -> Path:
    """Build tensor_ops_cuda into `folder` and return the module's path; up-to-date files are kept.

    `archs` is such as ["90", "120"]; None means AIRLLM_CUDA_ARCHS, else those of DEFAULT_ARCHS that nvcc
    supports. Raises CommandError that lists all missing tools, or has a compiler's first error.
    """
    toolkit = prerequisites()
    calls = compile_calls(toolkit, gencode(choose_architectures(archs, toolkit.archs)))
    module = gpu_build.GpuModule(NAME, OBJECTS, sources(), partial(recipe, toolkit), run_compiler)
    system = ["-ldl", "-lrt", "-lpthread"] if sys.platform == "linux" else []
    return module.link(folder, module.compile(calls, force), [str(toolkit.cudart), *system])


def tools() -> probes.Tools:
    """The compilers of the kernels and of the bindings, and the driver that runs them."""
    nvcc, driver = cuda_probes.nvcc(), cuda_probes.driver()
    known = (f"compiles for: {', '.join(nvcc.details)}",) if nvcc else ()
    lines = (str(nvcc), *known, str(driver), *driver.details)
    return probes.Tools((nvcc, *probes.cpp_prerequisites()), "CUDA", lines)


def why_not_quick() -> str:
    """A quick run builds only if there is a driver to run the result."""
    if cuda_probes.driver():
        return ""
    return "--quick: compiling takes minutes, and there is no NVIDIA driver to run it with here"


def driver() -> probes.Finding:
    """The driver; without it, the backend cannot run."""
    return cuda_probes.driver()


def prerequisites() -> cuda_probes.Toolkit:
    """The toolkit, after the check that nothing is missing."""
    nvcc = cuda_probes.nvcc()
    toolkit = cuda_probes.toolkit(nvcc) if nvcc else None
    findings = (nvcc, *([cuda_probes.runtime(toolkit)] if toolkit else []), *probes.cpp_prerequisites())
    gpu_build.require(NAME, findings)
    assert toolkit
    return toolkit


# ---- architectures ----


def choose_architectures(archs: Sequence[str] | None, known: Sequence[str]) -> list[str]:
    """The architectures to compile for; CommandError that lists the known ones if nvcc lacks one."""
    asked = archs or split_architectures(os.environ.get("AIRLLM_CUDA_ARCHS", ""))
    if not asked:
        return [arch for arch in DEFAULT_ARCHS if arch in known]
    unknown = [arch for arch in asked if re.sub("[af]$", "", arch) not in known]
    if unknown:
        raise CommandError(f"nvcc does not know architecture {', '.join(unknown)}, known: {', '.join(known)}")
    return list(dict.fromkeys(asked))


def split_architectures(text: str) -> list[str]:
    """Parse "9.0;sm_100a" and other common spellings to ["90", "100a"]."""
    return [re.sub(r"^(sm|compute)_|\.", "", part) for part in re.split(r"[,;\s]+", text) if part]


def gencode(archs: Sequence[str]) -> list[str]:
    """nvcc's options for machine code of each architecture, and for PTX that the driver compiles: PTX of the
    last one for newer GPUs, of the first one for GPUs in between.
    """
    codes = [f"arch=compute_{arch},code=sm_{arch}" for arch in archs]
    codes += [f"arch=compute_{arch},code=compute_{arch}" for arch in dict.fromkeys((archs[0], archs[-1]))]
    return [option for code in codes for option in ("-gencode", code)]


# ---- calls ----


def compile_calls(toolkit: cuda_probes.Toolkit, archs: Sequence[str]) -> list[list[str]]:
    """A compiler call for each source file, without its output."""
    nvcc = [toolkit.nvcc, "-O3", "-std=c++17", "-Werror", "all-warnings", "--threads", "0", *host_compiler()]
    nvcc += ["-Xcompiler", "-fPIC,-fvisibility=hidden", *archs, "-c"]
    cxx = [*probes.cxx_command(), "-O2", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-DNDEBUG"]
    cxx += [f"-I{toolkit.include}", *cpp_build.includes()]
    cxx += [*cpp_build.user_flags("CPPFLAGS", "CFLAGS", "CXXFLAGS"), "-c"]
    kernels = sorted((probes.CPP_EXT / "cuda").rglob("*.cu"))
    return [[*nvcc, str(path)] for path in kernels] + [[*cxx, str(probes.CPP_EXT / f"{NAME}.cpp")]]


def host_compiler() -> list[str]:
    """Make CXX nvcc's host compiler, unless nvcc's variable NVCC_CCBIN names another."""
    if os.environ.get("NVCC_CCBIN") or not os.environ.get("CXX"):
        return []
    return ["-ccbin", probes.cxx_command()[0]]


def sources() -> list[Path]:
    """Every file whose change requires a rebuild."""
    return [*gpu_build.sources("cuda", NAME), Path(__file__)]


def recipe(toolkit: cuda_probes.Toolkit, call: list[str]) -> list[str]:
    """What a call's output depends on besides its sources."""
    variables = [f"{name}={os.environ.get(name)}" for name in NVCC_READS]
    return [*cpp_build.recipe(call), toolkit.version, *variables]


def run_compiler(call: list[str], target: Path) -> None:
    """Run a compiler call; add the remedy to nvcc's error about an unsupported host compiler."""
    try:
        cpp_build.finish(call, target)
    except CommandError as error:
        if "unsupported" in str(error) and "version" in str(error):
            raise CommandError(f"{error}\nset NVCC_CCBIN to a C++ compiler that this CUDA takes") from None
        raise
