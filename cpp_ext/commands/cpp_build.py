"""Build tensor_ops_cpp, without a build system.

It compiles as the manual call in BACKEND_GUIDE.md does, with OpenMP if the compiler supports it and
AIRLLM_WITH_OPENMP=0 does not forbid it. That call
compiles the kernels for one instruction set after the other; here the slow ones are separate files, compiled
in parallel.
"""

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import CommandError, compiler_options, probes, stamps

NAME = "tensor_ops_cpp"
COMMAND = ("build_ext", "--inplace")
IN_EVERY_INSTALL = True
TARGETS = probes.CPP_EXT / "cpu" / "targets"
SOURCES = [probes.CPP_EXT / "tensor_ops_cpp.cpp", TARGETS / "avx512.cpp", TARGETS / "avx2.cpp"]
SHARED = [*compiler_options.spelling_of([]).link]


def build(folder: Path, force: bool = False) -> Path:
    """Build tensor_ops_cpp into `folder` unless it is up to date; return its path.

    Raises CommandError that lists all missing tools, or has the compiler's first error.
    """
    target = folder / (NAME + probes.EXT_SUFFIX)
    (compiler, linker), libraries = calls(), library_options()
    made_of = stamps.digest(recipe([*compiler, *linker, *libraries]), sources())
    if not force and stamps.is_current(target, made_of):
        print(f"{NAME}: {target} is up to date")
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="airllm-objects-") as objects:
        finish([*linker, *compile_sources(compiler, Path(objects)), *libraries], target)
    stamps.keep(target, made_of)
    (folder / f"{NAME}.py").unlink(missing_ok=True)  # the note of an earlier install without a compiler
    return target


def tools() -> probes.Tools:
    """The compiler and the headers; `test_capabilities` lists them under C++."""
    return probes.Tools(tuple(probes.cpp_prerequisites()))


def sources() -> list[Path]:
    """Every file whose change requires a rebuild, including this one."""
    return [SOURCES[0], *files_below("bindings", "cpu", "ops"), Path(__file__)]


def files_below(*folders: str) -> list[Path]:
    """Every file in these folders of cpp_ext/, recursively."""
    return sorted(path for name in folders for path in (probes.CPP_EXT / name).rglob("*.*") if path.is_file())


def compile_sources(call: list[str], folder: Path) -> list[str]:
    """Compile all sources to objects in `folder`, in as many processes as there are CPUs; return the objects.

    Starts no further compilation after one has failed.
    """
    failed = threading.Event()

    def compile_one(source: Path) -> str:
        target = folder / f"{source.stem}.o"
        try:
            if not failed.is_set():
                finish([*call, str(source)], target)
        except CommandError:
            failed.set()
            raise
        return str(target)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_one, SOURCES))


def calls() -> tuple[list[str], list[str]]:
    """Two compiler calls without their files and output: to compile a source, and to link objects."""
    missing = [finding for finding in probes.cpp_prerequisites() if not finding]
    if missing:
        reasons = "\n".join(f"  {finding}" for finding in missing)
        raise CommandError(f"{NAME} cannot be built here\n{reasons}")
    cxx = probes.cxx_command()
    spelling, openmp = compiler_options.spelling_of(cxx), openmp_options(cxx)
    preprocessor, options = user_flags("CPPFLAGS"), user_flags("CFLAGS", "CXXFLAGS")
    flags = [*spelling.compile, *openmp, "-DAIRLLM_SETS_APART", *includes(spelling)]
    compiler = [*cxx, *flags, *preprocessor, *options, spelling.alone]
    return compiler, [*cxx, *openmp, *spelling.link, *options]


def openmp_options(cxx: list[str]) -> list[str]:
    """OpenMP places threads as OMP_PLACES says; without it they run where the system puts them."""
    if os.environ.get("AIRLLM_WITH_OPENMP") == "0" or compiler_options.is_clang_cl(cxx):
        return []
    openmp = probes.openmp(cxx)
    if not openmp:
        print(f"{NAME}: building without OpenMP, whose OMP_PLACES is ignored: {openmp}", file=sys.stderr)
    return ["-fopenmp"] if openmp else []


def library_options() -> list[str]:
    return compiler_options.linker_options(probes.cxx_command(), user_flags("LDFLAGS"))


def recipe(call: list[str]) -> list[str]:
    """What a call's output depends on besides its sources: its options and the versions of its tools.

    The headers of Python and pybind11 count by version: each build by pip has them in another folder.
    """
    by_version = includes(compiler_options.spelling_of(probes.cxx_command()))
    options = [part for part in call if part not in by_version]
    return [*options, str(probes.compiler(probes.cxx_command())), sys.version, probes.pybind11().version]


def includes(spelling: compiler_options.Spelling = compiler_options.GNU) -> list[str]:
    """Options for the headers of Python and pybind11."""
    folders = (sysconfig.get_path("include"), sysconfig.get_path("platinclude"), probes.pybind11().path)
    return [f"{spelling.include}{folder}" for folder in dict.fromkeys(folders)]


def user_flags(*names: str) -> list[str]:
    """The options in these environment variables; they come last, so they take precedence."""
    return [flag for name in names for flag in shlex.split(os.environ.get(name, ""))]


def finish(call: list[str], target: Path) -> None:
    """Run a compiler call that makes `target`, and rename its output: a file in use is not overwritten."""
    half = target.with_name(f".{target.name}.{os.getpid()}")
    call = compiler_options.with_output(call, str(half))
    print(shlex.join(call), flush=True)
    answer = subprocess.run(call, stderr=subprocess.PIPE, text=True, errors="replace")
    sys.stderr.write(answer.stderr)
    if answer.returncode:
        half.unlink(missing_ok=True)
        reason = probes.first_error(answer.stderr)
        raise CommandError(f"{call[0]} failed with exit status {answer.returncode}: {reason}")
    half.replace(target)
    for suffix in (".lib", ".exp"):  # what Windows' linker leaves for those who would link the module
        half.with_suffix(suffix).unlink(missing_ok=True)


def is_newer(target: Path, than: list[Path]) -> bool:
    """Whether `target` exists and is newer than every file of `than`."""
    return target.is_file() and target.stat().st_mtime > max(path.stat().st_mtime for path in than)
