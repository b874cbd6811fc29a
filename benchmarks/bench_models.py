"""Tokens per second of models of real shapes with random weights: this engine, llama.cpp and ik_llama.cpp.

    python benchmarks/bench_models.py [--shapes llama-3.2-1b:16,llama-3.1-8b:8] [--formats q4_k_m,q4_0]
        [--llama-cpp PYTHON] [--ik-llama-cpp PYTHON] [--busy] [--name families] [--add] [--wanted 1]

The files are those of synthetic_models.py; the number after a shape is that of its layers. Engines, turns,
prompts and columns are as in bench_engine.py. "vs faster" is the ratio to the faster peer. With --busy each
round is measured twice, the second time beside a process that keeps one core busy. Then "busy" is the part
of its own idle speed that each engine keeps.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from airllm.architectures import open_config
from airllm.backends import open_backend
from airllm.bench import measure
from benchmarks import bench_engine, engine_peers, record
from benchmarks.bench_engine import PEERS, Case, both, faster, rate, ratio_to, shares_of_read, split
from benchmarks.engine_peers import Engine
from benchmarks.synthetic_models import SHAPES, write_model

WANTED = {"decode": 1.15, "prefill": 1.5}
WANTED_OF_AVX2 = {"decode": 1.1, "prefill": 1.2}
SPIN = """
import os
parent = os.getppid()
while os.getppid() == parent:  # a benchmark that was killed leaves no busy process behind
    for _ in range(10**6):
        pass
"""


def main() -> None:
    given = parse(parser(__doc__ or ""))
    cases = with_stored([measure_case(*each, given) for each in wanted_models(given)], given)
    about = (
        f"Models of real shapes with random weights, {given.threads} threads, {rounds_of(cases)} rounds. "
        f"Tokens per second, medians of all rounds; ratios of the first half and the second. "
        f"{', '.join(bench_engine.versions(cases))}."
    )
    titles = ["model", "what", "airllm", "llama.cpp", "ik_llama.cpp", "of read", "vs faster", "verdict"]
    busy = any(case["busy"] for case in cases)
    if busy:
        titles.append("busy: airllm, llama.cpp, ik_llama.cpp")
    rows = [
        [*row_of(case, what, given.wanted), *([busy_share(case, what)] if busy else [])]
        for case in cases
        for what in ("decode", "prefill")
    ]
    record.write(given.name, about, record.markdown(titles, rows), {"cases": cases}, given.output)


def parser(description: str) -> argparse.ArgumentParser:
    """Of a benchmark of models of real shapes."""
    parser = engine_peers.options(description)
    parser.set_defaults(formats="q4_k_m,q4_0,q8_0,q6_k", rounds=6)
    parser.add_argument("--shapes", default="llama-3.2-1b:16", help="default: %(default)s")
    parser.add_argument("--busy", action="store_true", help="also beside a process that keeps one core busy")
    parser.add_argument("--name", default="models", help="of the table (default: %(default)s)")
    parser.add_argument("--wanted", type=float, help="ratio to the faster peer (default: by instruction set)")
    parser.add_argument("--add", action="store_true", help="to the models that the table has")
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    given = parser.parse_args()
    given.models = given.models or Path(engine_peers.platformdirs.user_cache_dir("airllm")) / "synthetic"
    given.cpp = open_backend("cpp").module
    given.probe = np.ones(measure.large_array_bytes() // 4, np.float32)
    return given


def wanted_models(given: argparse.Namespace) -> list[tuple[str, int, str]]:
    """Name, layers and format of each model."""
    shapes = [each.split(":") for each in given.shapes.split(",") if each]
    return [
        (name, int(layers[0]) if layers else SHAPES[name].layers, format)
        for name, *layers in shapes
        for format in given.formats.split(",")
    ]


def with_stored(cases: list[Case], given: argparse.Namespace) -> list[Case]:
    """The cases, after the others of the table that they are added to."""
    stored = record.stored(given.name, given.output) if given.add else None
    models = {case["model"] for case in cases}
    return [case for case in (stored or {"cases": []})["cases"] if case["model"] not in models] + cases


def rounds_of(cases: list[Case]) -> str:
    counts = sorted({len(case["rounds"]) for case in cases})
    return " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))


def file_of(name: str, layers: int, format: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{layers}-layers-{format}.gguf"
    if not path.exists():
        write_model(path.with_suffix(".part"), replace(SHAPES[name], layers=layers), format).rename(path)
    return path


def measure_case(name: str, layers: int, format: str, given: argparse.Namespace) -> Case:
    """The figures of all engines for one file, in all rounds."""
    path = file_of(name, layers, format, given.models)
    print(path.name, file=sys.stderr)
    case: Case = {"model": f"{name}, {layers} layers, {format}", "bytes": path.stat().st_size}
    case["read_once"] = bytes_of_token(path)
    text = [5 + i % 200 for i in range(bench_engine.PREFILLED)]
    with ExitStack() as undo:
        engines = {"airllm": Engine(sys.executable, "airllm", path, given.threads)}
        for side in PEERS:
            if python := engine_peers.python_of(side, given):
                engines[side] = Engine(python, side, path, given.threads, flash=True)
        for engine in engines.values():
            undo.callback(engine.close)
        case["versions"] = {side: engine.version for side, engine in engines.items()}
        case["rounds"], case["busy"] = [], []
        for _ in range(given.rounds):
            case["rounds"].append(bench_engine.round_of(given, engines, text))
            if given.busy:
                case["busy"].append(busy_round(given, engines, text))
    return case


def busy_round(given: argparse.Namespace, engines: dict[str, Engine], text: list[int]) -> bench_engine.Round:
    spinning = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        return bench_engine.round_of(given, engines, text)
    finally:
        spinning.kill()
        spinning.wait()


def bytes_of_token(path: Path) -> int:
    """Bytes of the tensors that a token reads: of experts those that are used, and of a table of embeddings
    nothing, unless it is the output.
    """
    config = open_config(path)
    used = config.experts_used / max(config.experts, 1)
    with bench_engine.open_weights(path) as weights:
        tables = {"per_layer_token_embd.weight"}
        tables |= {"token_embd.weight"} if "output.weight" in weights else set()
        names = (name for name in weights.names() if name not in tables)
        return round(sum(weights.tensor(name).nbytes * (used if "_exps" in name else 1) for name in names))


def row_of(case: Case, what: str, wanted: float | None) -> list[str]:
    rates = [faster(case, what, side) for side in ("airllm", *PEERS)]
    share = " / ".join(f"{each:.0%}" for each in shares_of_read(case)) if what == "decode" else "-"
    ratios = [ratio for peer in PEERS if (ratio := ratio_to(case, what, peer))]
    to_faster = min(ratios, key=sum) if ratios else None
    wanted = wanted or (WANTED_OF_AVX2 if measure.machine()["isa"] == "avx2" else WANTED)[what]
    verdict = bench_engine.verdict(to_faster, wanted)
    return [case["model"], what, *map(rate, rates), share, both(to_faster), verdict]


def busy_share(case: Case, what: str) -> str:
    """The part of its idle speed that each engine keeps."""
    if not case["busy"]:
        return "-"
    pairs = list(zip(case["busy"], case["rounds"], strict=True))
    sides = [side for side in ("airllm", *PEERS) if side in case["rounds"][0][what]]
    shares = [statistics.mean(split([b[what][s] / i[what][s] for b, i in pairs])) for s in sides]
    return ", ".join(f"{share:.2f}" for share in shares)


if __name__ == "__main__":
    main()
