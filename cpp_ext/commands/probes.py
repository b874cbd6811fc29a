"""Probes for the tools that build and run the backends: compilers, headers, toolkits, drivers, devices.

Every probe is a function that returns a `Finding` or another dataclass. If something is missing, it does not
raise: the result has the reason and the remedy. Standard library only: probes run before any install.
"""

import contextlib
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

from airllm.backends.config_schema import DEFINITIONS
from airllm.backends.declaration import Declaration
from airllm.backends.reasons import one_line

from . import compiler_options

CPP_EXT = Path(__file__).resolve().parents[1]
CHECKOUT = CPP_EXT.parent
EXT_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX") or ".so"


@dataclass(frozen=True)
class Finding:
    """The result of a probe: path and version, or why it cannot be used and the remedy."""

    what: str
    path: str = ""
    version: str = ""
    why_not: str = ""
    remedy: str = ""
    details: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.why_not

    def __str__(self) -> str:
        if self:
            return " ".join(
                part for part in (self.what, self.version, f"({self.path})" if self.path else "") if part
            )
        return f"{self.why_not}: {self.remedy}" if self.remedy else self.why_not


@dataclass(frozen=True)
class Tools:
    """The tools for a backend's build, found or missing, with the lines of a report under a title."""

    needs: tuple[Finding, ...]
    title: str = ""
    lines: tuple[str, ...] = ()

    @property
    def missing(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.needs if not finding)


def answer_of(command, timeout=60, **options) -> subprocess.CompletedProcess:
    """Run `command` and return its output; if it cannot start, status 127 and the reason."""
    try:
        return subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout, **options
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


# ---- C++ ----

CXX_NAMES = ("clang-cl",) if sys.platform == "win32" else ("g++", "c++", "clang++")


def cxx_command() -> list[str]:
    """The C++ compiler's command: $CXX with its options, else the first of CXX_NAMES on PATH, else []."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    return next(([name] for name in CXX_NAMES if shutil.which(name)), [])


def compiler(command: list[str]) -> Finding:
    """Path and version of a compiler, given as a command such as ["g++"]."""
    path = shutil.which(command[0]) if command else None
    if not path:
        wanted = (
            f"CXX={command[0]} is not on PATH"
            if command
            else f"no C++ compiler on PATH ({', '.join(CXX_NAMES)})"
        )
        return Finding("C++ compiler", why_not=wanted, remedy="apt-get install g++, or set CXX")
    if why_not := compiler_options.why_unusable(command):
        return Finding("C++ compiler", path, why_not=why_not, remedy=compiler_options.CLANG_CL)
    answer = answer_of([*command, "--version"])
    if answer.returncode:
        reason = f"{path} --version fails: {first_line(answer.stderr)}"
        return Finding("C++ compiler", path, why_not=reason, remedy="apt-get install g++, or set CXX")
    return Finding("C++ compiler", path, first_line(answer.stdout))


def compilers() -> list[Finding]:
    """All C++ compilers that a build could use; the one it uses comes first."""
    commands = [cxx_command(), *([name] for name in CXX_NAMES if shutil.which(name))]
    unique = {tuple(command): compiler(command) for command in commands}
    return list(unique.values())


def python_headers() -> Finding:
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if header.is_file():
        return Finding("Python headers", str(header.parent), sysconfig.get_python_version())
    reason = f"{header} is missing"
    return Finding("Python headers", why_not=reason, remedy="apt-get install python3-dev")


def pybind11() -> Finding:
    """The folder of pybind11's headers, as installed for this Python."""
    spec = importlib.util.find_spec("pybind11")
    if spec is None or not spec.submodule_search_locations:
        return Finding("pybind11", why_not="pybind11 is not installed", remedy="pip install pybind11")
    found = answer_of(
        [sys.executable, "-c", "import pybind11 as p; print(p.__version__); print(p.get_include())"]
    )
    if found.returncode:
        reason = f"pybind11 cannot be imported: {last_line(found.stderr)}"
        return Finding("pybind11", why_not=reason, remedy="pip install --force-reinstall pybind11")
    version, include = found.stdout.splitlines()
    return Finding("pybind11", include, version)


OPENMP_PROGRAM = "#include <omp.h>\nint main() { return omp_get_max_threads() > 0 ? 0 : 1; }\n"


def openmp(command: list[str]) -> Finding:
    """Whether this compiler can compile and link an OpenMP program with -fopenmp."""
    if not (found := compiler(command)):
        return Finding("OpenMP", why_not=found.why_not, remedy=found.remedy)
    with tempfile.TemporaryDirectory() as folder:
        answer = _compile_program(command, OPENMP_PROGRAM, Path(folder), ["-fopenmp"])
    if answer.returncode == 0:
        return Finding("OpenMP", version="-fopenmp")
    reason = f"-fopenmp does not compile and link: {first_error(answer.stderr)}"
    return Finding("OpenMP", why_not=reason, remedy="apt-get install g++ (libgomp) or libomp-dev (clang++)")


def cpp_prerequisites() -> list[Finding]:
    """The tools for a build of tensor_ops_cpp; those that are false are missing."""
    return [compiler(cxx_command()), python_headers(), pybind11()]


def _compile_program(command, source, folder: Path, options) -> subprocess.CompletedProcess:
    (folder / "probe.cpp").write_text(source)
    return answer_of([*command, *options, str(folder / "probe.cpp"), "-o", str(folder / "probe")])


def first_line(text: str) -> str:
    return next(iter(text.strip().splitlines()), "")


def last_line(text: str) -> str:
    return next(reversed(text.strip().splitlines()), "")


def first_error(log: str) -> str:
    """The first line of a compiler's log with an error, else its first line."""
    return next((line.strip() for line in log.splitlines() if "error" in line.lower()), first_line(log))


# ---- the CPU ----

X86_FEATURES = ("sse2", "avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")
CPUID_PROGRAM = (
    "#include <cstdio>\n"
    "int main() {\n"
    "#if defined(__x86_64__) || defined(__i386__)\n"
    "  __builtin_cpu_init();\n"
    + "".join(f'  if (__builtin_cpu_supports("{name}")) std::puts("{name}");\n' for name in X86_FEATURES)
    + "#elif defined(__ARM_NEON)\n"
    '  std::puts("neon");\n'
    "#endif\n"
    "}\n"
)


@dataclass(frozen=True)
class Cpu:
    """The instruction sets of this CPU from two sources; None for one that is not available."""

    model: str
    by_cpuid: tuple[str, ...] | None
    by_cpuinfo: tuple[str, ...] | None

    @property
    def disagreement(self) -> tuple[str, ...]:
        """Features that only one of the two reports."""
        if self.by_cpuid is None or self.by_cpuinfo is None:
            return ()
        return tuple(sorted(set(self.by_cpuid) ^ set(self.by_cpuinfo)))


def cpu() -> Cpu:
    """This CPU, from cpuid (a compiled probe) and py-cpuinfo, else from the kernel."""
    info = _by_py_cpuinfo()
    model, flags = info if info else ("", None)
    return Cpu(model or _kernel_says("model name") or platform.machine(), _by_cpuid(), flags)


def _by_cpuid() -> tuple[str, ...] | None:
    with tempfile.TemporaryDirectory() as folder:
        built = _compile_program(cxx_command(), CPUID_PROGRAM, Path(folder), ["-O1"])
        answer = answer_of([str(Path(folder) / "probe")]) if built.returncode == 0 else built
    return tuple(answer.stdout.split()) if answer.returncode == 0 else None


def _by_py_cpuinfo() -> tuple[str, tuple[str, ...]] | None:
    """Model and features from py-cpuinfo, in a separate process, since it starts processes itself."""
    program = "import cpuinfo, json; print(json.dumps(cpuinfo.get_cpu_info()))"
    answer = answer_of([sys.executable, "-c", program])
    if answer.returncode:
        return None
    info = json.loads(answer.stdout)
    flags = ["neon" if flag == "asimd" else flag for flag in info.get("flags", ())]
    known = (*X86_FEATURES, "neon")
    return info.get("brand_raw", ""), tuple(name for name in known if name in flags)


def _kernel_says(key: str) -> str:
    """A value of /proc/cpuinfo, "" if there is none."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(key):
                return line.partition(":")[2].strip()
    return ""


# ---- what is built ----

# Backends in Python also need the package airllm: the installed one, or else the checkout's.
# The device comes first: without NumPy nothing can be tried, and NumPy must not be reported as the reason.
MODULE_PROGRAM = """
import importlib, json, os.path, sys
sys.path.insert(0, sys.argv[1])
sys.path.append(os.path.dirname(sys.argv[1]))
try:
    module = importlib.import_module(sys.argv[2])
    module.device()
    from airllm.backends import proof
    print(json.dumps(["", proof.prove_device(module)]))
except Exception as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


NOT_BUILT = "it is not built"


def module(name: str, folder: Path = CPP_EXT, remedy: str = "") -> Finding:
    """A backend module that computes correctly, with its device as version; or why it does not.

    Runs in a separate process, since drivers may crash. `remedy` is for a package that is not installed.
    """
    command = [sys.executable, "-c", MODULE_PROGRAM, str(folder), name]
    # Run it outside the checkout, whose folders would be importable, and ignore the configured backend.
    environment = {**os.environ, "AIRLLM_BACKEND": DEFINITIONS}
    answer = answer_of(command, timeout=600, cwd=sys.prefix, env=environment)
    if answer.returncode:
        reason = last_line(answer.stderr) or f"ends with status {answer.returncode}"
        return Finding(name, why_not=reason)
    kind, text = json.loads(last_line(answer.stdout))
    if not kind:
        return Finding(name, version=text)
    missing = kind == "ModuleNotFoundError"
    if missing and f"'{name}'" in text:
        return Finding(name, why_not=NOT_BUILT)
    return Finding(name, why_not=one_line(text) or kind, remedy=remedy if missing else "")


def backend(own: Declaration) -> Finding:
    """`module` for a backend, from its declaration."""
    return numpy() if own.definitions else module(own.module, remedy=own.how_to_get())


def numpy() -> Finding:
    answer = answer_of([sys.executable, "-c", "import numpy; print(numpy.__version__)"])
    if answer.returncode == 0:
        return Finding("NumPy", version=f"NumPy {last_line(answer.stdout)}")
    return Finding("NumPy", why_not="NumPy is not installed", remedy="pip install numpy")
