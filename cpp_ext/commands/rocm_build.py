"""Build tensor_ops_rocm: hipcc compiles the kernels of the CUDA backend for AMD's GPUs; the C++ compiler
compiles the bindings, with HIP's names for CUDA's runtime, and links both.

The build needs no GPU. The module needs HIP's library, libamdhip64, where it runs.
"""

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import CommandError, cpp_build, probes, rocm_probes, stamps

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
    OBJECTS.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(calls)) as pool:
        objects = list(pool.map(lambda call: compile_object(call, toolkit, force), calls))
    return link_module(folder, toolkit, objects)


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
    missing = [str(finding) for finding in findings if not finding]
    toolkit = rocm_probes.toolkit(hipcc) if hipcc else None
    if missing or not toolkit:
        raise CommandError("\n  ".join([f"{NAME} cannot be built here", *missing]))
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
    """Every file whose change requires a rebuild; any source may include any header."""
    headers = [path for path in cpp_build.files_below("bindings", "cpu", "ops") if path.suffix == ".h"]
    modules = [probes.CPP_EXT / f"{name}.cpp" for name in (NAME, "tensor_ops_cuda")]
    return [*cpp_build.files_below("cuda", "gpu_kernels"), *headers, *modules, Path(__file__)]


def recipe(call: list[str], toolkit: rocm_probes.Toolkit) -> list[str]:
    """What a call's output depends on besides its sources."""
    return [*cpp_build.recipe(call), toolkit.version]


def compile_object(call: list[str], toolkit: rocm_probes.Toolkit, force: bool) -> Path:
    """The object file of a compiler call. Its name has a hash of the recipe: other options, other object."""
    target = OBJECTS / f"{Path(call[-1]).stem}-{stamps.digest(recipe(call, toolkit))[:12]}.o"
    if force or not cpp_build.is_newer(target, sources()):
        cpp_build.finish(call, target)
    return target


def link_module(folder: Path, toolkit: rocm_probes.Toolkit, objects: list[Path]) -> Path:
    """Link the module from these objects, unless it is up to date."""
    target = folder / (NAME + probes.EXT_SUFFIX)
    libraries = [f"-L{toolkit.library}", f"-Wl,-rpath,{toolkit.library}", "-lamdhip64", "-ldl", "-lpthread"]
    call = [*probes.cxx_command(), *cpp_build.SHARED, *map(str, objects), *libraries]
    call += cpp_build.user_flags("LDFLAGS")
    made_of = stamps.digest(recipe(call, toolkit), objects)
    if stamps.is_current(target, made_of):
        print(f"{NAME}: {target} is up to date")
        return target
    folder.mkdir(parents=True, exist_ok=True)
    cpp_build.finish(call, target)
    stamps.keep(target, made_of)
    return target
