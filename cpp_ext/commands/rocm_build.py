"""Build tensor_ops_rocm: hipcc compiles the kernels of the CUDA backend for AMD's GPUs; the C++ compiler
compiles the bindings, with HIP's names for CUDA's runtime, and links both.

The build needs no GPU. The module needs HIP's library, libamdhip64, where it runs.
"""

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from . import CommandError, cpp_build, gpu_build, probes, rocm_probes

NAME = "tensor_ops_rocm"
COMMAND = ("build_hip",)
OBJECTS = probes.CHECKOUT / "build" / "hip"
NAMES = probes.CPP_EXT / "cuda" / "hip"


def build(folder: Path, archs: Sequence[str] | None = None, force: bool = False) -> Path:
    """Build tensor_ops_rocm into `folder` and return the module's path; up-to-date files are kept.

    `archs` is such as ["gfx90a", "gfx1030"]; None means AIRLLM_HIP_ARCHS, else all that hipcc knows. Raises
    CommandError that lists all missing tools, or has a compiler's first error.
    """
    toolkit = prerequisites()
    calls = compile_calls(toolkit, choose_architectures(archs, toolkit.hipcc))
    module = gpu_build.GpuModule(NAME, OBJECTS, sources(), partial(recipe, toolkit))
    libraries = [f"-L{toolkit.library}", f"-Wl,-rpath,{toolkit.library}", "-lamdhip64", "-ldl", "-lpthread"]
    return module.link(folder, module.compile(calls, force), libraries)


def tools() -> probes.Tools:
    """The compilers of the kernels and of the bindings, and the driver that runs them."""
    hipcc, driver = rocm_probes.hipcc(), rocm_probes.driver()
    return probes.Tools((hipcc, *probes.cpp_prerequisites()), "HIP", (str(hipcc), str(driver)))


def why_not_quick() -> str:
    """A quick run builds only if there is a driver to run the result."""
    if rocm_probes.driver():
        return ""
    return "--quick: compiling takes minutes, and there is no AMD driver to run it with here"


def driver() -> probes.Finding:
    """The driver; without it, the backend cannot run."""
    return rocm_probes.driver()


def prerequisites() -> rocm_probes.Toolkit:
    """The toolkit, after the check that nothing is missing."""
    hipcc = rocm_probes.hipcc()
    findings = (hipcc, *([rocm_probes.runtime(hipcc)] if hipcc else []), *probes.cpp_prerequisites())
    gpu_build.require(NAME, findings)
    toolkit = rocm_probes.toolkit(hipcc)
    assert toolkit
    return toolkit


def choose_architectures(archs: Sequence[str] | None, hipcc: str) -> list[str]:
    """The GPUs to compile for; CommandError with the compiler's reason if it does not know one."""
    asked = archs or split_architectures(os.environ.get("AIRLLM_HIP_ARCHS", ""))
    if not asked:
        return rocm_probes.known_archs(hipcc)
    reasons = {arch: rocm_probes.why_not_for(hipcc, arch) for arch in dict.fromkeys(asked)}
    if unknown := {arch: why for arch, why in reasons.items() if why}:
        known = ", ".join(rocm_probes.known_archs(hipcc))
        what = "; ".join(f"{arch}: {why}" for arch, why in unknown.items())
        raise CommandError(f"hipcc does not compile for {what}; it compiles for: {known}")
    return list(reasons)


def split_architectures(text: str) -> list[str]:
    return [part for part in re.split(r"[,;\s]+", text) if part]


def compile_calls(toolkit: rocm_probes.Toolkit, archs: Sequence[str]) -> list[list[str]]:
    """A compiler call for each source file, without its output."""
    shared = ["-std=c++17", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wno-unused-result", f"-I{NAMES}"]
    hipcc = [toolkit.hipcc, "-x", "hip", "-O3", *shared, "-Werror"]
    hipcc += [f"--offload-arch={arch}" for arch in archs]
    hipcc += [f'-DAIRLLM_HIP_ARCHS="{", ".join(archs)}"', *cpp_build.user_flags("HIPFLAGS"), "-c"]
    cxx = [*probes.cxx_command(), "-O2", *shared, "-DNDEBUG", "-D__HIP_PLATFORM_AMD__"]
    cxx += [f"-I{toolkit.include}", *cpp_build.includes()]
    cxx += [*cpp_build.user_flags("CPPFLAGS", "CFLAGS", "CXXFLAGS"), "-c"]
    kernels = sorted((probes.CPP_EXT / "cuda").rglob("*.cu"))
    return [[*hipcc, str(path)] for path in kernels] + [[*cxx, str(probes.CPP_EXT / f"{NAME}.cpp")]]


def sources() -> list[Path]:
    """Every file whose change requires a rebuild: the bindings are those of the CUDA backend."""
    return [*gpu_build.sources("cuda", NAME, "tensor_ops_cuda"), Path(__file__)]


def recipe(toolkit: rocm_probes.Toolkit, call: list[str]) -> list[str]:
    """What a call's output depends on besides its sources."""
    return [*cpp_build.recipe(call), toolkit.version]
