"""Engines in separate processes, and the model files that all of them read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from airllm.files import smollm2
from benchmarks import record

HERE = Path(__file__).resolve().parent
FTYPES = {"q4_0": 2, "q8_0": 7, "f16": 1}  # from llama.h, for conversions of the Q4_1 file
PAUSE = 0.05  # seconds in which the previous engine's threads stop spinning


class NoEngine(RuntimeError):
    """Why an engine is not available for the comparison."""


def _ending(status: int) -> str:
    """How a process ended that wrote nothing."""
    if status != -signal.SIGILL:
        return f"exit status {status}"
    return (
        "illegal instruction; it was built for another CPU: build it on this machine (benchmarks/README.md)"
    )


class Engine:
    """A worker process that has loaded `path` with a side of engine_worker.py."""

    def __init__(self, python: str, side: str, path: Path, threads: int, **options: Any):
        self.name, self.peak = side, 0
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        if side == "airllm":
            paths = [str(HERE.parent), str(HERE.parent / "cpp_ext"), environment.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        command = [python, str(HERE / "engine_worker.py"), side, str(path), str(threads), json.dumps(options)]
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=-1, stdout=-1, stderr=-1, errors="replace"
        )
        self.version: str = self._answer()["version"]

    def ask(self, do: str, **request: Any) -> Any:
        assert self._process.stdin
        print(json.dumps({"do": do} | request), file=self._process.stdin, flush=True)
        reply = self._answer()
        self.peak = reply["peak"]
        return reply["answer"]

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout and self._process.stderr
        if line := self._process.stdout.readline():
            return json.loads(line)
        lines = self._process.communicate()[1].strip().splitlines()
        raise NoEngine(f"{self.name}: {lines[-1] if lines else _ending(self._process.returncode)}")

    def close(self) -> None:
        self._process.communicate()


def in_turn(engines: Mapping[str, Engine], request: Mapping[str, Any]) -> dict[str, float]:
    """The answer of each engine to one request, in turns; the others sleep."""
    answers = {}
    for name, engine in engines.items():
        time.sleep(PAUSE)
        answers[name] = engine.ask(**request)
    return answers


def first_token(python: str, side: str, path: Path, threads: int, text: str) -> float:
    """Seconds from process start to the logits after `text`."""
    start = time.perf_counter()
    engine = Engine(python, side, path, threads)
    engine.ask("feed", after=[], tokens=engine.ask("tokens", text=text), one_by_one=False)
    taken = time.perf_counter() - start
    engine.close()
    return taken


def model(name: str, folder: Path | None, llama_cpp: str | None) -> Path:
    """SmolLM2 in a format: the file of `airllm.files.smollm2`, or llama.cpp's conversion. Raises NoEngine."""
    original = smollm2.fetch()
    if name == "q4_1":
        return original
    folder = folder or Path(platformdirs.user_cache_dir("airllm")) / "engine_models"
    path = folder / original.name.replace("Q4_1", name.upper())
    if path.exists():
        return path
    if not llama_cpp:
        raise NoEngine(f"{path} is not there, and llama.cpp (--llama-cpp), which would make it, is not given")
    folder.mkdir(parents=True, exist_ok=True)
    made = path.with_suffix(".part")
    command = [llama_cpp, "-c", REQUANTIZE, str(original), str(made), str(FTYPES[name])]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise NoEngine(f"llama.cpp made no {path}: {done.stderr.strip().splitlines()[-1]}")
    return made.rename(path)


REQUANTIZE = """
import sys, llama_cpp as c
how = c.llama_model_quantize_default_params()
how.ftype, how.allow_requantize = int(sys.argv[3]), True
sys.exit(c.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), how))
"""


def options(description: str) -> Any:
    parser = record.parser_of(description)
    parser.add_argument("--formats", help="default: q4_1,q4_0,q8_0,f16")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="an interpreter that has llama-cpp-python")
    parser.add_argument("--ik-llama-cpp", metavar="PYTHON", help="one that has ik-llama-cpp-python")
    parser.add_argument("--models", type=Path, help="folder of SmolLM2's files (default: the user's cache)")
    parser.add_argument("--rounds", type=int, default=12, help="in all (default: %(default)s)")
    parser.add_argument("--no-budget", action="store_true", help="not within a quarter of the model")
    return parser


def python_of(side: str, given: Any) -> str | None:
    return sys.executable if side == "airllm" else getattr(given, side)
