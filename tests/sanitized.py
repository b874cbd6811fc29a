"""The Python extension under sanitizers: python -m tests.sanitized address|thread [TESTS...]

`address` is address and undefined sanitizer; `make sanitize` runs it, and the thread pool alone under thread
sanitizer. Builds tensor_ops_cpp into build/sanitized/KIND, in some minutes at first, and runs tests with it,
each file in a process of its own: a report ends that process, and the other files still run. A line says what
came of each.
Of leaks only those count whose memory the extension took: Python keeps much until it ends. Of races only
those in which the extension takes part: what Python and NumPy read and write themselves is not seen.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from cpp_ext.commands import cpp_build, probes

ROOT = Path(__file__).parents[1]
MADE = ROOT / "build" / "sanitized"
# Unoptimized: of optimized code with checks at each access to memory, a compiler takes many times as long.
_COMMON = ["-O0", "-g1", "-UNDEBUG", "-fno-omit-frame-pointer"]
# No file takes as long, in seconds, where two processors are there for it.
LIMIT = 3600
# Their libraries cannot be loaded beside a sanitizer, or take what it needs.
_ABSENT = ("pyopencl", "wgpu", "mlx")


@dataclass(frozen=True)
class Sanitizer:
    """How to compile with it, what to load before Python, its options, and the tests that are for it."""

    flags: list[str]
    libraries: tuple[str, ...]
    options: dict[str, str]
    log: str  # that of them which takes the path of its reports
    tests: list[str]
    build: dict[str, str] = field(default_factory=dict)


SANITIZERS = {
    "address": Sanitizer(
        # the kernels read unaligned words on purpose, by types that say so to the compiler
        flags=["-fsanitize=address,undefined", "-fno-sanitize=vptr,alignment"],
        libraries=("libasan.so", "libstdc++.so"),
        options={
            "ASAN_OPTIONS": "detect_leaks=1:exitcode=0:halt_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "LSAN_OPTIONS": "exitcode=0",
        },
        log="ASAN_OPTIONS",
        tests=[
            *(
                "tests/ops/test_norms.py",
                "tests/ops/test_attention_arrays.py",
                "tests/ops/test_formats.py",
                "tests/ops/test_quantized.py",
            ),
            *(
                "tests/ops/test_linear.py",
                "tests/engine/native_calls",
                "tests/engine/persistent_kernel",
            ),
            *("tests/files/test_gguf_file.py", "tests/files/test_safetensors_folder.py"),
            # the others end processes, and take memory, on purpose
            "tests/fuzz/test_fuzz.py::test_no_input_of_a_short_run_is_a_finding",
            "tests/sanitized_threads.py",
        ],
    ),
    "thread": Sanitizer(
        # without AVX-512, whose kernels are those of AVX2 with other vectors: the threads are the same
        flags=["-fsanitize=thread", "-DAIRLLM_WITHOUT_AVX512"],
        libraries=("libtsan.so", "libstdc++.so"),
        options={
            # a child of a fork goes on, as Python's do; the threads of the pool wait until the process ends
            "TSAN_OPTIONS": "halt_on_error=0:exitcode=0:die_after_fork=0:report_thread_leaks=0:"
            "report_signal_unsafe=0:history_size=4",
            "OPENBLAS_NUM_THREADS": "1",  # how NumPy's own library waits for its threads is not seen
            "AIRLLM_NUM_THREADS": "4",  # more than many machines have processors: threads wait for each other
        },
        log="TSAN_OPTIONS",
        tests=[
            *("tests/sanitized_threads.py", "tests/ops/test_linear.py", "tests/ops/test_attention_arrays.py"),
            *("tests/engine/native_calls", "tests/engine/persistent_kernel"),
            *("tests/engine/scheduling", "tests/memory/test_larger_than_memory.py"),
        ],
        # libgomp waits by calls of the system, which the sanitizer does not see
        build={"AIRLLM_WITH_OPENMP": "0"},
    ),
}


def build(kind: str) -> Path:
    """The folder with the extension; built if it is not up to date."""
    os.environ.update(SANITIZERS[kind].build, CXXFLAGS=" ".join([*_COMMON, *SANITIZERS[kind].flags]))
    return cpp_build.build(MADE / kind).parent


def environment(kind: str) -> dict[str, str]:
    """What a Python process needs to import that extension, and no backend that does not go with it."""
    folder, of = build(kind), SANITIZERS[kind]
    for name in _ABSENT:
        (folder / f"{name}.py").write_text('raise ImportError("not beside a sanitizer")\n')
    for report in folder.glob("report*"):
        report.unlink()
    paths = [folder, ROOT, ROOT / "cpp_ext", *filter(None, [os.environ.get("PYTHONPATH")])]
    preload = " ".join(map(compilers_library, of.libraries))
    own = {
        "LD_PRELOAD": preload,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "AIRLLM_TEST_REQUIRE": "cpp",
    }
    return {**os.environ, **of.options, **own, "PYTHONMALLOC": "malloc", "AIRLLM_TUNING": "off"}


def compilers_library(name: str) -> str:
    """The path of a library that the compiler brings."""
    command = [*probes.cxx_command(), f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def own_reports(kind: str, name: str = "report") -> list[str]:
    """Reports of errors, of races with the extension, and of leaks of memory that the extension took itself,
    but for Python's modules. `name`: how the files of reports begin.
    """
    found = []
    for path in sorted((MADE / kind).glob(f"{name}.*")):
        for part in re.split(r"\n(?=(?:Direct|Indirect) leak|=+\n)", path.read_text()):
            if re.match(r"(Direct|Indirect) leak", part):
                if "tensor_ops_cpp" in part and "PyInit" not in part:
                    found.append(part)
            elif "WARNING: ThreadSanitizer" in part:
                if "tensor_ops_cpp" in part:
                    found.append(part)
            elif re.search(r"ERROR: AddressSanitizer|runtime error:", part):
                found.append(part)
    return found


def files(tests: list[str]) -> Iterator[str]:
    """Each test or file of tests; of a folder each file in it."""
    for test in tests:
        folder = ROOT / test
        inside = sorted(folder.rglob("test_*.py")) if folder.is_dir() else []
        yield from (path.relative_to(ROOT).as_posix() for path in inside)
        if not inside:
            yield test


def run(kind: str, number: int, test: str, variables: dict[str, str]) -> tuple[bool, str]:
    """Run a test, or a file of them, in a process of its own: whether nothing is wrong, and what came of it.
    Prints what pytest and the sanitizer say otherwise.
    """
    of, report = SANITIZERS[kind], f"report{number}"
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    logged = {of.log: f"{of.options[of.log]}:log_path={MADE / kind / report}"}
    try:
        done = subprocess.run(
            call, env={**variables, **logged}, cwd=ROOT, timeout=LIMIT, stdout=subprocess.PIPE, text=True
        )
    except subprocess.TimeoutExpired:
        return False, f"has not ended after {LIMIT} s"
    reports = own_reports(kind, report)
    passed = not done.returncode and not reports
    if not passed:
        print(done.stdout, *reports, sep="\n")
    counts = "".join(done.stdout.splitlines()[-1:])
    return passed, f"{counts}, status {done.returncode}, {len(reports) or 'no'} reports"


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1] not in SANITIZERS:
        print(__doc__, file=sys.stderr)
        return 2
    kind, *arguments = sys.argv[1:]
    variables, failed = environment(kind), []
    for number, test in enumerate(files(arguments or SANITIZERS[kind].tests)):
        passed, outcome = run(kind, number, test, variables)
        print(f"{test}: {outcome}", flush=True)
        failed += [] if passed else [test]
    print(f"{kind} sanitizer: FAILED: {' '.join(failed)}" if failed else f"{kind} sanitizer: no report")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
