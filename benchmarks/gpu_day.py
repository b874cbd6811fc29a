"""Everything to do on the day a GPU is there: build, test and measure its backends, within minutes.

    python benchmarks/gpu_day.py                                # at most 8 minutes
    python benchmarks/gpu_day.py --llama-cpp peers/bin/python   # an interpreter that has llama-cpp-python
    python benchmarks/gpu_day.py --backends opencl              # this backend, on a processor too

Builds the backends of GPUs whose driver is here, for the GPU that is here; runs their tests; times the ops,
on CUDA beside PyTorch and CuPy; and decodes a model on each of them, on the processor, and in llama.cpp. Each
step is a process with a limit of its own, and none begins after the time is up. Writes one folder, by default
results/gpu_day_DATE: summary.md says what was measured, and what was not and why; beside it are the output
and the figures of each step. The exit status is 1 if no backend of a GPU runs, or if a step fails.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from airllm import tensor_ops  # noqa: F401  declares the ops
from airllm.backends import registry
from airllm.backends.declaration import shipped
from airllm.bench import model_benchmark
from airllm.files.hub import ModelNotFound, locate
from benchmarks import record
from benchmarks.engine_peers import Engine, NoEngine
from cpp_ext.commands import probes
from cpp_ext.commands.recipes import module_recipes

ROOT = Path(__file__).resolve().parents[1]
MINUTES = 8.0
# Seconds that a step may take of the whole; the rest is for the next ones.
BUILD, TESTS, OPS, DECODE = 180.0, 150.0, 100.0, 60.0
TOKENS = 64  # that are decoded
PROMPT = "The history of the city begins"
_TESTS = (
    "tests/ops/test_ops.py",
    "tests/engine/devices/test_on_device.py",
    "tests/engine/test_stored_formats.py",
)
_TESTS_OF = {"cuda": ("tests/backends/test_cuda_gpu.py",)}


@dataclass
class Step:
    """What was done, or why it was not: `command`, its exit status, seconds, and the last line it printed."""

    name: str
    why_not: str = ""
    command: list[str] = field(default_factory=list)
    status: int = 0
    seconds: float = 0.0
    last_line: str = ""

    @property
    def verdict(self) -> str:
        if self.why_not:
            return "not done"
        return "done" if self.status == 0 else f"failed with status {self.status}"


class Day:
    """The steps within a number of seconds, and the folder of their output."""

    def __init__(self, seconds: float, folder: Path):
        self._end, self.folder = time.monotonic() + seconds, folder
        self.steps: list[Step] = []
        folder.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        """Seconds until the time is up."""
        return max(self._end - time.monotonic(), 0.0)

    def leave_out(self, name: str, why_not: str) -> None:
        """Say why a step is not done."""
        self.steps.append(Step(name, why_not))
        print(f"{name}: not done: {why_not}", flush=True)

    def run(self, name: str, command: Sequence[str], limit: float, **environment: str) -> Step:
        """Run a program for at most `limit` seconds; its output goes to a file with the step's name."""
        limit = min(limit, self.left())
        if limit < 1:
            self.leave_out(name, "the time was up")
            return self.steps[-1]
        print(f"{name}: {' '.join(command)}", flush=True)
        step = Step(name, command=list(command))
        self.steps.append(step)
        start, path = time.monotonic(), self.folder / f"{name.replace(' ', '_')}.txt"
        with path.open("w") as output:
            settings = {**_environment(), **environment}
            process = subprocess.Popen(
                list(command),
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=settings,
                start_new_session=True,
            )
            try:
                step.status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # with what it started
                process.wait()
                step.why_not = f"it took more than {limit:.0f} s"
        step.seconds = time.monotonic() - start
        lines = path.read_text(errors="replace").strip().splitlines()
        step.last_line = lines[-1] if lines else ""
        print(f"  {step.verdict} after {step.seconds:.0f} s: {step.why_not or step.last_line}", flush=True)
        return step


def main() -> int:
    given = options()
    day = Day(given.minutes * 60, given.output)
    build(day)
    here = gpus(day, given.backends)
    rows: list[dict[str, Any]] = []
    if here:
        run_tests(day, here)
        time_ops(day, here)
        rows = decode(day, [*here, "cpp"], given.model, given.llama_cpp)
    write_summary(day, here, rows)
    return int(not here or any(step.status for step in day.steps))


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="in all (default: %(default)g)")
    parser.add_argument("--backends", help="only these, a comma list; on a processor too")
    parser.add_argument("--model", default="smollm2", help="what is decoded (default: %(default)s)")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    folder = record.RESULTS / f"gpu_day_{time.strftime('%Y-%m-%d')}"
    parser.add_argument("--output", type=Path, default=folder, help="folder (default: %(default)s)")
    given = parser.parse_args()
    given.backends = given.backends.split(",") if given.backends else None
    given.output = given.output.resolve()
    return given


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "cpp_ext"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "AIRLLM_TUNING": "off"}


# ------------------------------------------------------------------------------------------------ steps


def of_gpus() -> Iterator[str]:
    """The names of all backends that may run on a GPU."""
    return (name for name, own in shipped().items() if not own.on_processor and not own.definitions)


def build(day: Day) -> None:
    """Build what is compiled in advance, where its driver is."""
    for name, recipe in module_recipes().items():
        if name not in of_gpus():
            continue
        missing = [finding for finding in (recipe.driver(), *recipe.tools().missing) if not finding]
        if missing:
            day.leave_out(f"build {name}", "; ".join(dict.fromkeys(map(str, missing))))
        else:
            command = [sys.executable, "setup.py", *recipe.COMMAND]
            day.run(f"build {name}", command, BUILD, **_only_for_this_gpu(name))
    registry.reload_backend()  # those that failed before they were built


# Backend -> the variable for what it is compiled for, a program that names the GPUs here, and a name in it.
_ARCHITECTURES = {
    "cuda": (
        "AIRLLM_CUDA_ARCHS",
        ("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"),
        r"\d+\.\d",
    ),
    "rocm": ("AIRLLM_HIP_ARCHS", ("rocm_agent_enumerator",), r"gfx(?!000)\w+"),
}


def _only_for_this_gpu(name: str) -> dict[str, str]:
    """The variable that makes a build quick; none if no program names the GPU."""
    if name not in _ARCHITECTURES or os.environ.get(_ARCHITECTURES[name][0]):
        return {}
    variable, program, pattern = _ARCHITECTURES[name]
    found = re.findall(pattern, probes.answer_of(program).stdout)
    return {variable: ",".join(dict.fromkeys(found))} if found else {}


def gpus(day: Day, wanted: list[str] | None) -> list[str]:
    """The backends that run on a GPU here, or the `wanted` ones that run at all."""
    here = []
    for name in wanted or of_gpus():
        why_not = registry.open_backend(name).why_not if wanted else registry.why_passed_over(name)
        if why_not:
            day.leave_out(name, " ".join(why_not.split()))
        else:
            print(f"{name}: {registry.open_backend(name).device}", flush=True)
            here.append(name)
    return here


def run_tests(day: Day, here: list[str]) -> None:
    """The tests of ops, of models on a device and of CUDA's arrays, for these backends."""
    if not importlib.util.find_spec("pytest"):
        day.leave_out("tests", 'pytest is not installed: pip install -e ".[test]"')
        return
    own = [path for name in here for path in _TESTS_OF.get(name, ())]
    words = " or ".join(here)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *own, *_TESTS, "-k"]
    chosen = f"{words} or gpu or device" if own else words
    day.run("tests", [*command, chosen], TESTS, AIRLLM_TEST_REQUIRE=",".join(here))


def time_ops(day: Day, here: list[str]) -> None:
    """Every op on host arrays; on CUDA on arrays of the device, beside PyTorch and CuPy."""
    if "cuda" in here:
        if any(map(importlib.util.find_spec, ("torch", "cupy"))):
            command = [sys.executable, "benchmarks/bench_cuda.py", "--rounds", "3", "--dtypes", "float32"]
            day.run("ops on CUDA", [*command, "--output", str(day.folder)], OPS)
        else:
            day.leave_out("ops on CUDA", "neither PyTorch nor CuPy is installed, to compare with")
    command = [sys.executable, "detect_and_benchmark.py", "--quick", "--no-build", "--backends"]
    day.run("ops", [*command, ",".join([*here, "cpp"]), "--output", str(day.folder / "ops")], OPS)


def decode(day: Day, backends: list[str], model: str, llama_cpp: str | None) -> list[dict[str, Any]]:
    """Tokens per second of a model on each backend, and in llama.cpp with all layers on its GPU."""
    try:
        path = locate(model)
    except ModelNotFound as error:
        day.leave_out("decode", str(error))
        return []
    start = time.monotonic()
    told: Callable[..., None] = lambda done, total, text: None  # noqa: E731
    threads = record.usable_cores()
    rows = model_benchmark.measure_model(path, backends, threads, told, 3, min(DECODE, day.left()))
    day.steps.append(Step("decode", seconds=time.monotonic() - start))
    if llama_cpp:
        rows.append(decode_elsewhere(llama_cpp, path, threads))
    else:
        day.leave_out("decode in llama.cpp", "no --llama-cpp, an interpreter that has llama-cpp-python")
    (day.folder / "decode.json").write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def decode_elsewhere(python: str, path: Path, threads: int) -> dict[str, Any]:
    """A row for llama.cpp: tokens per second after a short prompt."""
    row: dict[str, Any] = {"backend": "llama.cpp"}
    try:
        engine = Engine(python, "llama_cpp", path, threads, gpu_layers=999)
        tokens = engine.ask("tokens", text=PROMPT)
        some = (tokens * (TOKENS // len(tokens) + 1))[:TOKENS]
        speeds = [TOKENS / engine.ask("feed", after=tokens, tokens=some, one_by_one=True) for _ in range(3)]
        engine.close()
    except (NoEngine, OSError) as error:
        return row | {"why_not": str(error)}
    return row | {"answer": {"median": sorted(speeds)[1]}, "version": engine.version}


# ------------------------------------------------------------------------------------------------ summary


def write_summary(day: Day, here: list[str], rows: list[dict[str, Any]]) -> None:
    devices = [f"{name}: {registry.open_backend(name).device}" for name in here]
    what = devices or ["No backend of a GPU runs here."]
    text = ["# The day a GPU was there\n", f"{time.strftime('%Y-%m-%d')}. {'; '.join(what)}"]
    steps = [
        [each.name, each.verdict, f"{each.seconds:.0f}", each.why_not or each.last_line] for each in day.steps
    ]
    text.append("\n" + _table(["step", "verdict", "seconds", "why not, or its last line"], steps))
    if rows:
        text.append(_table(["decode", "tokens/s", "why not"], [_row(row) for row in rows]))
    path = day.folder / "summary.md"
    path.write_text("\n".join(text), encoding="utf-8")
    found = {"devices": devices, "steps": [asdict(step) for step in day.steps], "decode": rows}
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"Written to {path}")


def _row(row: dict[str, Any]) -> list[str]:
    speed = f"{row['answer']['median']:.1f}" if "answer" in row else ""
    return [row["backend"], speed, row.get("why_not", "")]


def _table(titles: list[str], rows: list[list[str]]) -> str:
    return record.markdown(titles, [[cell.replace("|", "/") for cell in row] for row in rows])


if __name__ == "__main__":
    sys.exit(main())
